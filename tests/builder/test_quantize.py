"""A model is quantised while it is baked, with llm-compressor, in an environment of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import models
from builds import PROJECT, Build
from hub_stand_in import Hub
from served import serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
LAYER = "model.layers.0.self_attn.q_proj"
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of an environment that holds quantize.txt, as the build's stage has it."""
    folder = PROJECT / ".cache" / "quantize-venv"
    lock = (PROJECT / "builder" / "quantize.txt").read_text()
    stamp = folder / "locked"
    if not stamp.exists() or stamp.read_text() != lock:
        index = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
        pip = [folder / "bin" / "pip", "install", "-q", "--no-deps", "-r", "builder/quantize.txt"]
        pip += [] if os.environ.get("PIP_FIND_LINKS") else index
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run(pip, check=True, cwd=PROJECT)
        stamp.write_text(lock)
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def whole(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    """A baked model before it is quantised."""
    hub.add_folder(NAME, models.path("smollm2-135m-instruct"))
    build = Build(hub, tmp_path_factory.mktemp("whole"))
    assert 0 == build.bake(MODEL_NAME=NAME, QUANTIZE="int8").returncode
    return build


@pytest.mark.parametrize(
    ("scheme", "dtype", "shape", "percent"),
    [
        ("fp8", "F8_E4M3", [576, 576], 45),
        ("int8", "I8", [576, 576], 45),
        ("w4a16", "I32", [576, 72], 35),  # eight weights of four bits in each number
    ],
)
def test_schemes(
    python: str, whole: Build, build: Build, scheme: str, dtype: str, shape: list[int], percent: int
) -> None:
    """Each scheme leaves a whole baked model of the same name, with the small weights it names."""
    from safetensors import safe_open

    done = build.run("quantize.py", "--from", whole.root, python=python, QUANTIZE=scheme)
    assert 0 == done.returncode, done.stderr
    small, large = build.snapshot(NAME), whole.snapshot(NAME)
    weight = "weight_packed" if scheme == "w4a16" else "weight"
    with safe_open(small / "model.safetensors", framework="np") as tensors:
        names = set(tensors.keys())
        found = tensors.get_slice(f"{LAYER}.{weight}")
        ours = (found.get_dtype(), found.get_shape())
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (small, large)]
    config = json.loads((small / "config.json").read_text())
    baked = Path("etc/worker-vllm/baked.json")

    assert (dtype, shape) == ours
    assert f"{LAYER}.weight_scale" in names
    assert sizes[0] * 100 < sizes[1] * percent
    assert "compressed-tensors" == config["quantization_config"]["quant_method"]
    assert whole.files(NAME) <= build.files(NAME)
    assert (whole.root / baked).read_text() == (build.root / baked).read_text()
    assert small.name == f"{large.name}-{scheme}"
    assert "\r" not in done.stdout


def test_int8_answers(python: str, whole: Build, build: Build) -> None:
    """The int8 model is found under its name and still knows the capital of France."""
    build.run("quantize.py", "--from", whole.root, python=python, QUANTIZE="int8")
    cache = build.root / "models" / "huggingface-cache" / "hub"
    messages = [{"role": "user", "content": QUESTION}]
    # vLLM's int8 kernel takes no float32 on a CPU with AMX.
    fixed = {"DTYPE": "bfloat16", "HF_HUB_OFFLINE": "1"}
    environ = {"MODEL_NAME": NAME, "HF_HUB_CACHE": str(cache), **fixed}
    with serve(environ) as served:
        answer = served.client.chat.completions.create(
            model=NAME, messages=messages, temperature=0, max_tokens=20
        )

    assert "Paris" in (answer.choices[0].message.content or "")


def test_what_cannot_be_quantised(python: str, whole: Build, build: Build) -> None:
    """A scheme that nobody knows ends the stage with one sentence."""
    done = build.run("quantize.py", "--from", whole.root, python=python, QUANTIZE="int3")

    assert (1, "error: QUANTIZE='int3' must be one of fp8, int8, w4a16\n") == (
        done.returncode,
        done.stderr,
    )
