"""START HERE. A job comes from RunPod's SDK, is read and answered, and leaves in batches.

    job["input"] ─ request.read ─ NativeCall | RouteCall ─ Outbox ─ yield

A task of its own answers each job into an outbox, and the generator that the SDK consumes only
drains it: so an answer can be stopped at any moment, also while a batch is being posted.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from worker import request
from worker.batching import WHOLE, BatchSizes, Outbox
from worker.call import Call, begin, refuse
from worker.errors import EngineDied, RequestError, too_large
from worker.facts import Limits
from worker.record import Record
from worker.storage.stores import refuse_large


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
        keep: Callable[[Mapping[str, Any], Any, RequestError], Any] = refuse_large,
    ) -> None:
        """`keep` keeps a job's large result elsewhere and says where, or raises the error."""
        self._dialect = dialect
        self._sizes = sizes
        self._max_result_bytes = max_result_bytes
        self._limits = limits or Limits()
        self._max_posts_per_second = max_posts_per_second
        self._keep = keep
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
            answering = begin(refuse(refused) if refused else call.answer(outbox), outbox)
            # The SDK stops a job by cancelling its task, mostly while this generator is suspended
            # at a yield: then nothing in here runs, and only the task's callback hears of it.
            task.add_done_callback(lambda _: answering.cancel())
            try:
                while (items := await outbox.next()) is not None:
                    value = call.join(items)
                    if outbox.sent_bytes > self._max_result_bytes:
                        large = too_large(outbox.sent_bytes, self._max_result_bytes)
                        keep = refuse_large if asked.stream else self._keep
                        value = await asyncio.to_thread(keep, job, value, large)
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
