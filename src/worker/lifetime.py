"""Every process has a parent: a child of this worker ends with the process that made it.

The engine's are made by Python's fork server, which imports vLLM while the worker does.
"""

import ctypes
import importlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>
_begun_with: dict[str, str] = {}  # the fork server's environment


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


def begin_fork_server(module: str, folder: Path) -> None:
    """Start the fork server, which imports `module` now; that one has to call `be_fork_server`.

    What is made by it gets this process's environment, as it is then. Its socket is in `folder`,
    which somebody has to remove when this process is killed.
    """
    _begun_with.update(os.environ)
    multiprocessing.current_process()._config["tempdir"] = str(folder)  # type: ignore[attr-defined]
    multiprocessing.set_forkserver_preload([module])
    forkserver.ensure_running()


def be_fork_server() -> None:
    """End with the worker, which Python's fork server outlives as long as it has children.

    A SIGTERM to the whole group is for the worker to act upon.
    """
    die_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def fork_server() -> int | None:
    """Return the fork server's process id, if there is one."""
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def changed_since() -> set[str]:
    """Return the variables that are others than when the fork server began."""
    return {name for name, _ in os.environ.items() ^ _begun_with.items()}


class Child:
    """A function for `multiprocessing` to run in a process that dies with its parent.

    A process that is not forked from this one does so from the moment it unpickles this, before it
    imports what the function needs: vLLM takes seconds.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        die_with_parent()
        return self._run(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        method = getattr(get_spawning_popen(), "method", None)
        parent = fork_server() if method == "forkserver" else os.getpid()
        return _unpickle, (parent, dict(os.environ), pickle.dumps(self._run))


def _unpickle(parent: int | None, environ: Mapping[str, str], run: bytes) -> Any:
    die_with_parent(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if environ != dict(os.environ):  # a process's title is written over what it began with
        os.environ.clear()
        os.environ.update(environ)
    # What it does for logs; Python's own spawning leaves out a main file called __main__.
    importlib.import_module("worker.__main__")
    return pickle.loads(run)
