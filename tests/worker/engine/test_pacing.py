"""Outputs for HTTP clients wait for their stream's turn, and only where there are many streams.

And what the engine cuts short is an error, and no answer.
"""

import asyncio
import time
from collections import Counter
from contextlib import ExitStack

import pytest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from worker.engine.pacing import EVENTS_PER_S, Collector, Processor, Spacing

pytestmark = pytest.mark.timeout(60)


async def stream(streams: int, tokens: int, apart_s: float) -> tuple[Counter[int], int]:
    """Let each of so many streams have a token every `apart_s`; return the events of each.

    The second number is how many went in the moment in which they came.
    """
    events: Counter[int] = Counter()
    at_once = 0
    with ExitStack() as stack:
        spacings = [stack.enter_context(Spacing()) for _ in range(streams)]
        lets_go = [lambda i=i: events.update([i]) for i in range(streams)]
        for _ in range(tokens):
            for spacing, let_go in zip(spacings, lets_go, strict=True):
                before = events.total()
                spacing.hold(1, let_go)
                at_once += events.total() - before
            await asyncio.sleep(apart_s)
        await asyncio.sleep(2 * streams / EVENTS_PER_S)
    return events, at_once


def test_a_few_streams_wait_for_nothing() -> None:
    """Each token of streams within the budget is an event, in the moment in which it comes."""
    events, at_once = asyncio.run(stream(streams=2, tokens=50, apart_s=0.005))

    assert {0: 50, 1: 50} == events
    assert 100 == at_once


def test_many_streams_share_the_budget() -> None:
    """Of 200 streams each has an event every 100 ms, the first at once, the last one too."""
    began_s = time.monotonic()
    events, at_once = asyncio.run(stream(streams=200, tokens=100, apart_s=0.002))
    took_s = time.monotonic() - began_s

    assert set(range(200)) == set(events)
    assert at_once >= 200
    assert events.total() <= EVENTS_PER_S * took_s + 2 * 200


def test_what_has_ended_counts_no_more() -> None:
    """Streams of the past leave the budget to those of now, and their timers are gone."""
    asyncio.run(stream(streams=200, tokens=3, apart_s=0))

    events, _ = asyncio.run(stream(streams=1, tokens=50, apart_s=0.005))

    assert {0: 50} == events


def cut() -> RequestOutput:
    one = CompletionOutput(0, "Hel", [5], None, None, finish_reason="abort")
    return RequestOutput("id", "Hello", [4], None, [one], finished=True)


def test_what_the_engine_cuts_short_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that was told to end ends each answer where it is: that is no success."""
    monkeypatch.setattr(Collector, "engine_left", False)
    collector = Collector(RequestOutputKind.DELTA, "id")
    collector.put(cut())

    with pytest.raises(EngineDeadError):
        collector.get_nowait()
    assert Collector.engine_left


def test_what_a_caller_aborts_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who aborts a request himself may read what there is of it, and the engine lives on."""
    monkeypatch.setattr(Collector, "engine_left", False)
    collector = Collector(RequestOutputKind.DELTA, "id")
    parent = Processor.__base__
    monkeypatch.setattr(parent, "abort_requests", lambda *_: collector.put(cut()) or ["id"])

    assert ["id"] == Processor.__new__(Processor).abort_requests(["id"], internal=True)
    assert "abort" == collector.get_nowait().outputs[0].finish_reason
    assert not Collector.engine_left
