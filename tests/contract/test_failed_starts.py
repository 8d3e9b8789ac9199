"""Starts that fail: real workers whose engine really dies, and the one sentence they end with."""

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file, save_file

import models
from served import START_S, serve

pytestmark = pytest.mark.timeout(START_S + 60)

TINY = {"MODEL_NAME": str(models.path("tiny"))}
WEIGHTS = "model.safetensors"


def error(**environ: str) -> str:
    """Return the sentence that a start ends with; it must be one line."""
    with pytest.raises(RuntimeError) as caught, serve(TINY | environ) as served:
        pytest.fail(f"the worker started:\n{served.log()[-2000:]}")
    errors = [line for line in str(caught.value).splitlines() if line.startswith("error: ")]

    assert 1 == len(errors), str(caught.value)
    return errors[0]


def copy_of_tiny(folder: Path) -> Path:
    copied = folder / "model"
    shutil.copytree(models.path("tiny"), copied)
    return copied


def kill_at_its_start(title: str) -> threading.Thread:
    """Kill, from the thread that is returned, the next process that has this title."""
    before = set(psutil.Process().children(recursive=True))

    def watch() -> None:
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            for process in psutil.Process().children(recursive=True):  # parents first
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process not in before and title in " ".join(process.cmdline()):
                        process.kill()
                        return
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_context_that_the_cache_does_not_hold() -> None:
    """The engine's own error: too little room for the context names MAX_MODEL_LEN and the room."""
    said = error(VLLM_ALLOW_LONG_MAX_MODEL_LEN="1", MAX_MODEL_LEN="500000")

    assert "KV cache" in said
    assert "Lower MAX_MODEL_LEN" in said
    assert "VLLM_CPU_KVCACHE_SPACE" in said


@pytest.mark.slow
def test_a_broken_shard_with_two_workers(tmp_path: Path) -> None:
    """With tensor parallelism the worker's error is told, not that a worker had one."""
    model = copy_of_tiny(tmp_path)
    weights = load_file(model / WEIGHTS)
    (model / WEIGHTS).unlink()
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {name: shards[i % 2] for i, name in enumerate(weights)}
    for shard in shards:
        part = {name: weights[name] for name in weights if index[name] == shard}
        save_file(part, model / shard, {"format": "pt"})
    written = json.dumps({"metadata": {}, "weight_map": index})
    (model / f"{WEIGHTS}.index.json").write_text(written)
    content = (model / shards[1]).read_bytes()
    (model / shards[1]).write_bytes(content[: len(content) // 2])
    said = error(MODEL_NAME=str(model), TENSOR_PARALLEL_SIZE="2", VLLM_CPU_OMP_THREADS_BIND="0|1")

    assert "SafetensorError" in said
    assert "fetch them again" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "name"),
    [("VLLM::Worker", "VllmWorker-0"), ("VLLM::EngineCore", "EngineCore")],
)
def test_a_killed_process(title: str, name: str) -> None:
    """A process that is killed leaves no error: its name and its signal are told, and memory."""
    killing = kill_at_its_start(title)
    said = error()
    killing.join(START_S)

    assert f"{name} was killed by SIGKILL" in said
    assert "memory" in said


@pytest.mark.slow
def test_an_error_that_nobody_foresaw() -> None:
    """Whatever ends a start ends the process with a sentence."""
    said = error(LOGGING_CONFIG='{"pylogging_config_file": "/nowhere.json"}')

    assert "unexpectedly" in said
    assert "/nowhere.json" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("model.layers.1.mlp.up_proj.weight", lambda weight: weight[:100], "dimension size"),
        # vLLM 0.32 lets a linear layer of an unquantised model be missing.
        ("model.norm.weight", None, "not initialized"),
    ],
    ids=["wrong shape", "missing"],
)
def test_weights_of_another_model(
    name: str, change: Callable[[object], object] | None, word: str, tmp_path: Path
) -> None:
    """A weight that is missing or has another shape sends the user to the model's files."""
    model = copy_of_tiny(tmp_path)
    weights = load_file(model / WEIGHTS)
    weight = weights.pop(name)
    if change is not None:
        weights[name] = change(weight).contiguous()
    save_file(weights, model / WEIGHTS, {"format": "pt"})
    said = error(MODEL_NAME=str(model))

    assert word in said
    assert "MODEL_NAME" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"VLLM_CPU_KVCACHE_SPACE": "100000"}, "VLLM_CPU_KVCACHE_SPACE"),
        ({"ENFORCE_EAGER": "0", "CXX": "/nowhere", "CC": "/nowhere"}, "ENFORCE_EAGER=true"),
    ],
    ids=["memory", "compiler"],
)
def test_what_fails_while_it_is_warmed_up(environ: dict[str, str], word: str) -> None:
    """What a worker fails of after it was ready, while memory is measured or code compiled."""
    said = error(**environ)

    assert word in said
