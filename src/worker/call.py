"""A request in its dialect, and the task of its own that answers it.

Whatever ends that task closes its outbox: with nothing, or with the error that the caller is told.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from worker.batching import Outbox
from worker.errors import RequestError, unforeseen
from worker.record import Usage


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


async def refuse(error: RequestError) -> None:
    """Answer with an error. Raises it."""
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
