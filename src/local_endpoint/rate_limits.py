"""The platform's limits on requests: so many in ten seconds, so many at once, so many waiting."""

import math
from collections import deque
from collections.abc import Callable
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
        self._traffic: dict[str, _Traffic] = {}

    def enter(self, route: str, scale: float, in_queue: int, workers: int) -> dict[str, str] | None:
        """Let a request in, to be ended with `leave`; or give the headers which refuse it."""
        if not scale or route not in LIMITS:
            return None
        traffic = self._traffic.setdefault(route, _Traffic())
        now_s = self._clock()
        while traffic.times_s and now_s - traffic.times_s[0] >= WINDOW_S:
            traffic.times_s.popleft()
        most, most_at_once = (number and max(1, round(number * scale)) for number in LIMITS[route])
        if most is not None and len(traffic.times_s) >= most:
            return _refusal(most, traffic.times_s[0] + WINDOW_S - now_s)
        if most_at_once is not None and traffic.at_once >= most_at_once:
            return _refusal(most_at_once, 1.0)
        queue = max(QUEUE_ALWAYS, QUEUE_PER_WORKER * max(1, workers)) * scale
        if route in SUBMITTING and in_queue > queue:
            return _refusal(round(queue), 1.0)
        traffic.times_s.append(now_s)
        traffic.at_once += 1
        return None

    def leave(self, route: str) -> None:
        """Note the end of a request, whether it was let in under limits or without."""
        if (traffic := self._traffic.get(route)) and traffic.at_once:
            traffic.at_once -= 1


def _refusal(limit: int, retry_after_s: float) -> dict[str, str]:
    seconds = str(math.ceil(retry_after_s))
    return {
        "Retry-After": seconds,
        "RateLimit-Limit": str(limit),
        "RateLimit-Remaining": "0",
        "RateLimit-Reset": seconds,
    }
