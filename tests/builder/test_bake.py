"""Baking a model into an image, as a build does it, from a hub of our own."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import bake
import pytest

import hub_stand_in
from builds import EMPTY, PROJECT, Build
from hub_stand_in import Hub
from worker.errors import SettingsError

pytestmark = pytest.mark.timeout(60)

CONFIG = {"config.json": '{"model_type": "llama"}', "generation_config.json": "{}"}
SHARDS = dict.fromkeys(
    ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"), "weights"
)
INDEX = {"model.safetensors.index.json": json.dumps({"weight_map": dict(enumerate(SHARDS))})}
BIN = {"pytorch_model.bin": "weights"}
SAFE = {"model.safetensors": "weights"}
OLD_BPE = {"vocab.json": "{}", "merges.txt": "", "tokenizer_config.json": "{}"}
SENTENCEPIECE = {"spiece.model": "sp", "tokenizer.model": "sp", "special_tokens_map.json": "{}"}
TIKTOKEN = {"qwen.tiktoken": "t", "tokenization_qwen.py": "x = 1", "tiktoken.model": "t"}
CODE = {"modeling_x.py": "x = 1", "configuration_x.py": "x = 1", "layers/attention.py": "x = 1"}
TEMPLATES = {"chat_template.jinja": "{{ x }}", "additional_chat_templates/rag.jinja": "{{ x }}"}
OTHERS = {"README.md": "# Me", "tf_model.h5": "w", "onnx/model.onnx": "w", ".gitattributes": ""}
OTHERS |= {"training_args.bin": "w", "original/consolidated.00.pth": "w"}

SHAPES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    # what is wanted, and what lies beside it and is not
    "safetensors only": (CONFIG | SAFE | OLD_BPE | TEMPLATES, OTHERS),
    "bin only": (CONFIG | BIN | SENTENCEPIECE, OTHERS),
    "both formats": (CONFIG | SAFE | OLD_BPE, BIN | OTHERS),
    "shards and both formats": (CONFIG | SHARDS | INDEX, BIN | SAFE | OTHERS),
    "an index without its weights": (
        CONFIG | BIN,
        {"model.safetensors.index.json": '{"weight_map": {}}'},
    ),
    "tiktoken and custom code": (CONFIG | SAFE | TIKTOKEN | CODE, OTHERS),
    "everything of the report": (
        CONFIG | SAFE | SENTENCEPIECE | OLD_BPE | TEMPLATES | {"modeling_x.py": "x = 1"},
        BIN,
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(build: Build, hub: Hub, shape: str) -> None:
    """Whatever the repository looks like, all that the model needs is baked, in one format."""
    wanted, others = SHAPES[shape]
    hub.add("org/model", wanted | others)
    done = build.bake(MODEL_NAME="org/model")

    assert 0 == done.returncode, done.stderr
    assert set(wanted) == build.files("org/model")


def test_what_was_baked_is_written_down(build: Build, hub: Hub) -> None:
    """One file says what the image holds: the arguments that were set, and where it lies."""
    hub.add("org/model", CONFIG | SAFE, revisions=("main", "v1"))
    hub.add("org/tokenizer", OLD_BPE | SAFE, revisions=("main", "v2"))
    hub.add("org/adapter", {"adapter_config.json": "{}", "adapter_model.safetensors": "w"})
    adapters = '[{"name": "a", "path": "org/adapter"}]'
    given = {
        "BASE_PATH": "/data/models",
        "MODEL_NAME": "org/model",
        "MODEL_REVISION": "v1",
        "TOKENIZER_NAME": "org/tokenizer",
        "TOKENIZER_REVISION": "v2",
        "QUANTIZATION": "awq",
        "LORA_MODULES": adapters,
    }
    done = build.bake(**given)
    base = "data/models"

    assert 0 == done.returncode, done.stderr
    assert given == json.loads((build.root / "etc/worker-vllm/baked.json").read_text())
    assert {*OLD_BPE} == set(os.listdir(build.snapshot("org/tokenizer", base)))
    assert "adapter_model.safetensors" in os.listdir(build.snapshot("org/adapter", base))
    assert [] == list(build.root.rglob("trees"))


@pytest.mark.parametrize("name", ["", "org/model"])
def test_a_tokenizers_revision_alone(build: Build, hub: Hub, name: str) -> None:
    """The tokenizer of another revision of the model is baked beside it, and no second weights."""
    hub.add("org/model", CONFIG | SAFE | {"tokenizer.json": "old"})
    new = hub.add("org/model@v2", CONFIG | SAFE | {"tokenizer.json": "new"})
    done = build.bake(MODEL_NAME="org/model", TOKENIZER_NAME=name, TOKENIZER_REVISION="v2")
    folder = build.root / "models/huggingface-cache/hub/models--org--model/snapshots" / new.sha

    assert 0 == done.returncode, done.stderr
    assert {*CONFIG, "tokenizer.json"} == set(os.listdir(folder))
    assert "new" == (folder / "tokenizer.json").read_text()


def test_nothing_to_bake(build: Build) -> None:
    """Without arguments there is nothing to do, and the file says so: one Dockerfile for both."""
    done = build.bake()

    assert 0 == done.returncode, done.stderr
    assert {} == json.loads((build.root / "etc/worker-vllm/baked.json").read_text())


WRONG = [
    ({"MODEL_NAME": "", "MODEL_REVISION": "v1"}, "MODEL_REVISION is set and MODEL_NAME is not"),
    ({"MODEL_NAME": "/models/x"}, "MODEL_NAME='/models/x' is no repository of the hub"),
    ({"MODEL_NAME": "https://hf.co/org/x"}, "is no repository of the hub"),
    ({"MODEL_NAME": "org/../x"}, "is no repository of the hub"),
    ({"MODEL_REVISION": "a b"}, "MODEL_REVISION='a b' is no branch, tag or commit"),
    ({"TOKENIZER_REVISION": "a b"}, "TOKENIZER_REVISION='a b' is no branch, tag or commit"),
    ({"QUANTIZATION": "squeezellm"}, "QUANTIZATION='squeezellm' is gone from vLLM"),
    ({"QUANTIZE": "int2"}, "QUANTIZE='int2' must be one of fp8, int8, w4a16"),
    ({"QUANTIZE": "fp8", "QUANTIZATION": "awq"}, "QUANTIZE=fp8 needs a model that is not"),
    ({"BASE_PATH": "models"}, "BASE_PATH='models' must be a folder, from the root"),
    ({"BASE_PATH": "/runpod-volume/x"}, "would be hidden by the network volume"),
    ({"LORA_MODULES": "{bad"}, "LORA_MODULES='{bad' is no JSON such as"),
    ({"LORA_MODULES": '[{"name": "a", "path": "/x"}]'}, "names '/x', which is no repository"),
    ({"HF_TOKEN": "hf_secret"}, "HF_TOKEN is in the environment"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_a_wrong_argument(wrong: dict[str, str], sentence: str) -> None:
    """Each is refused with one sentence, which never holds the token."""
    with pytest.raises(SettingsError) as caught:
        bake.arguments(EMPTY | {"MODEL_NAME": "org/model"} | wrong)
    (problem,) = caught.value.problems

    assert sentence in problem
    assert "hf_secret" not in problem


def test_arguments_are_checked_first(build: Build, hub: Hub) -> None:
    """All that is wrong is said at once, and before anything is asked of the hub."""
    before = len(hub.requests)
    done = build.bake(MODEL_NAME="a b", BASE_PATH="x", TOKENIZER_REVISION="v w")

    assert 1 == done.returncode
    assert 3 == len(done.stderr.splitlines())
    assert before == len(hub.requests)


def test_a_missing_revision(build: Build, hub: Hub) -> None:
    """A revision that the repository does not have is named, and nothing is baked."""
    hub.add("org/model", CONFIG | SAFE)
    done = build.bake(MODEL_NAME="org/model", MODEL_REVISION="v9")

    assert "error: org/model has no revision 'v9'\n" == done.stderr
    assert not (build.root / "etc").exists()


def test_a_gated_model_and_its_token(build: Build, hub: Hub, tmp_path_factory: Any) -> None:
    """The token comes from the secret's file, and is in no line, no file and no process's words."""
    hub.add("org/gated", CONFIG | SAFE, gated=True)
    secret = tmp_path_factory.mktemp("secrets") / "HF_TOKEN"
    secret.write_text(f"{hub_stand_in.TOKEN}\n")
    refused = build.bake(MODEL_NAME="org/gated")
    done = build.bake("--secret", secret, MODEL_NAME="org/gated")
    written = [path for path in build.root.rglob("*") if path.is_file()]

    assert refused.stderr.startswith("error: org/gated is gated: accept its terms at ")
    assert 0 == done.returncode, done.stderr
    assert hub_stand_in.TOKEN not in done.stdout + done.stderr
    assert [p for p in written if hub_stand_in.TOKEN.encode() in p.read_bytes()] == []


def test_a_build_that_goes_on(build: Build, hub: Hub) -> None:
    """A second run fetches only what the first did not."""
    hub.add("org/model", CONFIG | {"again.safetensors": "weights"})
    for _ in range(2):
        assert 0 == build.bake(MODEL_NAME="org/model").returncode

    assert 1 == len(hub.fetched("/again.safetensors"))


def test_the_hubs_client_is_enough(build: Build, hub: Hub, tmp_path: Path) -> None:
    """Baking imports neither vllm nor torch, nor anything else of what the worker needs."""
    hub.add("org/model", CONFIG | SAFE)
    absent = tmp_path / "absent"
    for name in ("vllm", "torch", "transformers", "msgspec", "psutil", "runpod", "numpy"):
        (absent / name).mkdir(parents=True)
        (absent / name / "__init__.py").write_text("raise ImportError('not in this stage')")
    path = f"{absent}:{Path(__file__).parents[2] / 'src'}"
    done = build.bake(MODEL_NAME="org/model", PYTHONPATH=path)

    assert 0 == done.returncode, done.stderr


def test_what_the_image_copies_is_enough(hub: Hub, tmp_path: Path) -> None:
    """The stage that bakes has every file of ours that it needs, and no other stage to ask."""
    dockerfile = (PROJECT / "Dockerfile").read_text()
    (stage,) = re.findall(
        r"^FROM .* AS download\n(.*?)^FROM ", dockerfile, re.DOTALL | re.MULTILINE
    )
    for line in re.findall(r"^COPY (.*)", stage, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            to = tmp_path / target
            if (PROJECT / source).is_dir():
                shutil.copytree(PROJECT / source, to)
            else:
                to.mkdir(parents=True, exist_ok=True)
                shutil.copy(PROJECT / source, to)
    hub.add("org/model", CONFIG | SAFE)
    done = subprocess.run(
        [sys.executable, tmp_path / "builder/bake.py", "--root", tmp_path / "baked"],
        env={"PYTHONPATH": str(tmp_path / "src"), "HF_ENDPOINT": hub.url, "HOME": str(tmp_path)}
        | EMPTY
        | {"MODEL_NAME": "org/model"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    assert (tmp_path / "baked/etc/worker-vllm/baked.json").exists()


def test_the_folder_can_be_copied(build: Build, hub: Hub) -> None:
    """Every link in the cache is relative, so that the cache is whole in the next stage."""
    hub.add("org/model", CONFIG | SAFE)
    build.bake(MODEL_NAME="org/model")
    links = [path for path in build.root.rglob("*") if path.is_symlink()]

    assert links
    assert [] == [link for link in links if os.readlink(link).startswith("/")]
