"""The end of a worker: the engine died, or the start failed, and its processes go."""

import asyncio
import contextlib
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

import psutil

if TYPE_CHECKING:  # the command line imports this room before it may import vLLM
    from worker.engine.server import Engine
    from worker.handler import Handler

DELIVERY_S = 5.0
KILL_S = 2.0

log = logging.getLogger("worker")


async def watch(engine: "Engine", handler: "Handler") -> None:
    """Wait for the engine's death, let the running jobs fail, and end this process."""
    await engine.died()
    handler.is_closed = True
    log.error("The engine died. Failing %d jobs and leaving.", len(handler.running))
    # On a thread: whatever holds the loop up, the process ends.
    late = threading.Timer(DELIVERY_S, leave, (1, engine.children))
    late.daemon = True
    late.start()
    while handler.running:  # a job's task ends when the SDK has delivered its error
        await asyncio.wait(set(handler.running))
    engine.reports.remove()
    leave(1, engine.children)


def leave(code: int, children: tuple[psutil.Process, ...] = ()) -> NoReturn:
    """End this process and every child now.

    The engine's own children are named, because they are no longer ours once their parent died.
    An orderly exit would wait for vLLM's threads, and the SDK's ping process would live on.
    """
    ours = {*children, *psutil.Process().children(recursive=True)}
    for process in ours:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(ours, timeout=KILL_S)
    for stream in (sys.stdout, sys.stderr):
        # A signal's handler may come while the stream is being written.
        with contextlib.suppress(RuntimeError, OSError):
            stream.flush()
    os._exit(code)
