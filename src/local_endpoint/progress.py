"""One line that says what a starting worker does."""

import shutil
import time
from collections.abc import Callable


class Progress:
    """Redrawn in place on a terminal, elsewhere a new line for each phase.

    ``starting worker: loading weights 12 s``
    """

    def __init__(self, write: Callable[[str], None], *, is_tty: bool) -> None:
        self._write = write
        self._is_tty = is_tty
        self._started_s = time.monotonic()
        self._shown: str | None = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_tty:
            self._write("\r\x1b[K")

    def phase(self, phase: str) -> None:
        seconds = f"{time.monotonic() - self._started_s:.0f} s"
        line = f"starting worker: {phase} {seconds}" if phase else f"starting worker {seconds}"
        if self._is_tty:
            if line != self._shown:
                width = shutil.get_terminal_size().columns - 1
                self._write(f"\r\x1b[K{line[:width]}")
            self._shown = line
        elif phase != self._shown:
            self._write(line + "\n")
            self._shown = phase
