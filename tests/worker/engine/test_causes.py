"""What a start says that failed, by what vLLM said; tests/contract/test_failed_starts.py fails."""

import inspect
import re
from pathlib import Path

import pytest

from worker.configuration.variables import ALIASES
from worker.engine.causes import HINTS, sentence
from worker.engine.command_line import by_variable, environment

# Importing vLLM's parser and engine warns of things that are not ours.
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]

# What vLLM 0.32, torch 2.11 and safetensors say, and a word of the hint that must follow.
SAID = [
    (
        "ValueError: To serve at least one request with the model's max seq len (9), (1 GiB KV "
        "cache is needed, which is larger than the available KV cache memory (0.5 GiB). Try "
        "increasing `gpu_memory_utilization` or decreasing `max_model_len`.",
        "Lower MAX_MODEL_LEN",
    ),
    ("ValueError: No available memory for the cache blocks. Try more.", "raise GPU_MEMORY_UTIL"),
    (
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even "
        "a single token. Try increasing `gpu_memory_utilization`.",
        "Lower MAX_MODEL_LEN",
    ),
    (
        "ValueError: Free memory on device cuda:0 (9/24 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 21 GiB). Decrease GPU memory utilization or so.",
        "Lower GPU_MEMORY_UTILIZATION",
    ),
    ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "QUANTIZATION"),
    ("RuntimeError: DefaultCPUAllocator: can't allocate memory", "VLLM_CPU_KVCACHE_SPACE"),
    ("MemoryError", "TENSOR_PARALLEL_SIZE"),
    ("Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down.", "memory"),
    ("Worker proc VllmWorker-1 died (exit code: -7)", "/dev/shm"),
    ("Worker proc VllmWorker-1 died (exit code: None)", "instructions"),
    ("Worker proc VllmWorker-1 died (exit code: -4)", "processor"),
    (
        "SafetensorError: Error while deserializing header: incomplete metadata (while the weights "
        "were loaded)",
        "fetch them again",
    ),
    (
        "PackageNotFoundError: No package metadata was found for vllm (while the weights were "
        "loaded)",
        "LOAD_FORMAT",
    ),
    ("RuntimeError: Invalid device string: 'cuda:cpu' (while the weights were loaded)", "unset it"),
    ("ValueError: current platform cpu does not support ray.", "DISTRIBUTED_EXECUTOR_BACKEND"),
    ("RuntimeError: Cannot find any model weights with `/models/a`", "MODEL_NAME"),
    (
        "ValueError: The quantization method awq is not supported for the current GPU. Minimum "
        "capability: 75. Current capability: 70.",
        "Set QUANTIZATION",
    ),
    ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0", "D"),
    ("RuntimeError: CUDA error: no kernel image is available for execution", "type of GPU"),
    ("AssertionError: 14 is not divisible by 4", "TENSOR_PARALLEL_SIZE"),
    ("ValueError: Please set trust_remote_code=True", "TRUST_REMOTE_CODE=true"),
    ("ModuleNotFoundError: No module named 'timm'", "PLUGINS=name==version"),
    ("ValueError: No valid attention backend found for A with B", "ATTENTION_BACKEND"),
    ("InductorError: InvalidCxxCompiler: No working C++ compiler found", "ENFORCE_EAGER=true"),
    ("OSError: [Errno 28] No space left on device", "disk"),
]


@pytest.mark.parametrize(("said", "word"), SAID, ids=[word for _, word in SAID])
def test_what_helps(said: str, word: str, tmp_path: Path) -> None:
    """The cause is told in one line, and after it the hint; vLLM's own advice is left out."""
    died = tmp_path / "died"
    died.write_text(said)
    told = sentence(RuntimeError("Engine core initialization failed. See root cause above."), died)
    hint = next(helps for _, helps in HINTS if told.endswith(helps))

    assert word in hint
    assert "\n" not in told
    assert "Try" not in told
    assert "root cause" not in told


@pytest.mark.parametrize(
    ("said", "better", "last"),
    [
        (
            "User-specified max_model_len (100000) is greater than the derived max_model_len "
            "(max_position_embeddings=8192 or model_max_length=None in model's config.json). To "
            "allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. More.",
            "MAX_MODEL_LEN=100000 must be at most 8192 for this model.",
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        ),
        (
            "Cannot find the config file for awq",
            "QUANTIZATION=awq is for a model whose weights were stored so",
            "unset QUANTIZATION",
        ),
    ],
)
def test_what_is_said_better(said: str, better: str, last: str, tmp_path: Path) -> None:
    """The limit of this model, or what a method needs, comes first, and a dangerous switch last."""
    told = sentence(ValueError(said), tmp_path / "absent")

    assert told.startswith(better)
    assert last in told.removeprefix(better)


def test_an_unknown_cause_is_told_without_a_hint(tmp_path: Path) -> None:
    """Options are written as variables and secrets hidden; where nothing helps, nothing is said."""
    died = tmp_path / "died"
    died.write_text("ValueError: --max-model-len, `dtype` and block_size, but token=abc, my_own")

    assert "ValueError: MAX_MODEL_LEN, DTYPE and BLOCK_SIZE, but token=(hidden), my_own." == (
        sentence(RuntimeError("See above"), died)
    )
    assert "See above." == sentence(RuntimeError("See above."), tmp_path / "absent")


def test_hints_name_variables_that_exist() -> None:
    """Every variable that a hint names is one that the worker reads."""
    named = {word for _, helps in HINTS for word in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", helps)}

    assert "MAX_MODEL_LEN" in named
    assert set() == named - set(by_variable()) - environment() - set(ALIASES)


def test_vllm_still_ends_its_processes_where_we_listen() -> None:
    """The names of vLLM that `engine_death` relies on are there, so that an upgrade tells."""
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.engine.utils import (
        CoreEngineLaunch,
        CoreEngineProcManager,
        wait_for_engine_startup,
    )
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

    from worker.engine.death import ENDS

    listened = (
        EngineCoreProc.run_engine_core,
        WorkerProc.worker_main,
        WorkerProc._execute_worker_rpc,
    )
    monitor = inspect.getsource(MultiprocExecutor.start_worker_monitor)

    assert {function.__name__ for function in listened} | {"monitor_workers"} == set(ENDS)
    assert all("logger.exception(" in inspect.getsource(function) for function in listened)
    assert "def monitor_workers(" in monitor
    assert "died unexpectedly (exit code: %s)" in monitor
    assert "unready_proc_handle" in WorkerProc.wait_for_ready.__code__.co_varnames
    assert "launch" in wait_for_engine_startup.__code__.co_varnames
    assert "engine_manager" in CoreEngineLaunch.__annotations__
    assert callable(CoreEngineProcManager.finished_procs)
