"""What the logits processor tells the worker, past the engine: scores, and why a request failed.

The processor runs in the engine's process, and an engine output has no room for its words. So a
request that asks for them names a file in shared memory: the processor appends, the worker reads.
"""

import contextlib
import fcntl
import itertools
import os
import subprocess
import tempfile
from array import array
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from worker.errors import RequestError

_LENGTH_BYTES = 4
# A folder, and shared memory that is named after it.
_REMOVE = 'rm -rf "$0" "$0"-*'


class Report:
    """One file, read on the worker's side. Use it as a `with` block, which removes the file.

    A file that is gone or cannot be made means that shared memory is full: RequestError (503).
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "Report":
        try:
            self.path.touch()
        except OSError:
            raise _full() from None
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)

    def read(self) -> list[dict[str, Any]]:
        """Return the records that came since the last call, and give their memory back."""
        try:
            if not self.path.stat().st_size:
                return []
            with self.path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # `append` holds it for one write
                content = file.read()
                file.truncate(0)
        except FileNotFoundError:
            raise _full() from None
        records = []
        at = 0
        while at < len(content):
            start = at + _LENGTH_BYTES
            at = start + int.from_bytes(content[at:start], "big")
            records.append(msgspec.msgpack.decode(content[start:at]))
        return records


def _full() -> RequestError:
    return RequestError("The worker's shared memory is full. Send the request again.", code=503)


def refuse_failure(records: Iterable[dict[str, Any]]) -> None:
    """Raise RequestError where the chain reports that it failed."""
    for record in records:
        if "failure" in record:
            raise RequestError(str(record["failure"]), type="invalid_parameter")


def unpack(packed: list[bytes]) -> "tuple[array[int], array[float]]":
    """Return the ids and the values that belong to them, best first."""
    return array("i", packed[0]), array("f", packed[1])


def values(records: Iterable[dict[str, Any]], name: str) -> dict[int, dict[str, list[Any]]]:
    """Return what a report holds of `scores` or `logits`, by step; impossible tokens left out."""
    found: dict[int, dict[str, list[Any]]] = {}
    for record in records:
        if name in record:
            pairs = [pair for pair in zip(*unpack(record[name]), strict=True) if isfinite(pair[1])]
            found[record["step"]] = {
                "token_ids": [token_id for token_id, _ in pairs],
                "values": [value for _, value in pairs],
            }
    return found


def append(path: str, record: dict[str, Any]) -> None:
    """Add a record in one write; called in the engine's processes, and never raises.

    Every rank of a tensor-parallel engine appends the same, so a reader takes the last.
    """
    try:
        content = msgspec.msgpack.encode(record)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            whole = len(content).to_bytes(_LENGTH_BYTES, "big") + content
            if os.write(handle, whole) != len(whole):
                raise OSError("short write")
        finally:
            os.close(handle)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)  # needs no space, and its absence is read as a failure


class Folder:
    """Where the files of this worker's processes live; it goes with the worker, also by SIGKILL.

    A folder that is not locked belongs to a worker that is gone, whose container went as a whole:
    the next one that shares the memory removes it. Process ids say nothing there.
    """

    def __init__(self, base: Path = Path("/dev/shm")) -> None:
        if not os.access(base, os.W_OK):
            base = Path(tempfile.gettempdir())
        for left in base.glob("worker-vllm-????????"):
            with contextlib.suppress(OSError):
                os.close(_lock(left))
                subprocess.run(["sh", "-c", _REMOVE, left], check=False)
        unlocked = Path(tempfile.mkdtemp(prefix=".worker-vllm-", dir=base))
        self._locked = _lock(unlocked)
        self.path = unlocked.rename(base / unlocked.name[1:])  # only now do others find it
        # The shell reads a line, or to the end of the processes that hold the pipe: this one, and
        # the SDK's ping, which is forked and ends with it.
        self._remover = subprocess.Popen(
            ["sh", "-c", f"read -r _; {_REMOVE}", self.path],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._numbers = itertools.count()

    def report(self) -> Report:
        return Report(self.path / str(next(self._numbers)))

    def remove(self) -> None:
        self._remover.communicate(b"\n")
        os.close(self._locked)


def _lock(folder: Path) -> int:
    """Lock a folder for as long as this process lives; OSError when another has it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle
