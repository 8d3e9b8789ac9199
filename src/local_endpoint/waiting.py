"""Long polls: who waits for what, and until when."""

import asyncio
from collections.abc import Callable


class Waiters:
    """Tasks that wait for a key to be woken; the longest waiting is woken first.

    Belongs to one event loop. After `close` nobody waits.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        self.closed = False

    def wake(self, key: str) -> None:
        for future in self._waiting.get(key, ()):
            _resolve(future)

    def close(self) -> None:
        """End all waiting, now and in the future."""
        self.closed = True
        for key in self._waiting:
            self.wake(key)

    async def wait(self, key: str, until_s: float) -> bool:
        """Wait for `key`; False if the loop's clock passed `until_s` instead, or it is closed."""
        loop = asyncio.get_running_loop()
        if self.closed or until_s <= loop.time():
            return False
        future = loop.create_future()
        timer = loop.call_at(until_s, _resolve, future)
        waiting = self._waiting.setdefault(key, {})
        waiting[future] = None
        try:
            await future
        finally:
            timer.cancel()
            del waiting[future]
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]
        return not self.closed and loop.time() < until_s

    async def wait_until(self, key: str, done: Callable[[], bool], until_s: float) -> bool:
        """Wait until `done()`, asked at the start and whenever `key` is woken; False if late."""
        while not done():
            if not await self.wait(key, until_s):
                return done()
        return True


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
