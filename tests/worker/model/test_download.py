"""What is fetched of a repository, and what is said when it cannot be: with a hub of our own."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hub_stand_in
from hub_stand_in import Hub
from worker.model import files
from worker.model.files import choose, formats

pytestmark = pytest.mark.timeout(60)

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}})
# Beside the weights: what tokenizers, processors and custom code of all kinds consist of.
BESIDE = [
    *("config.json", "generation_config.json", "params.json", "LICENSE", "modules.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("spiece.model", "tokenizer.model", "tokenizer.model.v3", "sentencepiece.bpe.model"),
    *("merges.txt", "vocab.txt", "vocab.json", "qwen.tiktoken", "tiktoken.model", "tekken.json"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja"),
    *("modeling_x.py", "configuration_x.py", "tokenization_x.py", "preprocessor_config.json"),
    *("processor_config.json", "1_Pooling/config.json", "sentence_bert_config.json"),
]
USELESS = [
    *(".gitattributes", "README.md", "tf_model.h5", "flax_model.msgpack", "onnx/model.onnx"),
    *("original/consolidated.00.pth", "metal/model.bin", "training_args.bin", "optimizer.pt"),
    *("images/cat.png", "runs/events.out", "original/config.json"),
]


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [
        (["model.safetensors"], ["model.safetensors"]),
        (["pytorch_model.bin"], ["pytorch_model.bin"]),
        (["model.safetensors", "pytorch_model.bin"], ["model.safetensors"]),
        (["model.safetensors", "pytorch_model.bin.index.json"], ["model.safetensors"]),
        (["consolidated.pt"], ["consolidated.pt"]),
        ([*SHARDS, "model.safetensors.index.json", "pytorch_model.bin"], None),
        (["consolidated.safetensors", "model.safetensors"], ["consolidated.safetensors"]),
        (["model.safetensors", "model-Q4_K_M.gguf"], ["model.safetensors"]),
        (["2_Dense/pytorch_model.bin", "model.safetensors"], None),
        (["model.safetensors.index.json", "pytorch_model.bin"], ["pytorch_model.bin"]),
    ],
)
def test_one_format_of_weights_and_all_beside_it(weights, wanted) -> None:
    """The best format that has weights is taken, whole, and everything that is no weight."""
    if wanted is None:
        wanted = [name for name in weights if name != "pytorch_model.bin"]
    chosen = files.choose([*BESIDE, *USELESS, *weights])

    assert sorted([*BESIDE, *wanted]) == sorted(chosen)


@pytest.mark.parametrize(
    ("load_format", "wanted"),
    [
        ("hf", ["model.safetensors"]),
        ("mistral", ["consolidated.safetensors"]),
        ("npcache", ["pytorch_model.bin"]),
        ("pt", ["model.pt"]),
    ],
)
def test_the_load_format_decides(load_format, wanted) -> None:
    """LOAD_FORMAT names the weights that vLLM will look for, and those are fetched."""
    every = ["model.safetensors", "consolidated.safetensors", "pytorch_model.bin", "model.pt"]

    assert wanted == files.choose(every, files.FORMATS[load_format])


def test_a_gguf_file_is_named_by_its_quantisation() -> None:
    """`org/name:Q4_K_M` fetches that file alone, in any case of its letters."""
    files = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "m.q4_k_m.gguf", "m-Q4_K_S.gguf"]

    assert ["m-Q4_K_M.gguf"] == choose(files, formats("org/m:Q4_K_M") or ())
    assert ["m.q4_k_m.gguf"] == choose(files[2:], formats("org/m:Q4_K_M") or ())


@pytest.fixture(scope="module")
def stand_in() -> Iterator[Hub]:
    with hub_stand_in.serve() as served:
        yield served


DOWNLOAD = """
import sys
from worker.model import download
from worker.errors import StartError
download.PROGRESS_S = 0.2
try:
    print(download.download(sys.argv[1], cache=sys.argv[2]))
except StartError as error:
    sys.exit(f"error: {error}")
"""


def start(stand_in: Hub, name: str, cache: Path, **environ: str) -> subprocess.Popen[str]:
    """Download in a process of its own, as a worker does."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", DOWNLOAD, name, str(cache)],
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/nowhere",
            "HF_ENDPOINT": stand_in.url,
            **environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(worker: subprocess.Popen[str]) -> tuple[Path, list[str]]:
    """Return the snapshot of a download that worked, and its lines."""
    out, err = worker.communicate(timeout=40)
    assert worker.returncode == 0, err
    lines = out.splitlines()
    return Path(lines[-1]), lines[:-1]


def sentence(worker: subprocess.Popen[str]) -> str:
    """Return what a download that failed said last."""
    _, err = worker.communicate(timeout=40)
    assert worker.returncode == 1, err
    assert "Traceback" not in err
    return err.splitlines()[-1]


def test_workers_share_a_volume(stand_in: Hub, tmp_path: Path) -> None:
    """Two workers that start at once fetch a model once, and both find it whole."""
    weights = os.urandom(5_000_000)
    stand_in.add("org/shared", {"config.json": "{}", "shared.safetensors": weights}, slow_s=0.2)
    workers = [start(stand_in, "org/shared", tmp_path) for _ in range(2)]
    (one, _), (other, _) = [end(worker) for worker in workers]

    assert one == other
    assert weights == (one / "shared.safetensors").read_bytes()
    assert [""] == stand_in.fetched("/shared.safetensors")


def test_a_broken_connection(stand_in: Hub, tmp_path: Path) -> None:
    """A transfer that breaks off half-way goes on from there, and the file is whole."""
    weights = os.urandom(13_000_000)  # the hub's client keeps what it has in pieces of 10 MB
    files = {"config.json": "{}", "broken.safetensors": weights}
    stand_in.add("org/broken", files, breaks={"broken.safetensors": 12_000_000})
    snapshot, _ = end(start(stand_in, "org/broken", tmp_path))
    first, second = stand_in.fetched("/broken.safetensors")

    assert weights == (snapshot / "broken.safetensors").read_bytes()
    assert "" == first
    assert re.fullmatch(r"bytes=[1-9]\d*-.*", second)


def test_progress_in_lines(stand_in: Hub, tmp_path: Path) -> None:
    """A long download says what it fetches, how far it is, and when it is done, a line each."""
    stand_in.add("org/slow", {"config.json": "{}", "a.safetensors": bytes(4_000_000)}, slow_s=0.25)
    _, lines = end(start(stand_in, "org/slow", tmp_path))

    assert f"org/slow: 2 files, 4 MB to fetch into {tmp_path}" == lines[0]
    assert re.fullmatch(r"org/slow: .* of 4 MB, .*/s", lines[1])
    assert re.fullmatch(r"org/slow: complete after \d+ s", lines[-1])
    assert "\r" not in "".join(lines)


def test_nothing_is_fetched_twice(stand_in: Hub, tmp_path: Path) -> None:
    """What a cache holds is not fetched again, and the second start is told so."""
    stand_in.add("org/twice", {"config.json": "{}", "twice.safetensors": bytes(1000)})
    first, _ = end(start(stand_in, "org/twice", tmp_path))
    second, lines = end(start(stand_in, "org/twice", tmp_path))

    assert first == second
    assert "0 B to fetch" in lines[0]
    assert [""] == stand_in.fetched("/twice.safetensors")


def test_shards_and_nothing_beside_them(stand_in: Hub, tmp_path: Path) -> None:
    """Where an index names shards, the same weights in one piece are left out."""
    files = {"config.json": "{}", "model.safetensors.index.json": INDEX, "model.safetensors": "x"}
    stand_in.add("org/sharded", files | dict.fromkeys(SHARDS, "w"))
    snapshot, _ = end(start(stand_in, "org/sharded", tmp_path))

    assert {"config.json", "model.safetensors.index.json", *SHARDS} == set(os.listdir(snapshot))


def test_code_of_another_repository(stand_in: Hub, tmp_path: Path) -> None:
    """Custom code that a configuration takes from another repository is fetched with it."""
    config = {"auto_map": {"AutoConfig": "org/code--configuration_x.X"}}
    stand_in.add("org/code", {"configuration_x.py": "x = 1", "model.safetensors": "w"})
    stand_in.add("org/uses", {"config.json": json.dumps(config), "model.safetensors": "w"})
    end(start(stand_in, "org/uses", tmp_path))
    snapshot = tmp_path / "models--org--code" / "snapshots" / stand_in.repositories["org/code"].sha

    assert ["configuration_x.py"] == os.listdir(snapshot)


def test_what_cannot_be_fetched_is_said_in_one_sentence(stand_in: Hub, tmp_path: Path) -> None:
    """Gated, absent, without weights, half a set of shards, offline: a sentence, and what to do."""
    stand_in.add("org/gated", {"config.json": "{}", "model.safetensors": "w"}, gated=True)
    stand_in.add("org/empty", {"config.json": "{}", "model.safetensors.index.json": INDEX})
    stand_in.add("org/half", {"model.safetensors.index.json": INDEX, SHARDS[0]: "w"})
    stand_in.add("org/m-GGUF", {"m-Q4_K_M.gguf": "w", "m-Q8_0.gguf": "w"})
    wrong = "hf_someoneelses"
    cases = {
        start(stand_in, "org/gated", tmp_path): f"org/gated is gated: accept its terms at "
        f"{stand_in.url}/org/gated, and give HF_TOKEN a token that may read",
        start(stand_in, "org/gated", tmp_path, HF_TOKEN=wrong): "org/gated is gated: ",
        start(stand_in, "org/none", tmp_path): f"org/none is not on {stand_in.url}, or is private",
        start(stand_in, "org/empty", tmp_path): "org/empty holds no weights",
        start(stand_in, "org/half", tmp_path): f"names {SHARDS[1]}, which the repository does not",
        start(stand_in, "org/m-GGUF", tmp_path): "org/m-GGUF holds GGUF files: "
        "MODEL_NAME=org/name:Q4_K_M names one",
        start(stand_in, "org/m-GGUF:Q2_K", tmp_path): "has no GGUF file of that quantisation",
        start(stand_in, "org/any", tmp_path, HF_HUB_OFFLINE="1"): "org/any is not on this machine",
        start(stand_in, "org/any", tmp_path, HF_ENDPOINT="http://127.0.0.1:9"): "cannot be fetched",
    }
    for worker, expected in cases.items():
        said = sentence(worker)

        assert expected in said
        assert wrong not in said


def test_a_token_opens_a_gated_model(stand_in: Hub, tmp_path: Path) -> None:
    """The token that may read does read, and is in no line."""
    stand_in.add("org/mine", {"config.json": "{}", "model.safetensors": "w"}, gated=True)
    snapshot, lines = end(start(stand_in, "org/mine", tmp_path, HF_TOKEN=hub_stand_in.TOKEN))

    assert (snapshot / "model.safetensors").read_text() == "w"
    assert hub_stand_in.TOKEN not in "".join(lines)


def test_a_volume_that_is_too_small(stand_in: Hub, volume: Path) -> None:
    """What does not fit is said before anything is fetched, with both sizes."""
    stand_in.add("org/big", {"config.json": "{}", "big.safetensors": bytes(3_000_000)})

    assert sentence(start(stand_in, "org/big", volume)).startswith(
        f"error: org/big needs 3 MB more, and {volume} has 2.1 MB free: make room there"
    )
    assert [] == stand_in.fetched("/big.safetensors")


def test_a_volume_that_fills_up(stand_in: Hub, volume: Path) -> None:
    """A disk that is full half-way, because others write to it too, is named."""
    stand_in.add("org/fill", {"config.json": "{}", "m.safetensors": bytes(2_000_000)}, slow_s=1.0)
    worker = start(stand_in, "org/fill", volume)
    assert worker.stdout is not None
    worker.stdout.readline()
    with contextlib.suppress(OSError):
        (volume / "others").write_bytes(bytes(2_000_000))

    assert f"error: org/fill does not fit into {volume}: the disk is full" in sentence(worker)


def test_a_volume_that_cannot_be_written(stand_in: Hub, volume: Path) -> None:
    """A cache that is read-only is named, and the setting that names another."""
    stand_in.add("org/ro", {"config.json": "{}", "m.safetensors": "w"})
    subprocess.run(["mount", "-o", "remount,ro", volume], check=True)

    assert f"cannot be stored in {volume}, which cannot be" in sentence(
        start(stand_in, "org/ro", volume)
    )
