"""Failures on order: the next answers of a route are errors, are late, or never come."""

import asyncio
import threading
from dataclasses import dataclass

from aiohttp import web


@dataclass(frozen=True)
class Fault:
    """What happens to a request instead of, or before, its proper treatment."""

    route: str
    status: int | None = None
    delay_ms: float = 0.0
    drop: bool = False

    async def happen(self, request: web.Request) -> web.StreamResponse | None:
        """Delay the request, then answer it, drop it, or (None) let it pass."""
        if self.delay_ms:
            await asyncio.sleep(self.delay_ms / 1000)
        if self.drop and request.transport is not None:
            request.transport.abort()
            return web.Response(status=500)
        if self.status is None:
            return None
        await request.read()  # so that the connection stays usable
        return web.json_response({"error": "injected fault"}, status=self.status)


class Faults:
    """Faults in waiting, each for its route, used up in the order in which they were added.

    May be used from any thread::

        endpoint.faults.add(route="job-stream", status=500, times=3)
        endpoint.faults.add(route="job-stream", delay_ms=200, times=None)  # until clear()
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Fault, int | None]] = []
        self._lock = threading.Lock()

    def add(
        self,
        route: str,
        *,
        status: int | None = None,
        delay_ms: float = 0.0,
        drop: bool = False,
        times: int | None = 1,
    ) -> None:
        """Let the next `times` requests to `route` (the word after the endpoint's id) fail."""
        with self._lock:
            self._waiting.append((Fault(route, status, delay_ms, drop), times))

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def next(self, route: str) -> Fault | None:
        """Give the fault that this request meets, and use it up."""
        if not self._waiting:
            return None
        with self._lock:
            for index, (fault, times) in enumerate(self._waiting):
                if fault.route == route:
                    if times is not None and times <= 1:
                        del self._waiting[index]
                    elif times is not None:
                        self._waiting[index] = (fault, times - 1)
                    return fault
        return None
