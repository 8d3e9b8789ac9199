"""The result lines of a batch: a file that grows, and which lines are in it.

A line counts once it is on disk. What a killed worker left behind is read again, up to the last
whole line. The index is a private database of SQLite's, which leaves memory where it is large.
"""

import gzip
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from worker.bulk import lines
from worker.bulk.lines import Line

CHUNK = 1 << 20  # bytes


class Ledger:
    """Everything here blocks, and is called by one thread at a time."""

    def __init__(self, file: BinaryIO, *, is_gzip: bool) -> None:
        """`file` is open to read and write; what it holds are results."""
        self._file = file
        self._is_gzip = is_gzip
        # On disk beyond a few megabytes, and gone with the process.
        self._index = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._index.execute(
            "CREATE TABLE lines (key TEXT PRIMARY KEY, number INT, at INT, length INT, seen INT)"
            " WITHOUT ROWID"
        )
        self._index.execute("PRAGMA journal_mode = OFF")
        self.bytes = 0  # of the whole lines in the file, as they are on disk
        self._at = 0  # the same before they are compressed

    def restore(self) -> tuple[int, int]:
        """Read what is there, cut off what is not whole; return how many lines, and failed ones."""
        self._file.seek(0)
        self.bytes = self._at = 0
        count = failed = 0
        for content, end in _members(self._file) if self._is_gzip else _lines(self._file):
            try:
                for line in content.splitlines(keepends=True):
                    key, number, is_failed = lines.known(line)
                    self._note(key, number, len(line))
                    count += 1
                    failed += is_failed
            except ValueError:
                break
            self.bytes = end
        os.ftruncate(self._file.fileno(), self.bytes)
        return count, failed

    def _note(self, key: str, number: int, length: int) -> None:
        """Note a line that is in the file."""
        values = {"key": key, "number": number, "at": self._at, "length": length}
        self._at += length
        self._index.execute(
            "INSERT INTO lines VALUES (:key, :number, :at, :length, 0)"
            " ON CONFLICT DO UPDATE SET at = :at, length = :length",
            values,
        )

    def fresh(self, window: Iterable[Line]) -> list[Line]:
        """Return the lines that have no result yet; one whose id came before has an error."""
        found = []
        for line in window:
            known = self._row(line.key)
            if known and known[1]:
                line = lines.repeated(line)
                known = self._row(line.key)
            self._index.execute(
                "INSERT INTO lines VALUES (?, ?, NULL, NULL, 1)"
                " ON CONFLICT DO UPDATE SET seen = 1, number = excluded.number",
                (line.key, line.number),
            )
            if not known or known[0] is None:
                found.append(line)
        return found

    def _row(self, key: str) -> Any:
        return self._index.execute("SELECT at, seen FROM lines WHERE key = ?", (key,)).fetchone()

    def add(self, results: Iterable[dict[str, Any]]) -> None:
        """Write result lines to the end and to disk. Raises OSError; then none of them counts."""
        written = [msgspec.json.encode(result) + b"\n" for result in results]
        self.add_lines(written)

    def add_lines(self, written: list[bytes]) -> None:
        """Write result lines as they are."""
        content = b"".join(written)
        content = gzip.compress(content, 6) if self._is_gzip else content
        file = self._file.fileno()
        try:
            written_bytes = 0
            while written_bytes < len(content):
                rest = memoryview(content)[written_bytes:]
                written_bytes += os.pwrite(file, rest, self.bytes + written_bytes)
            os.fsync(file)
        except OSError:
            os.ftruncate(file, self.bytes)
            raise
        self.bytes += len(content)
        for line in written:
            key, number, _ = lines.known(line)
            self._note(key, number, len(line))

    def has(self, line: bytes) -> bool:
        """Say whether the result of such a line is there."""
        known = self._row(lines.known(line)[0])
        return bool(known and known[0] is not None)

    def copy(self, file: BinaryIO, begin: int = 0) -> None:
        """Copy what is in the file, as it is there, from a byte of it on."""
        while piece := os.pread(self._file.fileno(), CHUNK, begin):
            file.write(piece)
            begin += len(piece)

    def copy_ordered(self, file: BinaryIO) -> None:
        """Write the lines in the order of the input."""
        rows = self._index.execute(
            "SELECT at, length FROM lines WHERE at IS NOT NULL ORDER BY number"
        )
        with temporary() as unpacked:
            plain = self._file
            if self._is_gzip:
                plain = unpacked
                self._file.seek(0)
                for content, _ in _members(self._file):
                    plain.write(content)
                plain.flush()
            file.writelines(os.pread(plain.fileno(), length, at) for at, length in rows)

    def close(self) -> None:
        self._index.close()
        self._file.close()


def temporary() -> BinaryIO:
    """Return a file without a name, which is gone when it is closed or the process ends."""
    return tempfile.TemporaryFile()


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Return the whole lines of a file, each with where it ends."""
    end = 0
    for line in file:
        if not line.endswith(b"\n"):
            return
        end += len(line)
        yield line, end


def _members(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Return what the whole members of a gzip file hold, each with where it ends."""
    end, rest = 0, b""
    while rest or (rest := file.read(CHUNK)):
        member, content, size = zlib.decompressobj(wbits=31), [], 0
        while not member.eof:
            rest = rest or file.read(CHUNK)
            if not rest:
                return
            try:
                content.append(member.decompress(rest))
            except zlib.error:
                return
            size += len(rest) - len(member.unused_data)
            rest = member.unused_data
        end += size
        yield b"".join(content), end
