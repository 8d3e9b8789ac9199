"""What the chain writes in the engine's process, and what the worker reads of it."""

import contextlib
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from waiting import wait_until
from worker.errors import RequestError
from worker.processor import reports
from worker.processor.reports import Folder, Report


def test_records_arrive_in_order_and_once(tmp_path: Path) -> None:
    """Each call of `read` returns what was appended since the last one, values unchanged."""
    with Report(tmp_path / "report") as report:
        path = str(report.path)
        seen = [report.read()]
        for step in (0, 1):
            reports.append(path, {"tag": 3, "step": step, "scores": [b"\x00\xff", b""]})
            seen.append(report.read())
        reports.append(path, {"failure": "née 🦙"})
        reports.append(path, {"lost": 4})
        seen.append(report.read())
        seen.append(report.read())

    assert [
        [],
        [{"tag": 3, "step": 0, "scores": [b"\x00\xff", b""]}],
        [{"tag": 3, "step": 1, "scores": [b"\x00\xff", b""]}],
        [{"failure": "née 🦙"}, {"lost": 4}],
        [],
    ] == seen


def test_nothing_is_lost_between_two_processes(tmp_path: Path) -> None:
    """A reader that is as fast as it can be sees each record once, whole and in order."""
    steps = list(range(10_000))
    with Report(tmp_path / "report") as report:
        writer = multiprocessing.get_context("spawn").Process(
            target=_write, args=(str(report.path), steps)
        )
        writer.start()
        seen: list[dict[str, Any]] = []
        while writer.is_alive():
            seen += report.read()
        seen += report.read()

    assert steps == [record["step"] for record in seen]


def _write(path: str, steps: list[int]) -> None:
    for step in steps:
        reports.append(path, {"step": step, "padding": "x" * (step % 2000)})


def test_what_was_read_takes_no_memory(tmp_path: Path) -> None:
    """A report that is read as it comes stays small, however much passes through it."""
    with Report(tmp_path / "report") as report:
        sizes = []
        for step in range(100):
            reports.append(str(report.path), {"step": step, "padding": "x" * 1000})
            sizes.append(report.path.stat().st_size)
            report.read()

        assert (1, 0) == (len(set(sizes)), report.path.stat().st_size)


def test_nothing_is_left(tmp_path: Path) -> None:
    """The block removes the file, and a writer that comes late makes no new one."""
    with Report(tmp_path / "report") as report:
        reports.append(str(report.path), {"step": 0})
    reports.append(str(report.path), {"step": 1})

    assert [] == list(tmp_path.iterdir())


def test_nothing_is_left_of_a_failed_block(tmp_path: Path) -> None:
    """An error or a cancellation inside the block removes the file too."""
    with pytest.raises(ZeroDivisionError), Report(tmp_path / "report"):
        raise ZeroDivisionError

    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [10_000_000, 3_000_000])
def test_full_memory_is_a_failure(volume: Path, size: int) -> None:
    """A record that finds no room, or room for a part of it, ends in a sentence, not in silence."""
    with Report(volume / "report") as report:
        reports.append(str(report.path), {"step": 0, "scores": [bytes(size), b""]})
        with pytest.raises(RequestError) as caught:
            report.read()

    assert (503, "ServiceUnavailableError") == (caught.value.code, caught.value.type)
    assert "shared memory is full" in caught.value.message
    assert [] == list(volume.iterdir())


def test_memory_that_is_full_before_does_not_stop_a_report(volume: Path) -> None:
    """In memory that others filled a report opens, its records fail, and nothing is left."""
    with (volume / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))
    with Report(volume / "report") as report:
        reports.append(str(report.path), {"failure": "the reason"})
        with pytest.raises(RequestError, match="shared memory is full"):
            report.read()

    assert ["filler"] == [path.name for path in volume.iterdir()]


def test_a_removed_file_is_a_failure(tmp_path: Path) -> None:
    """Where somebody removed the file the caller hears of it, and leaving is no error."""
    with Report(tmp_path / "report") as report:
        report.path.unlink()
        with pytest.raises(RequestError, match="shared memory is full"):
            report.read()


def test_no_room_for_a_file_is_a_failure(tmp_path: Path) -> None:
    """Where no file can be made the caller gets the same sentence, without a path."""
    with pytest.raises(RequestError) as caught, Report(tmp_path / "gone" / "report"):
        pass

    assert "The worker's shared memory is full. Send the request again." == caught.value.message


def test_a_failure_is_the_callers() -> None:
    """The first failure among the records becomes the error of the job."""
    with pytest.raises(RequestError) as caught:
        reports.refuse_failure([{"step": 0}, {"failure": "first"}, {"failure": "second"}])

    assert ("first", 400, "invalid_parameter") == (
        caught.value.message,
        caught.value.code,
        caught.value.type,
    )
    reports.refuse_failure([{"step": 0}, {"lost": 1}])


def test_values_are_strict_json() -> None:
    """Of a step the finite values remain, best first; of a step that comes twice the last."""
    packed = [
        struct.pack("4i", 7, 8, 9, 3),
        struct.pack("4f", 1.5, -2.0, float("-inf"), float("nan")),
    ]
    records = [
        {"step": 0, "scores": [struct.pack("1i", 1), struct.pack("1f", 0.5)]},
        {"step": 0, "scores": packed},
        {"step": 1, "logits": packed},
        {"lost": 3},
    ]

    assert {0: {"token_ids": [7, 8], "values": [1.5, -2.0]}} == reports.values(records, "scores")


def test_the_folder_is_ones_own() -> None:
    """Reports have names of their own in a folder that only this user can read, gone at the end."""
    folder = Folder()
    try:
        with folder.report() as one, folder.report() as other:
            home = one.path.parent

            assert one.path != other.path
            assert 0o700 == home.stat().st_mode & 0o777
    finally:
        folder.remove()

    assert not home.exists()


OWNER = """
import os
from worker.processor.reports import Folder
folder = Folder()
folder.report().path.touch()
folder.path.with_name(f'{folder.path.name}-shared').touch()
print(folder.path, folder._remover.pid, flush=True)
"""


@contextlib.contextmanager
def owner(then: str) -> Iterator[tuple[subprocess.Popen[str], Path, int]]:
    """A process with a folder: it, the folder, and the process that removes the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER + then], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        path, remover = process.stdout.readline().split()
        try:
            yield process, Path(path), int(remover)
        finally:
            process.kill()


@pytest.mark.parametrize(
    "then", ["os._exit(1)", "os.kill(os.getpid(), 9)", "raise SystemExit(0)", "os.abort()"]
)
def test_the_folder_goes_with_its_worker(then: str) -> None:
    """However a process ends, its folder is gone, though nothing of it is left to do so."""
    with owner(then) as (process, path, _):
        process.wait(10)
        wait_until(lambda: not [*path.parent.glob(f"{path.name}*")], timeout_s=2)


def test_the_folder_of_a_container_that_is_gone() -> None:
    """A container that ends as a whole leaves its folder; the next worker clears that, not others'.

    Process ids do not tell whose a folder is: here all owners but one have the same.
    """
    mine = Folder()
    with owner("import time; time.sleep(60)") as (process, path, remover):
        os.kill(remover, signal.SIGKILL)
        Folder().remove()

        assert path.exists()

        process.kill()
        process.wait(10)
        other = Folder()

        assert [] == [*path.parent.glob(f"{path.name}*")]
        assert mine.path != other.path
        assert mine.path.exists()
    for folder in (mine, other):
        folder.remove()
