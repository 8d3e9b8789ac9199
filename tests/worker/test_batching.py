"""Batches on a hand-driven clock: an event loop that turns the clock on instead of sleeping."""

import asyncio
import itertools
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import uvloop

from worker.batching import BatchSizes, Outbox


class HandDrivenClock(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("everyone waits, and no timer runs")
            self.now += timeout
        return ready


class HandDrivenLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = HandDrivenClock()
        self.timers: list[asyncio.TimerHandle] = []
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now

    def call_at(self, when: float, callback: Any, *args: Any, **kwargs: Any) -> Any:
        self.timers.append(super().call_at(when, callback, *args, **kwargs))
        return self.timers[-1]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=HandDrivenLoop) as runner:
        return runner.run(main)


def now() -> float:
    return asyncio.get_running_loop().time()


class Item(NamedTuple):
    name: int | str
    tokens: int = 1
    size_bytes: int = 200


@dataclass(frozen=True)
class Batch:
    items: list[Item]
    asked_at: float
    left_at: float

    @property
    def tokens(self) -> int:
        return sum(item.tokens for item in self.items)

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)

    @property
    def names(self) -> list[int | str]:
        return [item.name for item in self.items]


Gap = float | Callable[[], float] | None


async def pause(gap: Gap) -> None:
    """None: not even other tasks run in between."""
    if gap is not None:
        await asyncio.sleep(gap() if callable(gap) else gap)


async def produce(
    outbox: Outbox[Item], items: Iterable[Item], gap: Gap, put_at: dict[Item, float]
) -> float:
    for item in items:
        outbox.put(item, item.tokens, item.size_bytes)
        put_at[item] = now()
        await pause(gap)
    outbox.close()
    return now()


async def consume(outbox: Outbox[Item], post: Gap) -> list[Batch]:
    batches: list[Batch] = []
    while True:
        asked_at = now()
        items = await outbox.next()
        if items is None:
            return batches
        batches.append(Batch(items, asked_at, now()))
        await pause(post)


async def stream(
    sizes: BatchSizes, items: Iterable[Item], gap: Gap = None, post: Gap = None
) -> tuple[list[Batch], dict[Item, float], float]:
    """A producer and a consumer side by side: the batches, when items came, when it closed."""
    outbox: Outbox[Item] = Outbox(sizes)
    put_at: dict[Item, float] = {}
    consumer = asyncio.create_task(consume(outbox, post))
    await asyncio.sleep(0)
    closed_at = await produce(outbox, items, gap, put_at)
    return await consumer, put_at, closed_at


def tokens(count: int, **fields: int) -> list[Item]:
    return [Item(number, **fields) for number in range(count)]


def answer(count: int) -> list[Item]:
    """An OpenAI stream: what counts nothing stands before and after the tokens."""
    return [Item("role", 0), *tokens(count), Item("usage", 0), Item("DONE", 0)]


def queued(sizes: BatchSizes, items: Iterable[Item]) -> Outbox[Item]:
    outbox: Outbox[Item] = Outbox(sizes)
    for item in items:
        outbox.put(item, item.tokens, item.size_bytes)
    return outbox


EXACT = BatchSizes(max_delay_s=0)

# producer's pause, consumer's pause: None is "all at once", 0 is "turn by turn"
SPEEDS: list[tuple[Gap, Gap]] = list(
    itertools.product([None, 0, 0.0003, 0.01, 0.07, 0.3], [None, 0, 0.002, 0.15, 0.7])
)


# --- exact sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "post"), SPEEDS)
def test_exact_sizes(gap: Gap, post: Gap) -> None:
    """With the timer off, 128 tokens leave as 1, 3, 9, 27, 50, 38, whoever is slow."""
    batches, _, _ = run(stream(EXACT, tokens(128), gap, post))

    assert [1, 3, 9, 27, 50, 38] == [batch.tokens for batch in batches]


@pytest.mark.parametrize(
    ("smallest", "growth", "largest", "expected"),
    [
        (2, 1.5, 10, [2, 3, 4, 6, 10, 10, 5]),
        (1, 1.5, 4, [1, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 1]),
        (1, 1.25, 3, [1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1]),
        (1, 1, 50, [1] * 40),
        (7, 1, 50, [7, 7, 7, 7, 7, 5]),
        (1, 3.0, 1, [1] * 40),
        (50, 3.0, 50, [40]),
        (3, 1e300, 20, [3, 20, 17]),
    ],
)
@pytest.mark.parametrize(("gap", "post"), [(None, None), (0.01, None), (0.01, 0.5)])
def test_fractional_growth(
    smallest: int, growth: float, largest: int, expected: list[int], gap: Gap, post: Gap
) -> None:
    """The size grows as a fraction and is floored only for use."""
    sizes = BatchSizes(smallest, largest, growth, max_delay_s=0)
    batches, _, _ = run(stream(sizes, tokens(40), gap, post))

    assert expected == [batch.tokens for batch in batches]


def test_exact_sizes_after_close() -> None:
    """With the timer off, a stream that ended before anyone asked is cut at the same sizes."""

    async def main() -> list[Batch]:
        outbox = queued(EXACT, answer(45))
        outbox.close()
        return await consume(outbox, None)

    batches = run(main())

    assert [1, 3, 9, 27, 5] == [batch.tokens for batch in batches]
    assert ["role", 0] == batches[0].names
    assert ["usage", "DONE"] == batches[-1].names[-2:]


# --- nothing is lost ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 13, 49, 50, 51, 200])
@pytest.mark.parametrize("delay", [0, 0.1])
def test_every_length(count: int, delay: float) -> None:
    """However long the answer, role, tokens, usage and DONE arrive once and in order."""
    for gap, post in SPEEDS:
        batches, _, _ = run(stream(BatchSizes(max_delay_s=delay), answer(count), gap, post))

        assert answer(count) == [item for batch in batches for item in batch.items]


def grid() -> list[tuple[BatchSizes, Gap, Gap, int]]:
    sizes = [
        BatchSizes(),
        BatchSizes(2, 10, 1.5),
        BatchSizes(1, 1),
        BatchSizes(50, 50, 1.0, max_delay_s=0.03),
        BatchSizes(3, 7, 1.1, max_delay_s=2.0),
        BatchSizes(1, 20, 2.0, max_bytes=1000),
    ]
    sizes += [replace(each, max_delay_s=0) for each in sizes]
    combinations: list[tuple[BatchSizes, Gap, Gap]] = [
        (each, gap, post) for each in sizes for gap, post in SPEEDS
    ]
    rng = random.Random(2)
    for seed in range(200):
        largest = rng.randint(1, 60)
        drawn = BatchSizes(
            rng.randint(1, largest),
            largest,
            rng.choice([1.0, 1.1, 1.5, 3.0, 10.0]),
            rng.choice([0, 0.01, 0.1, 1.0]),
            rng.choice([1, 700, 5000, 256 * 1024]),
        )
        # a generator of its own: a test that runs alone sees the same pauses
        seeds = (seed, seed + 1000)
        pauses = [jitter(random.Random(each), rng.choice([0.001, 0.02, 0.2])) for each in seeds]
        combinations.append((drawn, *pauses))
    return [(*each, seed) for seed, each in enumerate(combinations)]


def jitter(rng: random.Random, mean: float) -> Callable[[], float]:
    return lambda: rng.choice([0, 0, rng.expovariate(1 / mean)])


def mixed(seed: int) -> list[Item]:
    """Outputs of one token, merged ones, events that count nothing, small and large."""
    rng = random.Random(seed)
    return [
        Item(number, rng.choice([0, 1, 1, 1, 1, 1, 2, rng.randint(1, 30)]), rng.randint(0, 400))
        for number in range(rng.choice([1, 60, 120]))
    ]


@pytest.mark.parametrize(("sizes", "gap", "post", "seed"), grid())
def test_every_size_and_speed(sizes: BatchSizes, gap: Gap, post: Gap, seed: int) -> None:
    """For every size and speed nothing is lost or reordered, and every batch has its reason."""
    items = mixed(seed)
    batches, put_at, closed_at = run(stream(sizes, items, gap, post))

    assert items == [item for batch in batches for item in batch.items]

    waiting, target = list(items), float(sizes.min)
    leave_at: float | None = None
    for batch in batches:
        assert batch.items
        counting = [item for item in batch.items if item.tokens]
        assert batch.tokens <= sizes.max or len(counting) == 1
        assert batch.size_bytes <= sizes.max_bytes or len(batch.items) == 1
        check_moment(batch, waiting, int(target), sizes, put_at, closed_at, leave_at)
        waiting = waiting[len(batch.items) :]
        check_fill(batch, waiting, int(target), sizes, put_at)
        if counting:
            target = min(target * sizes.growth, sizes.max)
            behind = next((put_at[item] for item in waiting if item.tokens), batch.left_at)
            leave_at = min(behind, batch.left_at) + sizes.max_delay_s


def check_moment(
    batch: Batch,
    waiting: list[Item],
    target: int,
    sizes: BatchSizes,
    put_at: dict[Item, float],
    closed_at: float,
    leave_at: float | None,
) -> None:
    """It left neither later nor sooner than the first reason to leave."""

    def reached(limit: int, amounts: list[int]) -> float:
        totals = zip(waiting, itertools.accumulate(amounts), strict=True)
        return next((put_at[item] for item, total in totals if total >= limit), closed_at)

    reasons = [
        closed_at,
        reached(target, [item.tokens for item in waiting]),
        reached(sizes.max_bytes, [item.size_bytes for item in waiting]),
    ]
    oldest = next((item for item in waiting if item.tokens), None)
    if sizes.max_delay_s and oldest is not None:
        came = put_at[oldest]
        reasons.append(came + sizes.max_delay_s if leave_at is None else max(came, leave_at))
    assert max(batch.asked_at, min(reasons)) == pytest.approx(batch.left_at, abs=1e-6)


def check_fill(
    batch: Batch, waiting: list[Item], target: int, sizes: BatchSizes, put_at: dict[Item, float]
) -> None:
    """What had come by then and stayed behind had no room."""
    if not waiting or put_at[waiting[0]] >= batch.left_at:
        return
    behind = waiting[0]
    no_room = batch.size_bytes + behind.size_bytes > sizes.max_bytes
    if behind.tokens:
        no_room |= batch.tokens + behind.tokens > sizes.max
        no_room |= sizes.max_delay_s == 0 and batch.tokens >= target
    assert no_room


# --- the timer ------------------------------------------------------------------------------------


def test_timer_slow_model() -> None:
    """At 7 tokens a second each leaves as it comes, once the first has waited for 50 in vain."""
    batches, put_at, _ = run(stream(BatchSizes(min=50), tokens(20), gap=0.15))

    assert [1] * 20 == [batch.tokens for batch in batches]
    waited = [batch.left_at - put_at[batch.items[0]] for batch in batches]
    assert pytest.approx([0.1, 0.05, *[0.0] * 18]) == waited


def test_timer_gathers() -> None:
    """Batches leave 0.1 s apart, with whoever came meanwhile."""
    batches, _, _ = run(stream(BatchSizes(min=50), tokens(9), gap=0.039))

    assert [[0, 1, 2], [3, 4, 5], [6, 7], [8]] == [batch.names for batch in batches]
    assert pytest.approx([0.1, 0.2, 0.3, 9 * 0.039]) == [batch.left_at for batch in batches]


def test_timer_needs_no_next_token() -> None:
    """A token that nothing follows leaves by the timer alone, however long the model thinks."""

    async def main() -> float:
        await queued(BatchSizes(min=50), tokens(1)).next()
        return now()

    assert pytest.approx(0.1) == run(main())


def test_timer_counts_from_arrival() -> None:
    """A token that came while a post was under way has waited already."""

    async def main() -> float:
        outbox = queued(BatchSizes(min=50), tokens(2))
        await asyncio.sleep(0.08)
        await outbox.next()
        return now()

    assert pytest.approx(0.1) == run(main())


def test_timer_knows_leftovers() -> None:
    """What a full batch leaves behind is judged by its own arrival."""

    async def main() -> list[Batch]:
        outbox = queued(BatchSizes(min=4, max=5), tokens(4))
        await asyncio.sleep(0.06)
        for item in (Item("e"), Item("f"), Item("g")):
            outbox.put(item, item.tokens, item.size_bytes)
        asyncio.get_running_loop().call_at(1, outbox.close)
        return await consume(outbox, None)

    batches = run(main())

    assert [5, 2] == [batch.tokens for batch in batches]
    assert pytest.approx([0.06, 0.16]) == [batch.left_at for batch in batches]


def test_early_batches_grow_too() -> None:
    """A batch that the timer sent early counts as its turn: the next target is larger."""

    async def main() -> list[list[Item] | None]:
        outbox = queued(BatchSizes(min=2, max=100), tokens(1))
        early = await outbox.next()
        for item in tokens(6):
            outbox.put(item, item.tokens, item.size_bytes)
        before = now()
        full = await outbox.next()
        assert before == now()
        return [early, full]

    assert [1, 6] == [len(batch) for batch in run(main())]


def test_timer_costs_one_handle_a_batch() -> None:
    """However many tokens come, one timer runs, and only a batch that is due wakes the consumer."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, HandDrivenLoop)
        outbox: Outbox[int] = Outbox(BatchSizes(min=50))
        waiting = outbox.next()
        wake_up = waiting.send(None)
        for number in range(49):
            outbox.put(number, 1, 1)
        assert not wake_up.done()
        outbox.put(49, 1, 1)
        assert wake_up.done()
        with pytest.raises(StopIteration) as batch:
            waiting.send(None)
        assert list(range(50)) == batch.value.value
        assert [True] == [timer.cancelled() for timer in loop.timers]

    run(main())


def test_timer_on_uvloop() -> None:
    """On uvloop, whose clock ticks in milliseconds, the timer alone sends what waits."""

    async def main() -> list[Item] | None:
        outbox = queued(BatchSizes(min=50, max_delay_s=0.0104), tokens(3))
        return await asyncio.wait_for(outbox.next(), 30)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert tokens(3) == runner.run(main())


# --- what waits outside ---------------------------------------------------------------------------


class Outside:
    """Holds tokens like the engine's collector: what it is let go of is put in one item."""

    def __init__(self, outbox: Outbox[Item]) -> None:
        self._outbox = outbox
        self._names = itertools.count()
        self._tokens = 0

    def take(self) -> None:
        self._tokens += 1
        self._outbox.hold(1, self.let_go)

    def let_go(self) -> None:
        asyncio.get_running_loop().call_soon(self._put)  # as a task that is woken

    def _put(self) -> None:
        if self._tokens:
            self._outbox.put(Item(next(self._names), self._tokens), self._tokens, 200)
        self._tokens = 0


async def held_stream(sizes: BatchSizes, count: int, gap: Gap, post: Gap) -> list[Batch]:
    outbox: Outbox[Item] = Outbox(sizes)
    outside = Outside(outbox)
    consumer = asyncio.create_task(consume(outbox, post))
    await asyncio.sleep(0)
    for _ in range(count):
        outside.take()
        await pause(gap)
    outside.let_go()  # the end waits for nothing
    await asyncio.sleep(0)
    outbox.close()
    return await consumer


@pytest.mark.parametrize("gap", [0.0003, 0.0103, 0.0701, 0.307])
@pytest.mark.parametrize("post", [None, 0.002, 0.151, 0.709])
@pytest.mark.parametrize("sizes", [BatchSizes(), BatchSizes(2, 10, 1.5), BatchSizes(50)])
def test_held_tokens_leave_when_others_would(sizes: BatchSizes, gap: float, post: Gap) -> None:
    """Tokens that wait outside leave in the batches, and at the moments, that they else would."""
    put, _, _ = run(stream(sizes, tokens(200), gap, post))
    held = run(held_stream(sizes, 200, gap, post))

    assert [batch.tokens for batch in put] == [batch.tokens for batch in held]
    assert pytest.approx([batch.left_at for batch in put]) == [batch.left_at for batch in held]


def test_held_tokens_are_one_item() -> None:
    """However many tokens wait for a batch, they are put when it leaves, and in one item."""
    batches = run(held_stream(BatchSizes(), 128, 0.0103, None))

    assert len(batches) < 128 / 5
    assert [1] * len(batches) == [len(batch.items) for batch in batches]


def test_what_was_held_has_waited() -> None:
    """The wait of a batch's oldest token counts from when it came, not from when it was put."""

    async def main() -> float:
        outbox: Outbox[Item] = Outbox(BatchSizes(min=4))
        outside = Outside(outbox)
        for _ in range(3):
            outside.take()
        await asyncio.sleep(0.03)
        waiting = asyncio.create_task(outbox.next())
        await asyncio.sleep(0)
        outside.take()
        assert [4] == [item.tokens for item in await waiting or []]
        return outbox.waited_s

    assert pytest.approx(0.03) == run(main())


@pytest.mark.parametrize("sizes", [EXACT, BatchSizes(min=1, max=1, growth=1)])
def test_nothing_is_held(sizes: BatchSizes) -> None:
    """With exact sizes, and where each token is a batch, nothing waits outside."""
    batches = run(held_stream(sizes, 40, 0.01, None))

    assert [1] * 40 == [item.tokens for batch in batches for item in batch.items]


def test_batches_apart() -> None:
    """Batches are as far apart as they have to be, be it farther than the timer's delay."""

    async def main() -> list[Batch]:
        outbox: Outbox[Item] = Outbox(BatchSizes(), lambda: 0.25)
        consumer = asyncio.create_task(consume(outbox, None))
        await produce(outbox, tokens(100), 0.0097, {})
        return await consumer

    left_at = [batch.left_at for batch in run(main())]

    assert left_at[0] == 0
    assert pytest.approx([0.25, 0.25]) == [b - a for a, b in itertools.pairwise(left_at[3:6])]


# --- what rides along -----------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0, 0.1])
def test_first_token_alone(delay: float) -> None:
    """The role waits for the first token and leaves with it at once, alone."""
    sizes = BatchSizes(max_delay_s=delay)
    batches, _, _ = run(stream(sizes, answer(13), gap=1.0))

    assert ["role", 0] == batches[0].names
    assert batches[0].left_at == 1.0


def test_company_after_the_last_token() -> None:
    """What counts nothing rides with the token right before it, even in a full batch."""

    async def main() -> list[Batch]:
        outbox = queued(BatchSizes(max=4), [*answer(4), Item("next", 1)])
        outbox.close()
        return await consume(outbox, None)

    assert [["role", 0, 1, 2, 3, "usage", "DONE"], ["next"]] == [
        batch.names for batch in run(main())
    ]


@pytest.mark.parametrize("delay", [0, 0.1])
def test_only_company(delay: float) -> None:
    """A stream without a token starts no timer and leaves as one batch at its end."""
    items = [Item(name, 0) for name in ("role", "usage", "DONE")]
    batches, _, _ = run(stream(BatchSizes(max_delay_s=delay), items, gap=5.0))

    assert [["role", "usage", "DONE"]] == [batch.names for batch in batches]
    assert batches[0].left_at == 15.0


@pytest.mark.parametrize("delay", [0, 0.1])
def test_only_company_in_bulk(delay: float) -> None:
    """Without a token the byte limit still sends, and the first token is still alone."""
    bulk = [Item(f"bulk {number}", 0, 300) for number in range(5)]
    sizes = BatchSizes(max_delay_s=delay, max_bytes=1000)
    batches, _, _ = run(stream(sizes, [*bulk, *tokens(4, size_bytes=1)], gap=1e-3))

    assert [3, 3, 3] == [len(batch.items) for batch in batches]
    assert [0, 1, 3] == [batch.tokens for batch in batches]


# --- back-pressure and bounds ---------------------------------------------------------------------


def test_draining() -> None:
    """What gathers during a slow post leaves in the next one, past its turn's size."""
    batches, _, _ = run(stream(BatchSizes(), tokens(100), gap=0.01, post=0.303))

    assert [1, 30, 30, 30, 9] == [batch.tokens for batch in batches]


def test_draining_up_to_max() -> None:
    """However slow the posts, none is larger than the largest batch."""
    batches, _, _ = run(stream(BatchSizes(), tokens(200), gap=0.01, post=2.0))

    assert [1, 50, 50, 50, 49] == [batch.tokens for batch in batches]


def test_no_draining_with_the_timer_off() -> None:
    """With the timer off a slow consumer gets the exact sizes of what waits, and not the rest."""

    async def main() -> list[int]:
        outbox = queued(EXACT, tokens(14))
        batches = [await outbox.next() for _ in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(outbox.next(), 1000)
        return [len(batch or []) for batch in batches]

    assert [1, 3, 9] == run(main())


@pytest.mark.parametrize("delay", [0, 0.1])
@pytest.mark.parametrize(
    ("sizes_bytes", "expected"),
    [
        ([400, 400, 400, 400], [2, 2]),
        ([500, 500, 1], [2, 1]),
        ([5000, 1, 1], [1, 2]),
        ([1, 5000, 1], [1, 1, 1]),
        ([999, 5000, 5000, 999], [1, 1, 1, 1]),
    ],
)
def test_bytes(delay: float, sizes_bytes: list[int], expected: list[int]) -> None:
    """No batch exceeds the byte limit of 1000, but for a single item that does."""
    items = [Item(number, 1, size) for number, size in enumerate(sizes_bytes)]
    sizes = BatchSizes(min=50, max_delay_s=delay, max_bytes=1000)
    batches, _, _ = run(stream(sizes, items))

    assert expected == [len(batch.items) for batch in batches]


@pytest.mark.parametrize("delay", [0, 60.0])
def test_bytes_leave_at_once(delay: float) -> None:
    """A batch leaves when it has 256 KB, whatever its turn and the timer say."""
    sizes = BatchSizes(min=50, max_delay_s=delay)
    batches, _, _ = run(stream(sizes, tokens(8, size_bytes=64 * 1024), gap=1.0))

    assert [(4, 3.0), (4, 7.0)] == [(batch.tokens, batch.left_at) for batch in batches]


@pytest.mark.parametrize(
    ("delay", "merged", "expected"),
    [
        (0, [2, 2, 2, 2], [[2, 2], [2, 2]]),  # the one that reaches the target is taken
        (0, [2, 9, 1], [[2], [9], [1]]),  # unless it would exceed the largest batch
        (0, [12, 12, 1], [[12], [12], [1]]),  # more than the largest batch only alone
        (0, [1, 1, 1, 12, 9], [[1, 1, 1], [12], [9]]),
        (0.1, [2, 2, 2, 2, 2, 2], [[2, 2, 2, 2, 2], [2]]),
        (0.1, [2, 9, 1, 12], [[2], [9, 1], [12]]),
        (0.1, [9, 2], [[9], [2]]),
    ],
)
def test_merged_outputs(delay: float, merged: list[int], expected: list[list[int]]) -> None:
    """An output of several tokens counts them all and is never split (3, then 10 at most)."""
    items = [Item(number, count) for number, count in enumerate(merged)]
    batches, _, _ = run(stream(BatchSizes(3, 10, max_delay_s=delay), items))

    assert expected == [[item.tokens for item in batch.items] for batch in batches]


# --- the end --------------------------------------------------------------------------------------


def test_end_leaves_at_once() -> None:
    """The end of the stream sends what waits, without the timer."""
    batches, _, _ = run(stream(BatchSizes(min=50, max_delay_s=60), tokens(3), gap=1.0))

    assert [(3, 3.0)] == [(batch.tokens, batch.left_at) for batch in batches]


@pytest.mark.parametrize("delay", [0, 0.1])
def test_error_after_the_data(delay: float) -> None:
    """An error at the end comes after everything before it, and stays."""

    async def main() -> list[Item]:
        outbox = queued(BatchSizes(max=4, max_delay_s=delay), tokens(9))
        outbox.close(ConnectionError("the engine died"))
        outbox.close()
        outbox.put(Item("late"), 1, 1)
        arrived: list[Item] = []
        while len(arrived) < 9:
            arrived += await outbox.next() or []
        for _ in range(2):
            with pytest.raises(ConnectionError, match="the engine died"):
                await outbox.next()
        return arrived

    assert tokens(9) == run(main())


def test_error_wakes_the_consumer() -> None:
    """An error reaches a consumer that waits for a first token."""

    async def main() -> None:
        outbox: Outbox[Item] = Outbox(BatchSizes())
        asyncio.get_running_loop().call_later(3, outbox.close, ConnectionError("gone"))
        await outbox.next()

    with pytest.raises(ConnectionError, match="gone"):
        run(main())


def test_end_stays() -> None:
    """After the end there is nothing more, whatever is put or closed again."""

    async def main() -> list[list[Item] | None]:
        outbox = queued(BatchSizes(), tokens(2))
        outbox.close()
        outbox.close(ConnectionError("too late"))
        outbox.put(Item("late"), 1, 1)
        return [await outbox.next() for _ in range(4)]

    assert [tokens(2), None, None, None] == run(main())


# --- cancelling -----------------------------------------------------------------------------------


async def cancelled(outbox: Outbox[Item], meanwhile: Callable[[], Awaitable[None]]) -> None:
    waiting = asyncio.create_task(outbox.next())
    await asyncio.sleep(0)
    await meanwhile()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


@pytest.mark.parametrize("delay", [0, 0.1])
@pytest.mark.parametrize("more", [1, 60])
def test_cancelling_loses_nothing(delay: float, more: int) -> None:
    """A cancelled call takes nothing with it, even if a batch was due a moment before."""
    late = [Item(f"late {number}") for number in range(more)]

    async def main() -> list[Batch]:
        outbox = queued(BatchSizes(min=50, max_delay_s=delay), tokens(2))

        async def meanwhile() -> None:
            for item in late:
                outbox.put(item, item.tokens, item.size_bytes)

        await cancelled(outbox, meanwhile)
        outbox.close()
        return await consume(outbox, None)

    assert [*tokens(2), *late] == [item for batch in run(main()) for item in batch.items]


def test_cancelled_and_asked_again_at_once() -> None:
    """A call may follow a cancelled one in the same breath, with a timer of its own."""

    async def main() -> float:
        outbox = queued(BatchSizes(min=50), tokens(1))
        first = asyncio.create_task(outbox.next())
        await asyncio.sleep(0.05)
        first.cancel()
        assert tokens(1) == await outbox.next()
        assert first.cancelled()
        return now()

    assert pytest.approx(0.1) == run(main())


@pytest.mark.parametrize("seed", range(40))
def test_impatient_consumer(seed: int) -> None:
    """A consumer that gives up at any moment and asks again misses nothing."""
    rng = random.Random(seed)
    sizes = BatchSizes(rng.randint(1, 9), 10, max_delay_s=rng.choice([0, 0.01, 0.1]))
    items = answer(100)

    async def main() -> list[Item]:
        outbox: Outbox[Item] = Outbox(sizes)
        producer = asyncio.create_task(produce(outbox, items, jitter(rng, 0.02), {}))
        arrived: list[Item] = []
        while True:
            try:
                async with asyncio.timeout(rng.choice([0, 0.001, 0.02, 0.1])):
                    batch = await outbox.next()
            except TimeoutError:
                continue
            if batch is None:
                await producer
                return arrived
            arrived += batch

    assert items == run(main())


# --- bad sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"min": 0}, "the smallest batch must be a whole number of at least 1, not 0"),
        ({"min": -1}, "the smallest batch must be a whole number of at least 1, not -1"),
        ({"min": True}, "the smallest batch must be a whole number of at least 1, not True"),
        ({"min": 1.5}, "the smallest batch must be a whole number of at least 1, not 1.5"),
        ({"max": 0}, "the largest batch must be a whole number of at least 1, not 0"),
        ({"max": "x"}, "the largest batch must be a whole number of at least 1, not 'x'"),
        ({"max": None}, "the largest batch must be a whole number of at least 1, not None"),
        ({"min": 60}, "the smallest batch (60) must not exceed the largest (50)"),
        ({"growth": 0.9}, "the batches' growth must be a number of at least 1, not 0.9"),
        ({"growth": 0}, "the batches' growth must be a number of at least 1, not 0"),
        ({"growth": "3"}, "the batches' growth must be a number of at least 1, not '3'"),
        ({"growth": True}, "the batches' growth must be a number of at least 1, not True"),
        ({"growth": float("nan")}, "the batches' growth must be a number of at least 1, not nan"),
        ({"growth": float("inf")}, "the batches' growth must be a number of at least 1, not inf"),
        ({"max_delay_s": -1}, "the batches' delay must be a number of at least 0, not -1"),
        ({"max_bytes": 0}, "the batches' byte limit must be a whole number of at least 1, not 0"),
    ],
)
def test_bad_sizes(fields: dict[str, Any], sentence: str) -> None:
    """Sizes that make no sense are refused with a sentence, also when a job overrides them."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011 the sentence is compared whole
        replace(BatchSizes(), **fields)

    assert sentence == str(refused.value)
