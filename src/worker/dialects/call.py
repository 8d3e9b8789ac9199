"""One request in another dialect: asked in one of the worker's own, and its answer translated.

Dialect.read ─ Talk.asked ─ NativeCall | RouteCall ─ Talk.events | Talk.whole
"""

from collections.abc import Callable
from typing import Any, Protocol

from worker.batching import Outbox
from worker.call import Call, Frames, PieceByPiece
from worker.errors import RequestError
from worker.facts import Limits
from worker.record import Usage
from worker.request import Request, RouteRequest


class Talk(Protocol):
    """One request of a dialect: what it asks of the worker, and what becomes of the answer."""

    asked: Request

    def events(self, said: Any) -> list[Any]:
        """Return what a stream says of one native yield, or of one of OpenAI's chunks."""

    def whole(self, said: Any) -> Any:
        """Return what the reply becomes that is not streamed."""


class Dialect(Protocol):
    """How requests, events and errors look to one kind of client."""

    frames: Frames

    def read(self, request: RouteRequest, limits: Limits) -> Talk:
        """Raises RequestError."""

    def error(self, error: RequestError) -> RequestError:
        """Return an error in its own shape."""


class DialectCall(PieceByPiece):
    """A call of the worker's own in another dialect's words."""

    def __init__(
        self,
        request: RouteRequest,
        dialect: Dialect,
        make: Callable[[Request], Call],
        limits: Limits,
        *,
        raw: bool,
    ) -> None:
        """`make` makes the call in the worker's own dialect; `raw` is RAW_OPENAI_OUTPUT."""
        self._request = request
        self.frames = dialect.frames
        self._dialect = dialect
        self._make = make
        self._limits = limits
        self._raw = raw
        self._talk: Talk
        self._inner: Call | None = None

    @property
    def asked(self) -> RouteRequest:
        return self._request

    async def answer(self, outbox: Outbox[Any]) -> None:
        self._talk = self._dialect.read(self._request, self._limits)
        self._inner = self._make(self._talk.asked)
        await self._inner.answer(outbox)

    def said(self, items: list[Any]) -> list[Any]:
        assert self._inner is not None  # there are no items before the answer
        events = []
        for item in items:
            joined = self._inner.join([item])
            for one in joined if isinstance(joined, list) else [joined]:
                events += self._talk.events(one)
        return events

    def join(self, items: list[Any]) -> Any:
        """Make one yield of a batch: the text that HTTP would carry, or its objects; or a reply."""
        if not self._request.stream:
            assert self._inner is not None
            return self._talk.whole(self._inner.join(items))
        events = self.said(items)
        return b"".join(map(self.frames.written, events)).decode() if self._raw else events

    def told(self, error: RequestError) -> tuple[RequestError, bytes]:
        error = self._dialect.error(error)
        return error, self.frames.written(error.body())

    def failure(self, error: RequestError) -> list[Any]:
        error, frame = self.told(error)
        if not self._request.stream:
            return [error.told()]
        return [frame.decode() if self._raw else [error.body()], error.told()]

    @property
    def usage(self) -> Usage:
        return self._inner.usage if self._inner else Usage()
