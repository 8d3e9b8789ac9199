"""The end of a worker: its processes go."""

import contextlib
import os
import sys
from typing import NoReturn

import psutil

DELIVERY_S = 5.0
KILL_S = 2.0


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
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
