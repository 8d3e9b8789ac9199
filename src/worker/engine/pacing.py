"""Outputs of the engine are merged while they would only wait for their batch.

An event of nine tokens costs what one of a single token costs. vLLM merges the outputs of a request
itself while nobody asks for them; here it does so until the job's outbox wants them, or, for an
HTTP client, until it is the stream's turn among many.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from vllm.v1.engine import async_llm
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

from worker.engine import receipts

MOST_LOGPROBS = 32  # of a token; more than OpenAI's API allows
# Of all HTTP clients together. An event costs a core 50 to 130 µs: it would be busy with 10,000.
EVENTS_PER_S = 2000

_pace: ContextVar["Pace | None"] = ContextVar("pace", default=None)


class Holder(Protocol):
    """Where outputs are wanted, sooner or later."""

    def hold(self, tokens: int, let_go: Callable[[], None]) -> None:
        """Know of so many tokens; call `let_go`, at once or later, to have them."""


class Spacing:
    """Lets a stream's outputs go so far apart that all of them have EVENTS_PER_S together.

    The first goes at once, and so does each of a stream that is slower than its share.
    """

    _streams: ClassVar[set["Spacing"]] = set()

    def __init__(self) -> None:
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._holders: set[Callable[[], None]] = set()

    def __enter__(self) -> "Spacing":
        return self

    def __exit__(self, *_: object) -> None:
        self._streams.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def hold(self, tokens: int, let_go: Callable[[], None]) -> None:  # noqa: ARG002
        loop = asyncio.get_running_loop()
        self._streams.add(self)
        self._holders.add(let_go)
        if self._timer is None:
            if loop.time() >= self._due_s:
                self._go()
            else:
                self._timer = loop.call_at(self._due_s, self._go)

    def _go(self) -> None:
        self._timer = None
        self._due_s = asyncio.get_running_loop().time() + len(self._streams) / EVENTS_PER_S
        holders, self._holders = self._holders, set()
        for let_go in holders:
            let_go()


@dataclass
class Pace:
    """How one job takes what the engine's requests give that are made in its context.

    `merges` says whether outputs may be merged. `tokens` have come that no event has told of yet.
    """

    holder: Holder
    merges: bool
    tokens: int = 0
    is_counted: bool = False

    def take(self) -> int:
        """Return how many tokens the next event tells of: 1 where none are counted."""
        if not self.is_counted:
            return 1
        tokens, self.tokens = self.tokens, 0
        return tokens


@contextmanager
def paced(holder: Holder, *, merges: bool) -> Iterator[Pace]:
    """Pace what streams from the engine in this context."""
    pace = Pace(holder, merges)
    token = _pace.set(pace)
    try:
        yield pace
    finally:
        _pace.reset(token)


class Collector(RequestOutputCollector):  # type: ignore[misc]  # vLLM is Any to mypy
    """What vLLM puts the outputs of one request into, and takes them from.

    `engine_left` is whether the engine has aborted a request by itself: told to end, it ends every
    answer where it is, and lives on for a while.
    """

    engine_left: ClassVar[bool] = False
    aborts: ClassVar[bool] = False  # while this process aborts requests, whose outputs end alike

    def __init__(self, output_kind: Any, request_id: str) -> None:
        super().__init__(output_kind, request_id)
        self._pace = _pace.get() if self.aggregate else None
        self._held = RequestOutputCollector(output_kind, request_id)
        self._tokens = 0
        self._receipt = receipts.current()
        if self._pace is not None:
            self._pace.is_counted = True

    def put(self, output: Any) -> None:
        """Take an output, or the error that ends the request."""
        if _is_cut(output) and not Collector.aborts:
            Collector.engine_left = True
            output = EngineDeadError()
        if self._receipt is not None and not isinstance(output, Exception):
            self._receipt.note(output)
        if self._pace is None or isinstance(output, Exception):
            super().put(output)
            return
        self._held.put(output)
        tokens = sum(len(one.token_ids) for one in output.outputs)
        self._tokens += tokens
        if self._pace.merges and not output.finished and not _is_heavy(output):
            self._pace.holder.hold(tokens, self._let_go)
        else:
            self._let_go()

    def _let_go(self) -> None:
        output = self._held.get_nowait()
        if output is not None and self._pace is not None:
            self._pace.tokens, self._tokens = self._pace.tokens + self._tokens, 0
            super().put(output)


class Processor(OutputProcessor):  # type: ignore[misc]
    """What vLLM hands the engine's outputs to, and its callers' aborts."""

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:
        """Abort requests, each of which gets one more output."""
        before, Collector.aborts = Collector.aborts, True
        try:
            return list(super().abort_requests(request_ids, internal))
        finally:
            Collector.aborts = before


def _is_cut(output: Any) -> bool:
    """Say whether a request of a generating model was aborted."""
    outputs = getattr(output, "outputs", None)
    return isinstance(outputs, list) and any(one.finish_reason == "abort" for one in outputs)


def _is_heavy(output: Any) -> bool:
    """Say whether a batch of such outputs may be more than a post should carry."""
    return any(one.logprobs and len(one.logprobs[0]) > MOST_LOGPROBS for one in output.outputs)


def install() -> None:
    """Let vLLM collect the outputs of its requests so."""
    async_llm.RequestOutputCollector = Collector
    async_llm.OutputProcessor = Processor
