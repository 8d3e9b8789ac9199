"""START HERE. A job comes from RunPod's SDK, is read and answered, and leaves in batches.

    job["input"] ─ request.read ─ NativeCall | RouteCall ─ Outbox ─ yield

A task of its own answers each job into an outbox, and the generator that the SDK consumes only
drains it: so an answer can be stopped at any moment, also while a batch is being posted.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Protocol

from worker import request
from worker.batching import WHOLE, BatchSizes, Outbox
from worker.errors import EngineDied, RequestError, too_large, unforeseen
from worker.facts import Limits
from worker.record import Record, Usage


class Call(Protocol):
    """One job in its dialect, `native` or `openai`."""

    async def answer(self, outbox: Outbox[Any]) -> None:
        """Put what the job asks for into the outbox. Raises RequestError; cancelling aborts."""

    def join(self, items: list[Any]) -> Any:
        """Make one yield of a batch."""

    def failure(self, error: RequestError) -> list[Any]:
        """Return what is yielded when the job fails, in order."""

    @property
    def usage(self) -> Usage:
        """Say how many tokens it took, as far as is known."""


class Handler:
    """Answers jobs.

    `running` holds the tasks of those that the SDK has not seen the end of, `lost` is the number of
    those that the engine's death has failed. Once they are told, the process ends.
    """

    linger_s = 0.0

    def __init__(
        self,
        dialect: Callable[[request.Request], Call],
        sizes: BatchSizes,
        max_result_bytes: int,
        limits: Limits | None = None,
        max_posts_per_second: float = math.inf,
    ) -> None:
        self._dialect = dialect
        self._sizes = sizes
        self._max_result_bytes = max_result_bytes
        self._limits = limits or Limits()
        self._max_posts_per_second = max_posts_per_second
        self._streaming: set[asyncio.Task[Any]] = set()
        self.running: set[asyncio.Task[Any]] = set()
        self.lost = 0
        self.is_closed = False

    async def handle(self, job: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Answer one job: yield its batches, and an error, if there is one, as the last.

        This is the generator that RunPod's SDK (1.12, 2.0) consumes: each yield is one post, and
        the next one is asked for when that post has been answered.
        """
        if self.is_closed:  # no answer: the platform hands the job to another worker
            await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        try:
            asked, refused = request.read(job, self._sizes, self._limits), None
        except RequestError as error:
            asked, refused = request.outline(job, self._sizes), error
        call = self._dialect(asked)
        sizes = asked.sizes if asked.stream else WHOLE
        outbox: Outbox[Any] = Outbox(sizes, self._apart_s)
        if asked.stream:
            self._streaming.add(task)
            task.add_done_callback(self._streaming.discard)
        with Record(asked, call) as record:
            answering = begin(_refuse(refused) if refused else call.answer(outbox), outbox)
            # The SDK stops a job by cancelling its task, mostly while this generator is suspended
            # at a yield: then nothing in here runs, and only the task's callback hears of it.
            task.add_done_callback(lambda _: answering.cancel())
            try:
                while (items := await outbox.next()) is not None:
                    if outbox.sent_bytes > self._max_result_bytes:
                        raise too_large(outbox.sent_bytes, self._max_result_bytes)
                    value = call.join(items)
                    record.posted(outbox)
                    yield value
            except RequestError as error:
                record.failed(error)
                self.lost += isinstance(error, EngineDied)
                for value in call.failure(error):
                    yield value
            finally:
                answering.cancel()

    def _apart_s(self) -> float:
        """Return how far apart a stream's posts have to be, so that all together are not many."""
        return len(self._streaming) / self._max_posts_per_second


async def _refuse(error: RequestError) -> None:
    raise error


def begin(answer: Coroutine[Any, Any, None], outbox: Outbox[Any]) -> asyncio.Task[None]:
    """Answer into the outbox, which is closed at the end; cancelling the task aborts."""
    answering = asyncio.create_task(answer)
    answering.add_done_callback(lambda ended: outbox.close(_reason(ended)))
    return answering


def _reason(ended: asyncio.Task[None]) -> RequestError | None:
    """Return why an answer ended, as the caller is told it; None for a good end."""
    if ended.cancelled():
        error: BaseException | None = None if ended.cancelling() else asyncio.CancelledError()
    else:
        error = ended.exception()
    if error is None or isinstance(error, RequestError):
        return error
    return unforeseen(error)
