"""A request in its dialect, and the task of its own that answers it.

Whatever ends that task closes its outbox: with nothing, or with the error that the caller is told.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from worker.batching import WHOLE, Outbox
from worker.errors import RequestError, unforeseen
from worker.record import Usage
from worker.request import Request

Headers = Sequence[tuple[bytes, bytes]]


class Call(Protocol):
    """One job in its dialect."""

    async def answer(self, outbox: Outbox[Any]) -> None:
        """Put what the job asks for into the outbox. Raises RequestError; cancelling aborts."""

    def join(self, items: list[Any]) -> Any:
        """Make one yield of a batch."""

    def failure(self, error: RequestError) -> list[Any]:
        """Return what is yielded when the job fails, in order."""

    @property
    def usage(self) -> Usage:
        """Say how many tokens it took, as far as is known."""


class HttpCall(Call, Protocol):
    """One that an HTTP client may ask for too."""

    async def pass_on(self, headers: Headers, leaving: asyncio.Future[None], reply: Any) -> None:
        """Answer an HTTP client through the door's `reply`.

        `headers` are the client's, `leaving` ends when he goes. Raises RequestError; in the middle
        of a stream its end is still to be sent.
        """

    def told(self, error: RequestError) -> tuple[RequestError, bytes]:
        """Return an error as HTTP clients of this dialect read it, and as the end of a stream."""


@dataclass(frozen=True)
class Frames:
    """How the events of a stream are written over HTTP: what stands around each, and at the end."""

    content_type: bytes
    before: bytes
    after: bytes
    end: bytes = b""

    def written(self, event: Any) -> bytes:
        return self.before + msgspec.json.encode(event) + self.after


class PieceByPiece:
    """What passes the answer of a call on to an HTTP client, each piece as it comes."""

    frames: Frames

    @property
    def asked(self) -> Request:
        """What is answered."""
        raise NotImplementedError

    async def answer(self, outbox: Outbox[Any]) -> None:
        raise NotImplementedError

    def join(self, items: list[Any]) -> Any:
        raise NotImplementedError

    def said(self, items: list[Any]) -> list[Any]:
        """Return the events that a batch of a stream becomes."""
        return [self.join(items)]

    async def pass_on(self, _: Headers, leaving: asyncio.Future[None], reply: Any) -> None:
        streams = self.asked.stream
        outbox: Outbox[Any] = Outbox(self.asked.sizes if streams else WHOLE)
        answering = begin(self.answer(outbox), outbox)
        leaving.add_done_callback(lambda _: answering.cancel())
        try:
            if streams:
                while (items := await outbox.next()) is not None:
                    for event in self.said(items):
                        await reply.event(self.frames.written(event), self.frames.content_type)
                await reply.event(self.frames.end, self.frames.content_type, is_last=True)
                return
            items = await _rest(outbox)
            if not answering.cancelled():
                await reply.whole(msgspec.json.encode(self.join(items)))
        finally:
            answering.cancel()


async def refuse(error: RequestError) -> None:
    """Answer with an error. Raises it."""
    raise error


async def whole(call: Call) -> Any:
    """Return an answer in one piece. Raises RequestError; cancelling aborts."""
    outbox: Outbox[Any] = Outbox(WHOLE)
    await call.answer(outbox)
    outbox.close()
    return call.join(await _rest(outbox))


async def _rest(outbox: Outbox[Any]) -> list[Any]:
    """Return everything that an outbox hands out until its end. Raises what it was closed with."""
    items: list[Any] = []
    while (some := await outbox.next()) is not None:
        items += some
    return items


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
