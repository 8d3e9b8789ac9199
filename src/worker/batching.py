"""Tokens leave in batches, because every batch is one post to RunPod and costs a round trip.

The first token leaves alone, so that the caller sees it at once; the sizes then grow, so that a
long answer takes few posts; a timer keeps a slow model's tokens from waiting for company; and
while a post is under way the next one fills up. Tokens may wait outside for their batch, where they
cost less than in here: they are held, and let go when they are wanted.
"""

import asyncio
import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class BatchSizes:
    """How many tokens leave together: `min`, `min·growth`, `min·growth²`, … up to `max`.

    A batch also leaves `max_delay_s` seconds after the one before it (the first: after its oldest
    token came), and takes along whatever else is queued, up to `max`. With `max_delay_s=0` both are
    off: a batch is exactly as large as its turn says. No batch exceeds `max_bytes`, unless a single
    item does.

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

    def __init__(self, sizes: BatchSizes, apart_s: Callable[[], float] = lambda: 0.0) -> None:
        """`apart_s` says how far apart batches have to be at the moment, beyond `max_delay_s`."""
        self._sizes = sizes
        self._apart_s = apart_s
        self._target: float = sizes.min  # floored only for use: 2, 3, 4.5, 6.75 is 2, 3, 4, 6
        self._queue: deque[tuple[T, int, int, float]] = deque()  # item, tokens, bytes, since
        self._ahead: tuple[T, int] | None = None
        self._tokens = 0
        self._bytes = 0
        self._held = 0  # tokens
        self._held_since = math.inf
        self._let_go_since = math.inf  # when what was let go, and is not put yet, had come
        self._holders: dict[Callable[[], None], None] = {}  # in order
        self.envelope_bytes = 0  # what every batch weighs beside its items
        self.sent_bytes = 0
        self.sent_tokens = 0
        self.sent_batches = 0
        self.waited_s = 0.0  # the oldest item of each batch, together
        self._closed = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._leave_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False  # `_leave_at` has passed

    def put(self, item: T, tokens: int, size_bytes: int) -> None:
        """Queue an item; after `close` it is ignored, since an abort may cross the last output."""
        if self._closed:
            return
        since = asyncio.get_running_loop().time()
        if tokens:
            since, self._let_go_since = min(since, self._let_go_since), math.inf
            self._look_at_the_clock()
        self._queue.append((item, tokens, size_bytes, since))
        self._tokens += tokens
        self._bytes += size_bytes
        self._wake_if_due()

    def put_ahead(self, item: T, size_bytes: int) -> None:
        """Let a sign of life leave at once and alone. It counts nothing; the latest one counts."""
        if self._closed:
            return
        self._ahead = (item, size_bytes)
        self._wake_if_due()

    def hold(self, tokens: int, let_go: Callable[[], None]) -> None:
        """Know of so many tokens that wait outside, where they cost less.

        `let_go` is called as soon as they are wanted, at once or later, and has to have them put.
        """
        if not self._holders:
            self._held_since = asyncio.get_running_loop().time()
        self._held += tokens
        self._holders[let_go] = None
        self._look_at_the_clock()
        self._let_go_if_wanted()

    def close(self, error: BaseException | None = None) -> None:
        """End the stream; `next` raises the error once everything queued has left.

        Only the first call counts.
        """
        if self._closed:
            return
        self._closed = True
        self._error = error
        self._wake_if_due()

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
            or (self._is_late and self._tokens > 0)
        )

    def _wake_if_due(self) -> None:
        if self._waiter is not None and self._is_due() and not self._waiter.done():
            self._waiter.set_result(None)

    def _let_go_if_wanted(self) -> None:
        known = self._tokens + self._held
        if self._waiter is None:
            is_wanted = known >= self._sizes.max  # more than that no batch may have
        else:
            is_wanted = self._is_late or known >= int(self._target)
        if is_wanted or not self._sizes.max_delay_s:
            holders, self._holders = self._holders, {}
            self._let_go_since = min(self._let_go_since, self._held_since)
            self._held, self._held_since = 0, math.inf
            for let_go in holders:
                let_go()

    async def _wait(self) -> None:
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._let_go_if_wanted()
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # else we are cancelled, and the next call waits already
                self._waiter = None

    def _look_at_the_clock(self) -> None:
        """Start the timer where there are tokens for the next batch and none runs."""
        if self._timer is not None or self._is_late or not self._sizes.max_delay_s:
            return
        loop = asyncio.get_running_loop()
        if self._leave_at is None:
            self._leave_at = loop.time() + self._delay_s()
        if loop.time() >= self._leave_at:
            self._is_late = True
        else:
            self._timer = loop.call_at(self._leave_at, self._is_time)

    def _is_time(self) -> None:
        self._timer = None
        self._is_late = True
        if self._waiter is not None:
            self._let_go_if_wanted()
            self._wake_if_due()

    def _delay_s(self) -> float:
        return max(self._sizes.max_delay_s, self._apart_s())

    def _take(self) -> list[T]:
        sizes = self._sizes
        enough = sizes.max if sizes.max_delay_s else int(self._target)
        batch: list[T] = []
        batch_tokens = batch_bytes = 0
        now = asyncio.get_running_loop().time()
        self.waited_s += now - self._queue[0][3]
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
        self.sent_batches += 1
        if batch_tokens:
            self._target = min(self._target * sizes.growth, sizes.max)
            self._begin_next(now)
        return batch

    def _begin_next(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_late = False
        # What a full batch leaves behind has waited already.
        oldest = next((since for _, tokens, _, since in self._queue if tokens), now)
        self._leave_at = min(oldest, self._held_since) + self._delay_s()
        if self._tokens or self._held:
            self._look_at_the_clock()
