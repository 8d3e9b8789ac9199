"""What a request's parameters are judged by: the engine's facts, and what one job may cost."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from worker.errors import RequestError
from worker.metrics import TURN_WAIT
from worker.processor.order import Order

log = logging.getLogger("worker")


class Turns:
    """How many sequences may run the chain at once: it runs inside every request's step.

    The others wait, the first first. Used on the engine's loop.
    """

    def __init__(self, chains: int, costly: int) -> None:
        self._chains = _Slots("MAX_CHAINS", chains)
        self._costly = _Slots("MAX_COSTLY_CHAINS", costly)

    @asynccontextmanager
    async def taken(
        self, order: Order | None, *, is_costly: bool, sequences: int = 1
    ) -> AsyncIterator[None]:
        """Wait for the turn of so many sequences. Raises RequestError where it could never come."""
        async with AsyncExitStack() as stack:
            if order is not None:
                if is_costly:
                    await stack.enter_async_context(self._costly.taken(sequences))
                await stack.enter_async_context(self._chains.taken(sequences))
            yield


class _Slots:
    def __init__(self, variable: str, count: int) -> None:
        self._variable, self._count = variable, count
        self._free = asyncio.Semaphore(count)
        self._entrance = asyncio.Lock()  # two that hold a part each would wait for ever

    @asynccontextmanager
    async def taken(self, count: int) -> AsyncIterator[None]:
        if count > self._count:
            raise RequestError(
                f"{count:,} sequences at once are more than the {self._count:,} that may have "
                f"these parameters on this worker ({self._variable}).",
                type="invalid_parameter",
            )
        held = 0
        try:
            with TURN_WAIT.labels(self._variable).time():
                async with self._entrance:
                    for _ in range(count):
                        await self._free.acquire()
                        held += 1
            yield
        finally:
            for _ in range(held):
                self._free.release()
