"""The platform's limits on requests: how many in ten seconds, at once, and in the queue."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

WINDOW_S = 10.0
QUEUE_ALWAYS = 50
QUEUE_PER_WORKER = 500
SUBMITTING = frozenset({"run", "runsync", "openai"})
# Requests in ten seconds, and at once where that is documented.
LIMITS: dict[str, tuple[int, int | None]] = {
    "run": (1000, 200),
    "runsync": (2000, 400),
    "status": (2000, 400),
    "status-sync": (2000, 400),
    "stream": (2000, 400),
    "cancel": (100, 20),
    "purge-queue": (2, None),
    "openai": (2000, 400),
    "requests": (10, 2),
}


@dataclass(eq=False)
class _Traffic:
    times_s: deque[float] = field(default_factory=deque)
    at_once: int = 0


class RateLimits:
    """Counts the requests of each operation; `scale` times the documented numbers are let in."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._traffic: dict[str, _Traffic] = {route: _Traffic() for route in LIMITS}

    @contextmanager
    def request(
        self, route: str, scale: float, in_queue: int, workers: int
    ) -> Iterator[dict[str, str] | None]:
        """Count a request for the length of the block, or give the block headers that refuse it.

        With a scale of 0 there are no limits.
        """
        traffic = self._traffic.get(route, _Traffic())
        refusal = self._refusal(route, scale, in_queue, workers) if scale else None
        traffic.at_once += refusal is None
        try:
            yield refusal
        finally:
            traffic.at_once -= refusal is None

    def _refusal(
        self, route: str, scale: float, in_queue: int, workers: int
    ) -> dict[str, str] | None:
        if route not in LIMITS:
            return None
        traffic, now_s = self._traffic[route], self._clock()
        while traffic.times_s and now_s - traffic.times_s[0] >= WINDOW_S:
            traffic.times_s.popleft()
        most, most_at_once = (number and max(1, round(number * scale)) for number in LIMITS[route])
        if most is not None and len(traffic.times_s) >= most:
            return _headers(most, traffic.times_s[0] + WINDOW_S - now_s)
        if most_at_once is not None and traffic.at_once >= most_at_once:
            return _headers(most_at_once, 1.0)
        queue = max(QUEUE_ALWAYS, QUEUE_PER_WORKER * max(1, workers)) * scale
        if route in SUBMITTING and in_queue > queue:
            return _headers(round(queue), 1.0)
        traffic.times_s.append(now_s)
        return None


def _headers(limit: int, retry_after_s: float) -> dict[str, str]:
    seconds = str(math.ceil(retry_after_s))
    return {
        "Retry-After": seconds,
        "RateLimit-Limit": str(limit),
        "RateLimit-Remaining": "0",
        "RateLimit-Reset": seconds,
    }
