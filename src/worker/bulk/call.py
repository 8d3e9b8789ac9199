"""A batch: its lines go through the same calls as single jobs, as many at once as there is room."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any

from worker import request
from worker.batching import Outbox, weight
from worker.bulk import lines, opening
from worker.bulk.lines import Line
from worker.bulk.source import Source
from worker.bulk.target import Target
from worker.call import Call, whole
from worker.engine.places import Patient, Places, behind
from worker.errors import EngineDied, RequestError, unforeseen
from worker.facts import Limits
from worker.metrics import LINES
from worker.openai.replies import in_dialect
from worker.record import Usage
from worker.request import BatchRequest, Request, RouteRequest
from worker.storage.stores import Stores

TELL_S = 10.0
NEAR_END_S = 15.0  # a progress update that comes after the result would reopen the job
LOOK_S = 0.02  # between two looks for room that others have left
UNWRITTEN = 1000  # results that wait to be written
REPLY_BYTES = 2000  # what a stream's last piece weighs at most

log = logging.getLogger("worker")
Tell = Callable[[str, dict[str, Any]], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Bulk:
    """What every batch works with; `tell` is RunPod's progress update."""

    dialect: Callable[[Request], Call]
    places: Places
    stores: Stores
    limits: Limits
    reserved: int  # places that are left to other jobs
    max_line_bytes: int
    max_result_bytes: int
    tell: Tell


@dataclass
class Count:
    """How far a batch is."""

    began_s: float = field(default_factory=time.monotonic)
    found: int = 0  # results that were there when it began
    done: int = 0  # of this run
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def said(self) -> dict[str, Any]:
        took_s = time.monotonic() - self.began_s
        return {
            "done": self.found + self.done,
            "failed": self.failed,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "tokens_per_s": round(self.output_tokens / took_s, 1),
        }


class _FullError(Exception):
    """The job's own output has no room for another line."""


class BatchCall:
    """One batch: `answer` reads, feeds and keeps, and puts what the job itself carries."""

    def __init__(self, asked: BatchRequest, bulk: Bulk) -> None:
        self._asked = asked
        self._bulk = bulk
        most = max(bulk.places.number - bulk.reserved, bulk.places.number // 2, 1)
        self._most = min(most, asked.concurrency or most)
        self._count = Count()
        self._running: dict[int, tuple[int, Patient]] = {}  # by line, with its sequences
        self._freed = asyncio.Event()
        self._results: list[dict[str, Any]] = []  # that wait to be written
        self._has_results = asyncio.Event()
        self._is_fed = False
        self._sent_bytes = REPLY_BYTES
        self._update: asyncio.Task[None] | None = None

    @property
    def usage(self) -> Usage:
        return Usage(self._count.prompt_tokens, self._count.output_tokens)

    def join(self, items: list[Any]) -> Any:
        """Make one yield: lines, and at the end what became of the batch."""
        found = [item for item in items if "batch" not in item]
        summary: dict[str, Any] = next((item for item in items if "batch" in item), {})
        return ({"lines": found} if self._asked.stream else {}) | summary

    def failure(self, error: RequestError) -> list[Any]:
        return [error.told()]

    async def answer(self, outbox: Outbox[Any]) -> None:
        """Answer every line. Raises RequestError where the batch itself cannot go on.

        Whatever ends it, results that have come are kept; cancelling leaves a valid file of them.
        """
        asked, bulk, loop = self._asked, self._bulk, asyncio.get_running_loop()
        # Two threads: results are written while lines are read.
        reader, writer = ThreadPoolExecutor(1, "batch-in"), ThreadPoolExecutor(1, "batch-out")
        self._read = partial(loop.run_in_executor, reader)
        self._write = partial(loop.run_in_executor, writer)
        over = Event()
        target: Target | None = None
        source: Source | None = None
        try:
            source = await self._read(opening.source, asked, bulk.stores, bulk.max_line_bytes, over)
            target = await self._write(opening.target, asked, bulk.stores)
            self._count.found, self._count.failed = await self._write(target.open)
            if self._count.found:
                log.info("batch %s goes on: %d lines are done", asked.job_id, self._count.found)
            why = await self._run(source, target, outbox)
            place = await self._write(partial(target.finish, is_whole=True))
            summary = self._count.said() | place | ({"ended": why} if why else {})
            outbox.put({"batch": summary}, 1, weight(summary))
        except asyncio.CancelledError:
            # On the thread alone: a second cancelling would end whatever is awaited here.
            if target is not None:
                writer.submit(target.add, self._results)
                writer.submit(partial(target.finish, is_whole=False))
            raise
        except (RequestError, OSError):
            if target is not None and self._results:
                with suppress(RequestError, OSError):
                    await self._write(target.add, self._results)
            raise
        finally:
            over.set()
            for opened, thread in ((source, reader), (target, writer)):
                if opened is not None:
                    thread.submit(opened.close)
                thread.shutdown(wait=False)

    async def _run(self, source: Source, target: Target, outbox: Outbox[Any]) -> str:
        """Feed every line and keep every result. Returns why that ended early, if it did."""
        telling = asyncio.create_task(self._tell_progress(source))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep(target))
                await self._feed(source, target, group, outbox)
                self._is_fed = True
                self._has_results.set()
        except ExceptionGroup as errors:
            error = _first(errors)
            if not isinstance(error, _FullError):
                raise error from None
            return (
                f"The job's output holds {self._bulk.max_result_bytes:,} bytes at most "
                "(MAX_RESULT_MB). Send the other lines again, or name an output."
            )
        finally:
            telling.cancel()
            if self._update is not None and not self._update.done():
                await asyncio.wait({self._update}, timeout=TELL_S)
        return ""

    async def _feed(
        self, source: Source, target: Target, group: asyncio.TaskGroup, outbox: Outbox[Any]
    ) -> None:
        """Begin every line as soon as there is room, and wait until all are answered."""
        window = await self._read(source.window)
        while window:
            following = self._read(source.window)
            fresh = await self._write(target.fresh, window)
            for line in sorted(fresh, key=lambda line: line.begins):
                await self._begin(line, group, outbox)
            try:
                window = await following
            except RequestError:
                await self._all_answered()
                raise
        await self._all_answered()

    async def _all_answered(self) -> None:
        while self._running:
            self._freed.clear()
            await self._freed.wait()

    async def _begin(self, line: Line, group: asyncio.TaskGroup, outbox: Outbox[Any]) -> None:
        job_id = f"{self._asked.job_id[:200]}-{line.number}"
        try:
            if line.error is not None:
                raise line.error
            job = {"id": job_id, "input": line.given}
            asked = request.read(job, self._asked.sizes, self._bulk.limits)
            if isinstance(asked, BatchRequest):
                raise RequestError("A line of a batch is no batch.")
        except Exception as error:
            told = error if isinstance(error, RequestError) else unforeseen(error)
            await self._has_room(0)
            self._put(lines.refused(line, job_id, told), outbox)
            return
        sequences = asked.sequences
        await self._has_room(sequences)
        patient = Patient()
        self._running[line.number] = sequences, patient
        group.create_task(self._answer(line, asked, patient, outbox))

    async def _has_room(self, sequences: int) -> None:
        while not self._may_begin(sequences):
            self._freed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._freed.wait()
        await asyncio.sleep(0)  # others have their turn on the loop

    def _may_begin(self, sequences: int) -> bool:
        """Say whether so many more sequences leave room to other jobs; the first one always."""
        if len(self._results) >= UNWRITTEN:
            return False
        if not sequences or not self._running:
            return True
        places = self._bulk.places
        own = sum(number for number, _ in self._running.values())
        # Of what the engine has, all but what this batch has given it.
        others = places.taken - sum(patient.sequences for _, patient in self._running.values())
        return own + max(others, 0) + sequences <= self._most and not places.is_busy

    async def _answer(
        self, line: Line, asked: Request, patient: Patient, outbox: Outbox[Any]
    ) -> None:
        try:
            with behind(patient):
                call = self._bulk.dialect(asked)
                body = await whole(call)
            result = lines.answered(line, asked.job_id, body)
            self._count.prompt_tokens += call.usage.prompt or 0
            self._count.output_tokens += call.usage.output or 0
        except EngineDied:
            raise
        except Exception as error:
            told = error if isinstance(error, RequestError) else unforeseen(error)
            if isinstance(asked, RouteRequest):
                told = in_dialect(asked.path, told)
            result = lines.refused(line, asked.job_id, told)
        finally:
            del self._running[line.number]
            self._freed.set()
        self._put(result, outbox)

    def _put(self, result: dict[str, Any], outbox: Outbox[Any]) -> None:
        """Keep a result: in the job's own output, or where the batch writes."""
        if not self._asked.stream:
            self._results.append(result)
            self._has_results.set()
            return
        size = weight(result)
        if self._sent_bytes + size > self._bulk.max_result_bytes:
            raise _FullError
        self._sent_bytes += size
        outbox.put(result, 1, size)
        self._done([result])

    async def _keep(self, target: Target) -> None:
        """Write results, as many at once as have come meanwhile."""
        while self._results or not self._is_fed:
            if not self._results:
                self._has_results.clear()
                await self._has_results.wait()
                continue
            some, self._results = self._results, []
            # Once begun it is not given up, whatever ends this task.
            await asyncio.shield(self._write(target.add, some))
            self._done(some)
            self._freed.set()

    def _done(self, results: list[dict[str, Any]]) -> None:
        failed = sum(result["error"] is not None for result in results)
        self._count.done += len(results)
        self._count.failed += failed
        LINES.labels("completed").inc(len(results) - failed)
        LINES.labels("failed").inc(failed)

    async def _tell_progress(self, source: Source) -> None:
        """Say how far the batch is, in the log and to RunPod."""
        count = self._count
        while True:
            await asyncio.sleep(TELL_S)
            said: dict[str, Any] = count.said()
            took_s = time.monotonic() - count.began_s
            left_s = 0.0
            if count.done and source.share:
                lines_left = source.number / source.share - count.found - count.done
                left_s = max(lines_left, 0.0) * took_s / count.done
                said["left_s"] = round(left_s)
            shown = " ".join(f"{name}={value}" for name, value in said.items())
            log.info("batch %s: %s", self._asked.job_id, shown, extra={"job": self._asked.job_id})
            if left_s > NEAR_END_S:
                self._update = asyncio.create_task(self._bulk.tell(self._asked.job_id, said))
                await asyncio.wait({self._update})


def _first(errors: BaseException) -> Exception:
    """Return what went wrong first in a group of tasks."""
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    assert isinstance(errors, Exception)
    return errors
