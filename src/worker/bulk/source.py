"""Where the lines of a batch come from."""

import gzip
import hashlib
import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Protocol

from worker.bulk import lines
from worker.bulk.lines import Line
from worker.errors import RequestError

WINDOW = 1000  # lines that are looked at together
WINDOW_BYTES = 16_000_000


class Source(Protocol):
    """What a batch reads; everything blocks, and is called by one thread at a time.

    `number` lines of it were read, and `share` is how much of it that is, from 0 to 1.
    """

    number: int
    share: float

    def window(self) -> list[Line]:
        """Return the next lines; none at the end. Raises RequestError."""

    def close(self) -> None: ...


class Given:
    """Lines that the job itself holds."""

    def __init__(self, given: Sequence[Any]) -> None:
        self._given = given
        self.number = 0
        self.share = 0.0

    def window(self) -> list[Line]:
        some = self._given[self.number : self.number + WINDOW]
        found = [lines.read(self.number + i, line) for i, line in enumerate(some, 1)]
        self.number += len(some)
        self.share = self.number / len(self._given) if self._given else 1.0
        return found

    def close(self) -> None:
        pass


class InFile:
    """Lines of a JSONL file, also one that is compressed with gzip."""

    def __init__(self, file: BinaryIO, name: str, max_line_bytes: int) -> None:
        """`name` is what a sentence calls it."""
        self._raw, self._name, self._most = file, name, max_line_bytes
        self._size = file.seek(0, 2)
        file.seek(0)
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        self._file: Any = gzip.GzipFile(fileobj=file) if is_gzip else file
        self.number = 0
        self.share = 0.0

    def window(self) -> list[Line]:
        found: list[Line] = []
        taken = 0
        try:
            while len(found) < WINDOW and (taken < WINDOW_BYTES or not found):
                content = self._file.readline(self._most + 1)
                if not content:
                    break
                self.number += 1
                size = len(content)
                if size > self._most and not content.endswith(b"\n"):
                    found.append(self._too_long(content))
                elif content.strip():
                    found.append(lines.read(self.number, content))
                taken += size
        except (EOFError, gzip.BadGzipFile, OSError, ValueError) as error:
            if not found:
                raise RequestError(
                    f"input: {self._name} breaks off or is damaged after line {self.number:,}: "
                    f"{error}. The lines before it are done.",
                    param="input",
                ) from None
        self.share = self._raw.tell() / self._size if self._size and found else 1.0
        return found

    def _too_long(self, content: bytes) -> Line:
        size = len(content)
        while content and not content.endswith(b"\n"):
            content = self._file.readline(1 << 20)
            size += len(content)
        return lines.unread(
            self.number,
            f"The line has {size:,} bytes, and this worker takes {self._most:,} (MAX_LINE_MB).",
        )

    def close(self) -> None:
        self._raw.close()


def identity(source: str | Sequence[Any]) -> str:
    """Return what tells one batch's input from another's: its name, or what it holds."""
    if isinstance(source, str):
        content = source.partition("?")[0].encode()  # without what signs it
    else:
        content = json.dumps(source).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def file_name(address: str) -> str:
    """Return the last part of a path or an address."""
    return PurePosixPath(address.partition("?")[0]).name
