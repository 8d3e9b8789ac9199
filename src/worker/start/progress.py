"""The start: its phases, said aloud, and the watch that ends a start which stands still."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

import psutil

from worker.logs import say

# What counts as getting on, over all processes: bytes read, written, or taken into memory. The
# watch's own reading stays far below it.
STEP_BYTES = 16_000_000
ALIVE_S = 7.0  # at most twice this without a line


class Startup:
    """What the start is doing, and how long each phase of it took."""

    def __init__(self, alive_s: float = ALIVE_S) -> None:
        self._phases: list[tuple[str, float]] = []
        self._alive_s = alive_s
        self._ready = threading.Event()

    def phase(self, name: str) -> None:
        """Say what the start does now; the local endpoint shows these lines."""
        self._phases.append((name, time.monotonic()))
        say(f"phase: {name}")
        if len(self._phases) == 1:
            threading.Thread(target=self._say_alive, name="sign of life", daemon=True).start()
        if name == "ready":
            self._ready.set()

    def _say_alive(self) -> None:
        """Say now and then that a long phase goes on: without a terminal vLLM draws no bars."""
        while not self._ready.wait(self._alive_s):
            name, since_s = self._phases[-1]
            if (now_s := time.monotonic()) - since_s >= self._alive_s:
                say(f"still {name}, after {now_s - since_s:.0f} s")

    def took(self) -> dict[str, float]:
        """Return how long each phase took, in seconds, up to the one that runs now."""
        return {name: end_s - start_s for (name, start_s), (_, end_s) in pairwise(self._phases)}

    def report(self) -> str:
        """Return the same as a sentence."""
        took = self.took()
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items())
        return f"The start took {sum(took.values()):.1f} s: {phases}."

    @contextmanager
    def watched(self, timeout_s: float, give_up: Callable[[str], object]) -> Iterator[None]:
        """Call `give_up` on a thread when nothing gets on for `timeout_s` seconds in the block.

        A slow start is left alone as long as it begins new phases, or its processes read, write or
        take memory; `give_up` gets a sentence that names its last phase, and has to end the
        process: the block's end waits for it.
        """
        over = threading.Event()

        def watch() -> None:
            seen, since_s = (len(self._phases), _work()), time.monotonic()
            while not over.wait(min(timeout_s / 60, 10)):
                now = (len(self._phases), _work())
                if now[0] != seen[0] or abs(now[1] - seen[1]) >= STEP_BYTES:
                    seen, since_s = now, time.monotonic()
                elif time.monotonic() - since_s > timeout_s:
                    give_up(
                        f"The start stood still for {timeout_s:g} s while {self._phases[-1][0]} "
                        "(STARTUP_TIMEOUT_S)."
                    )
                    return

        watching = threading.Thread(target=watch, name="startup", daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()


def _work() -> int:
    """Return the bytes that this process and its children have read, written and hold."""
    total = 0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            io = process.io_counters()
            total += io.read_chars + io.write_chars + process.memory_info().rss
    return total
