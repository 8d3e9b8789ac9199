"""What ended the engine's processes, noted where it happens: this runs inside them.

vLLM 0.32 runs its engine in a child process, and its workers in children of that one. Where one
fails, its parent hears only that it did; the reason is a traceback in the log. So each of these
processes begins in a function of ours, which listens to what vLLM logs when it ends. And each dies
with its parent: vLLM's own processes would go on loading, or wait, when that was killed.
"""

import contextlib
import logging
import os
import uuid
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from vllm.utils.torch_utils import OMP_NUM_THREADS_SET_BY_VLLM
from vllm.v1.engine import coordinator, core
from vllm.v1.executor import multiproc_executor

from worker.engine import measured, refusals
from worker.engine.causes import LOADING, local
from worker.lifetime import Child

# As vLLM made them: a forked child inherits what `listen` puts in their place.
_run_engine_core = core.EngineCoreProc.run_engine_core
_worker_main = multiproc_executor.WorkerProc.worker_main
_run_coordinator = coordinator.DPCoordinatorProc.run_coordinator

# The functions of vLLM that log the error which ends a process.
ENDS = ("run_engine_core", "worker_main", "_execute_worker_rpc", "monitor_workers")


def listen(path: Path, refused: Path) -> None:
    """Let the engine that is started next write what ends it into the file `path`.

    The first process that fails makes the file; those that fail after it do so because of it.
    What it says of grammars goes into the file `refused`.
    """
    core.EngineCoreProc.run_engine_core = staticmethod(Child(partial(_engine_core, path, refused)))
    coordinator.DPCoordinatorProc.run_coordinator = staticmethod(Child(_coordinator))


def _engine_core(path: Path, refused: Path, *args: Any, **kwargs: Any) -> None:
    """Run vLLM's engine; in the child process."""
    if OMP_NUM_THREADS_SET_BY_VLLM in os.environ:  # after torch had read it, in a forked process
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    _note_errors(path)
    refusals.listen(str(refused))
    measured.listen()
    # Where its workers find each other: by a file there, and by shared memory named after that.
    multiproc_executor.get_file_store_init_method = lambda: (
        f"file://{path.parent}/{path.parent.name}-{uuid.uuid4().hex}"
    )
    multiproc_executor.WorkerProc.worker_main = staticmethod(Child(partial(_worker, path)))
    _run_engine_core(*args, **kwargs)


def _worker(path: Path, *args: Any, **kwargs: Any) -> None:
    """Run one of vLLM's workers; in a child of the child."""
    _note_errors(path)
    measured.listen()
    _worker_main(*args, **kwargs)


def _coordinator(*args: Any, **kwargs: Any) -> None:
    """Run what shares out requests among data-parallel engines; in a child process."""
    _run_coordinator(*args, **kwargs)


def _note_errors(path: Path) -> None:
    def note(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR and record.funcName in ENDS:
            with contextlib.suppress(OSError), path.open("x") as file:  # it exists: not the first
                file.write(_noted(record))
        return True

    # Filters, because vLLM takes handlers away whenever it configures its loggers.
    for module in (core, multiproc_executor):
        logging.getLogger(module.__name__).addFilter(note)


def _noted(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return record.getMessage()
    if worker := local(error, "unready_proc_handle"):  # it ended without a word of its own
        return f"Worker proc {worker.proc.name} died (exit code: {worker.proc.exitcode})"
    said, root = _line(error), error
    while root.__cause__ is not None:
        root = root.__cause__
    if str(root) not in str(error):
        said = f"{said} ({_line(root)})"
    loading = any(frame.name == "load_weights" for frame in extract_tb(error.__traceback__))
    return f"{said} ({LOADING})" if loading else said


def _line(error: BaseException) -> str:
    """Return an error's type and first line; the second too, where the first ends in a colon."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    if not lines:  # an assertion without a text: its source says more than nothing
        lines = [frame.line or "" for frame in extract_tb(error.__traceback__)[-1:]]
    count = 2 if lines and lines[0].endswith(":") else 1
    return f"{type(error).__name__}: {' '.join(lines[:count])}".rstrip(".: ")
