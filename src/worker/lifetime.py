"""Every process has a parent: a child of this worker ends with the process that made it."""

import ctypes
import importlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def die_with_parent(parent: int | None = None) -> None:
    """Let the kernel kill this process when its parent ends in any way.

    `parent` is the parent's id, where `multiprocessing` does not know it yet. The kernel means the
    parent's thread that made this process: that has to be one which lasts.
    """
    if parent is None:
        made_by = multiprocessing.parent_process()
        assert made_by is not None
        parent = made_by.pid
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


class Child:
    """A function for `multiprocessing` to run in a process that dies with its parent.

    A spawned process does so from the moment it unpickles this, before it imports what the function
    needs: vLLM takes seconds.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        die_with_parent()
        return self._run(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (os.getpid(), pickle.dumps(self._run))


def _unpickle(parent: int, run: bytes) -> Any:
    die_with_parent(parent)
    # What it does for logs; Python's own spawning leaves out a main file called __main__.
    importlib.import_module("worker.__main__")
    return pickle.loads(run)
