"""Tokens leave in batches, because every batch is one post to RunPod and costs a round trip.

The first token leaves alone, so that the caller sees it at once; the sizes then grow, so that a
long answer takes few posts; a timer keeps a slow model's tokens from waiting for company; and
while a post is under way the next one fills up.
"""

import asyncio
import json
import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class BatchSizes:
    """How many tokens leave together: `min`, `min·growth`, `min·growth²`, … up to `max`.

    A batch also leaves when its oldest token has waited `max_delay_s` seconds, and takes along
    whatever else is queued, up to `max`. With `max_delay_s=0` both are off: a batch is exactly as
    large as its turn says. No batch exceeds `max_bytes`, unless a single item does.

    Raises ValueError with a sentence for sizes that make no sense.
    """

    min: int = 1
    max: int = 50
    growth: float = 3.0
    max_delay_s: float = 0.1
    max_bytes: int = 256 * 1024

    def __post_init__(self) -> None:
        sizes = (("smallest batch", self.min), ("largest batch", self.max))
        for name, value in (*sizes, ("batches' byte limit", self.max_bytes)):
            if type(value) is not int or value < 1:
                raise ValueError(f"the {name} must be a whole number of at least 1, not {value!r}")
        for name, number, least in (("growth", self.growth, 1), ("delay", self.max_delay_s, 0)):
            if not _is_number(number) or number < least:
                raise ValueError(
                    f"the batches' {name} must be a number of at least {least}, not {number!r}"
                )
        if self.min > self.max:
            raise ValueError(
                f"the smallest batch ({self.min}) must not exceed the largest ({self.max})"
            )


# What is not streamed leaves in one piece, at its end.
WHOLE = BatchSizes(min=10**12, max=10**12, max_delay_s=0, max_bytes=10**12)


def weight(value: Any) -> int:
    """Return how many bytes a value has as RunPod's SDK writes it: JSON with spaces, as UTF-8."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", errors="replace"))


class Outbox(Generic[T]):
    """A queue between one producer and one consumer, on one event loop, that hands out batches.

    Items leave whole, once, and in order. An item of 0 tokens (role, usage, DONE) counts nothing
    and waits for company: it rides with the token after it, or with the one right before it.
    What is put ahead waits for nothing.
    """

    def __init__(self, sizes: BatchSizes) -> None:
        self._sizes = sizes
        self._target: float = sizes.min  # floored only for use: 2, 3, 4.5, 6.75 is 2, 3, 4, 6
        self._queue: deque[tuple[T, int, int, float]] = deque()  # item, tokens, bytes, put at
        self._ahead: tuple[T, int] | None = None
        self._tokens = 0
        self._bytes = 0
        self.envelope_bytes = 0  # what every batch weighs beside its items
        self.sent_bytes = 0
        self.sent_tokens = 0
        self.waited_s = 0.0  # the oldest item of each batch, together
        self._closed = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def put(self, item: T, tokens: int, size_bytes: int) -> None:
        """Queue an item; after `close` it is ignored, since an abort may cross the last output."""
        if self._closed:
            return
        now = asyncio.get_running_loop().time()
        self._queue.append((item, tokens, size_bytes, now))
        self._tokens += tokens
        self._bytes += size_bytes
        if self._waiter is None:
            return
        if self._is_due():
            _wake(self._waiter)
        elif tokens and self._timer is None:
            self._start_timer(self._waiter, oldest=now)

    def put_ahead(self, item: T, size_bytes: int) -> None:
        """Let a sign of life leave at once and alone. It counts nothing; the latest one counts."""
        if self._closed:
            return
        self._ahead = (item, size_bytes)
        if self._waiter is not None:
            _wake(self._waiter)

    def close(self, error: BaseException | None = None) -> None:
        """End the stream; `next` raises the error once everything queued has left.

        Only the first call counts.
        """
        if self._closed:
            return
        self._closed = True
        self._error = error
        if self._waiter is not None:
            _wake(self._waiter)

    async def next(self) -> list[T] | None:
        """Wait until a batch is due and take it; None, from then on always, at the end.

        Raises the error given to `close`, from then on always. Cancelling it loses nothing.
        """
        if not self._is_due():
            await self._wait()
        if self._ahead is not None:
            (item, size_bytes), self._ahead = self._ahead, None
            self.sent_bytes += size_bytes
            return [item]
        if self._queue:
            return self._take()
        if self._error is not None:
            raise self._error
        return None

    def _is_due(self) -> bool:
        return (
            self._closed
            or self._ahead is not None
            or self._tokens >= int(self._target)
            or self._bytes >= self._sizes.max_bytes
        )

    async def _wait(self) -> None:
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._timer = None
        oldest = next((put_at for _, tokens, _, put_at in self._queue if tokens), None)
        if oldest is not None:
            self._start_timer(waiter, oldest)
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # else we are cancelled, and the next call waits already
                self._waiter = None
                if self._timer is not None:
                    self._timer.cancel()

    def _start_timer(self, waiter: asyncio.Future[None], oldest: float) -> None:
        if self._sizes.max_delay_s:
            leave_at = oldest + self._sizes.max_delay_s
            self._timer = asyncio.get_running_loop().call_at(leave_at, _wake, waiter)

    def _take(self) -> list[T]:
        sizes = self._sizes
        enough = sizes.max if sizes.max_delay_s else int(self._target)
        batch: list[T] = []
        batch_tokens = batch_bytes = 0
        self.waited_s += asyncio.get_running_loop().time() - self._queue[0][3]
        while self._queue:
            item, tokens, size_bytes, _ = self._queue[0]
            if batch and batch_bytes + size_bytes > sizes.max_bytes:
                break
            is_full = batch_tokens >= enough or batch_tokens + tokens > sizes.max
            if tokens and batch_tokens and is_full:
                break
            self._queue.popleft()
            batch.append(item)
            batch_tokens += tokens
            batch_bytes += size_bytes
        self._tokens -= batch_tokens
        self._bytes -= batch_bytes
        self.sent_bytes += batch_bytes + self.envelope_bytes
        self.sent_tokens += batch_tokens
        if batch_tokens:
            self._target = min(self._target * sizes.growth, sizes.max)
        return batch


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
