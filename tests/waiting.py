"""The one way in which these tests wait for a state."""

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    timeout_s: float = 45.0,
    explain: Callable[[], object] = lambda: "it did not come",
) -> T:
    """Return what `condition` returns as soon as that is true; at the deadline the test fails."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, explain()
        time.sleep(0.01)
    return value


def is_alive(process: psutil.Process) -> bool:
    """Say whether a process still does anything; a dead one stays listed until it is reaped."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
