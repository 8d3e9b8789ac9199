"""Why the engine did not start, in one sentence, with the variable that helps."""

import re
import signal
from pathlib import Path
from traceback import walk_tb
from typing import Any

from pydantic import ValidationError

from worker.engine import forked
from worker.engine.command_line import options
from worker.sentences import hide

LOADING = "while the weights were loaded"

_SMALLER = (
    "Take a larger GPU or more of them (TENSOR_PARALLEL_SIZE), a smaller or quantised model "
    "(QUANTIZATION), or lower GPU_MEMORY_UTILIZATION (on a CPU: VLLM_CPU_KVCACHE_SPACE), "
    "MAX_MODEL_LEN or MAX_NUM_SEQS."
)
# What helps, by what the cause says; the first that matches is told.
HINTS = (
    (
        r"available KV cache memory|auto-fit",
        "Lower MAX_MODEL_LEN, or raise GPU_MEMORY_UTILIZATION (on a CPU: VLLM_CPU_KVCACHE_SPACE).",
    ),
    (
        r"No available memory for the cache",
        "The weights leave no room: raise GPU_MEMORY_UTILIZATION (on a CPU: "
        "VLLM_CPU_KVCACHE_SPACE), or use more GPUs (TENSOR_PARALLEL_SIZE) or QUANTIZATION.",
    ),
    (
        r"less than (desired|the engine's budget|requested memory for kv)",
        "Lower GPU_MEMORY_UTILIZATION (on a CPU: VLLM_CPU_KVCACHE_SPACE, in GiB).",
    ),
    (r"(?i)out ?of ?memory|can't allocate memory|^MemoryError", _SMALLER),
    (
        r"SIGKILL",
        "Mostly the machine's memory (not the GPU's) ran out: take a machine with more of it, or a "
        "smaller or quantised model (QUANTIZATION); on a CPU lower VLLM_CPU_KVCACHE_SPACE.",
    ),
    (
        r"died .*exit code: None",  # asked before it could be known
        "A signal killed it: mostly memory ran out, or this machine's processor lacks instructions "
        "that this build of vLLM uses.",
    ),
    (r"SIGBUS", "Mostly /dev/shm is too small, or a file of the model is cut short."),
    (r"SIGILL", "This machine's processor lacks instructions that this build of vLLM uses."),
    (r"No space left", "The disk or /dev/shm is full: give the worker more room."),
    (
        r"No module named",
        "Build the image with that package: --build-arg PLUGINS=name==version.",
    ),
    (r"(?i)trust_remote_code", "Set TRUST_REMOTE_CODE=true if you trust the model's own code."),
    (r"Bfloat16 is only supported", "Set DTYPE=half, or take a newer type of GPU."),
    (r"no kernel image", "This build of vLLM has no code for this GPU: take another type of GPU."),
    (
        r"divisible|invalid device ordinal|available GPUs",
        "TENSOR_PARALLEL_SIZE must be at most the number of GPUs, and divide the model's heads.",
    ),
    (
        r"metadata was found for vllm|Invalid device string",  # of runai_streamer, fastsafetensors
        "This LOAD_FORMAT does not work with this build of vLLM or on this device: unset it.",
    ),
    (
        r"does not support ray",
        "Unset DISTRIBUTED_EXECUTOR_BACKEND: on one machine vLLM needs no Ray.",
    ),
    (
        rf"{LOADING}|model weights",
        "The model's files are incomplete or belong to another model: fetch them again, and check "
        "MODEL_NAME, REVISION and QUANTIZATION.",
    ),
    (
        r"(?i)quantiz|scaled_mm|marlin|cutlass",
        "Set QUANTIZATION (or DTYPE) to what this model and this device can do, or unset it.",
    ),
    (
        r"(?i)attention backend",
        "Unset ATTENTION_BACKEND, or set DTYPE or KV_CACHE_DTYPE to what this device can do.",
    ),
    (
        r"(?i)inductor|BackendCompiler|triton\.|compil|cuda ?graph",
        "With ENFORCE_EAGER=true nothing is compiled.",
    ),
)

# Where vLLM says less than it knows, or recommends what is dangerous first.
BETTER = (
    (
        r".*User-specified MAX_MODEL_LEN \((\d+)\) is greater than .*?=(\d+).*",
        r"MAX_MODEL_LEN=\1 must be at most \2 for this model. "
        "(VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 lifts that limit; beyond it answers may be nonsense, or "
        "end the engine.)",
    ),
    (
        r".*Cannot find the config file for ([\w-]+).*",
        r"QUANTIZATION=\1 is for a model whose weights were stored so, with a quantization_config "
        "in its config.json, and this model has none: take such a model, "
        "or unset QUANTIZATION; fp8_per_channel quantises any model while it is loaded.",
    ),
)


def sentence(error: BaseException, died: Path | None = None) -> str:
    """Return what went wrong, and the variable that helps, where one is known.

    `error` is what vLLM raised in this process; `died` the file in which the engine's processes
    note what ended them (`death.listen`).
    """
    said = died.read_text() if died and died.exists() else ""
    if not said:
        said = _killed(error) or _text(error)
    if "failed to be inspected" in said and forked.uninspected:
        said = f"The model's class cannot be imported: {_text(forked.uninspected[-1])}"
    if killed := re.search(r"proc (\S+) died .*\(exit code: -(\d+)\)", said):
        said = f"The process {killed[1]} was killed by {signal.Signals(int(killed[2])).name}"
    said = _with_variables(hide(said)).rstrip(".")
    for pattern, better in BETTER:
        if found := re.fullmatch(pattern, said):
            return found.expand(better)
    for pattern, helps in HINTS:
        if re.search(pattern, said):
            # Instead of vLLM's own advice, which is for its command line.
            cause = re.split(
                r"\. (?:Try|See|Please|If this|Decrease|Reduce|On the CPU|You can)\b", said
            )[0]
            return f"{cause}. {helps}"
    return f"{said}."


def _killed(error: BaseException) -> str:
    """Return which process of the engine a signal ended, where vLLM was waiting for it."""
    manager = getattr(local(error, "launch"), "engine_manager", None)
    for name, code in manager.finished_procs().items() if manager else ():
        if code < 0 and code != -signal.SIGTERM:  # which the others get because of the first
            return f"Engine proc {name} died (exit code: {code})"
    return ""


def local(error: BaseException, name: str) -> Any:
    """Return a local variable of a function that the error came through: vLLM keeps it nowhere."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return next((frame.f_locals[name] for frame in frames if name in frame.f_locals), None)


def _text(error: BaseException) -> str:
    """Return an error's text on one line: pydantic wraps vLLM's words in lines of its own."""
    if isinstance(error, ValidationError):
        return "; ".join(
            detail["msg"].removeprefix("Value error, ") for detail in error.errors()
        ).strip()
    return " ".join(str(error).split()) or type(error).__name__


def _with_variables(text: str) -> str:
    """Write vLLM's options as variables: `max_model_len` in quotes, bare, or with dashes."""

    def variable(found: re.Match[str]) -> str:
        option = options().get((found[1] or found[2] or found[3]).replace("-", "_"))
        return option.name if option else found[0]

    return re.sub(r"`([\w-]+)`|--([a-z][\w-]+)|\b([a-z0-9]+(?:_[a-z0-9]+)+)\b", variable, text)
