"""Where the result lines of a batch go, and what of them is there already."""

import contextlib
import fcntl
import gzip
import json
import os
import time
from typing import Any, BinaryIO, Protocol

from worker.bulk.ledger import Ledger, temporary
from worker.bulk.lines import Line
from worker.errors import RequestError
from worker.sentences import shown
from worker.storage.addresses import Web
from worker.storage.bucket import Bucket
from worker.storage.folder import Folder, failed

SHIP_S = 5.0  # between two parts of a bucket's results
SHIP_BYTES = 8_000_000
MERGED = 64  # parts that become one
LOCK_S = 10.0


class Target(Protocol):
    """What a batch writes; everything blocks, and is called by one thread at a time."""

    def open(self) -> tuple[int, int]:
        """Return how many results are there already, and how many failed. Raises RequestError."""

    def fresh(self, window: list[Line]) -> list[Line]:
        """Return the lines that have no result yet."""

    def add(self, results: list[dict[str, Any]]) -> None:
        """Keep results. Raises RequestError."""

    def finish(self, *, is_whole: bool) -> dict[str, Any]:
        """Put the results where they belong and say where that is. Raises RequestError."""

    def close(self) -> None: ...


class _InLedger:
    """A target that is a ledger at its heart."""

    ledger: Ledger
    name: str

    def fresh(self, window: list[Line]) -> list[Line]:
        return self.ledger.fresh(window)

    def add(self, results: list[dict[str, Any]]) -> None:
        try:
            self.ledger.add(results)
        except OSError as error:
            raise failed(error, self.name, "output") from None

    def close(self) -> None:
        self.ledger.close()


class Nowhere(_InLedger):
    """Results that the job's own output carries: only which lines there were is kept."""

    name = "output"

    def open(self) -> tuple[int, int]:
        self.ledger = Ledger(temporary(), is_gzip=False)
        return 0, 0

    def add(self, results: list[dict[str, Any]]) -> None:
        pass

    def finish(self, *, is_whole: bool) -> dict[str, Any]:  # noqa: ARG002
        return {}


class OnVolume(_InLedger):
    """A file of the volume, which grows line by line and is whole at any moment.

    A note beside it says whose it is: what has none, or another's, is not touched. The note is
    locked as long as the batch runs.
    """

    def __init__(self, folder: Folder, name: str, identity: str, *, is_ordered: bool) -> None:
        self.name = name
        self._folder, self._identity, self._is_ordered = folder, identity, is_ordered
        above, _, last = name.rpartition("/")
        self._beside = f"{above}/.{last}" if above else f".{last}"
        self._is_gzip = name.endswith(".gz")

    def open(self) -> tuple[int, int]:
        folder, name = self._folder, self.name
        self._note = note = folder.write(f"{self._beside}.batch", "output")
        try:
            self._lock()
            said = note.read()
            is_there = folder.has(name, "output")
            try:
                whose = json.loads(said)["batch"] if said else ""
            except (ValueError, KeyError, TypeError):
                whose, is_there = "", True  # a note that is none is somebody's file
            if is_there and whose != self._identity:
                raise RequestError(
                    f"output: {shown(name)} is there already, and is not this batch's: its input "
                    "is another one, or it was made by something else. Name another output.",
                    code=409,
                    param="output",
                )
            if not is_there:
                note.seek(0)
                note.truncate()
                note.write(json.dumps({"batch": self._identity}).encode())
                note.flush()
                os.fsync(note.fileno())
            opened = folder.write if is_there else folder.create
            self.ledger = Ledger(opened(name, "output"), is_gzip=self._is_gzip)
            return self.ledger.restore()
        except OSError as error:
            note.close()
            raise failed(error, name, "output") from None
        except RequestError:
            note.close()
            raise

    def _lock(self) -> None:
        until_s = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(self._note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise RequestError(
                        f"output: {shown(self.name)} is being written by another job.",
                        code=409,
                        param="output",
                    ) from None
                time.sleep(0.1)
            except OSError:  # a volume that has no locks
                return
            else:
                return

    def finish(self, *, is_whole: bool) -> dict[str, Any]:
        size = self.ledger.bytes
        if self._is_ordered and is_whole:
            part = f"{self._beside}.part"
            try:
                self._folder.remove(part, "output")
                with self._folder.create(part, "output") as file:
                    _write(self.ledger, file, is_ordered=True, is_gzip=self._is_gzip)
                    os.fsync(file.fileno())
                    size = file.tell()
                self._folder.replace(self.name, part, "output")
            except OSError as error:
                raise failed(error, self.name, "output") from None
        return {"output": self.name, "bytes": size}

    def close(self) -> None:
        super().close()
        self._note.close()


class InBucket(_InLedger):
    """An object, written at the end; until then parts of it, which a later job goes on with."""

    def __init__(self, bucket: Bucket, address: str, identity: str, *, is_ordered: bool) -> None:
        self.name = address
        self._bucket, self._identity, self._is_ordered = bucket, identity, is_ordered
        self._parts = f"{address}.parts/{identity}/"
        self._small: list[tuple[str, int]] = []  # with the byte that each begins at

    def open(self) -> tuple[int, int]:
        bucket = self._bucket
        note = bucket.note(self.name, "output")
        if note is not None and note != self._identity:
            raise RequestError(
                f"output: {shown(self.name)} is there already, and is not this batch's: its input "
                "is another one, or it was made by something else. Name another output.",
                code=409,
                param="output",
            )
        self.ledger = Ledger(temporary(), is_gzip=False)
        there = [self.name] if note is not None else []
        self._names = list(bucket.below(self._parts, "output"))
        for address in [*there, *self._names]:
            with temporary() as part:
                bucket.read(address, part, "output")
                self._take(part)
        self._shipped = self.ledger.bytes
        self._shipped_s = time.monotonic()
        return self.ledger.restore()

    def _take(self, part: BinaryIO) -> None:
        part.seek(0)
        plain = gzip.GzipFile(fileobj=part) if part.read(2) == b"\x1f\x8b" else part
        part.seek(0)
        some: list[bytes] = []
        for line in plain:
            if not self.ledger.has(line):
                some.append(line)
            if len(some) == 1000:
                self.ledger.add_lines(some)
                some = []
        self.ledger.add_lines(some)

    def add(self, results: list[dict[str, Any]]) -> None:
        super().add(results)
        waiting = self.ledger.bytes - self._shipped
        if waiting >= SHIP_BYTES or time.monotonic() - self._shipped_s >= SHIP_S:
            self._ship()

    def _ship(self) -> None:
        """Make a part of what is new, and one of many small ones."""
        if self.ledger.bytes == self._shipped:
            return
        self._small.append((self._put(self._shipped), self._shipped))
        self._shipped, self._shipped_s = self.ledger.bytes, time.monotonic()
        if len(self._small) >= MERGED:
            self._put(self._small[0][1])
            self._bucket.remove([name for name, _ in self._small], "output")
            self._names = [name for name in self._names if name not in dict(self._small)]
            self._small = []

    def _put(self, begin: int) -> str:
        # By the time, so that no two jobs write the same part.
        name = f"{self._parts}{time.time_ns():020}.jsonl"
        with temporary() as file:
            self.ledger.copy(file, begin)
            file.seek(0)
            self._bucket.write(name, file, "output")
        self._names.append(name)
        return name

    def finish(self, *, is_whole: bool) -> dict[str, Any]:
        if not is_whole:
            self._ship()
        with temporary() as file:
            is_gzip = self.name.endswith(".gz")
            _write(self.ledger, file, is_ordered=self._is_ordered, is_gzip=is_gzip)
            size = file.tell()
            file.seek(0)
            self._bucket.write(self.name, file, "output", note=self._identity)
        if is_whole and self._names:
            self._bucket.remove(self._names, "output")
        return {"output": self.name, "bytes": size}


class Put(_InLedger):
    """A signed address that takes the whole file at the end."""

    def __init__(self, web: Web, address: str, *, is_ordered: bool) -> None:
        self.name = address.partition("?")[0]
        self._web, self._address, self._is_ordered = web, address, is_ordered

    def open(self) -> tuple[int, int]:
        self.ledger = Ledger(temporary(), is_gzip=False)
        return 0, 0

    def finish(self, *, is_whole: bool) -> dict[str, Any]:  # noqa: ARG002
        with temporary() as file:
            is_gzip = self.name.endswith(".gz")
            _write(self.ledger, file, is_ordered=self._is_ordered, is_gzip=is_gzip)
            size = file.tell()
            file.seek(0)
            self._web.write(self._address, file, "output")
        return {"output": self.name, "bytes": size}


def _write(ledger: Ledger, file: BinaryIO, *, is_ordered: bool, is_gzip: bool) -> None:
    """Write a ledger's lines to a file, as its name wants them."""
    with contextlib.ExitStack() as stack:
        out: Any = file
        if is_gzip:
            out = stack.enter_context(gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6))
        if is_ordered:
            ledger.copy_ordered(out)
        else:
            ledger.copy(out)
    file.flush()
