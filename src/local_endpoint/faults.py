"""Failures on request: the next answers of a route are errors, are late, or never come."""

import asyncio
import threading
from typing import Any

import msgspec
from aiohttp import web

SPIN_S = 0.05  # the SDK repeats a refused poll at once: no faster than this

# What a fault's route may be, and the routes that it stands for.
ROUTES = {
    "job-take": frozenset({"job-take", "job-take-batch"}),
    "posts": frozenset({"job-stream", "job-done"}),
} | {
    route: frozenset({route})
    for route in (
        *("job-stop", "job-stream", "job-done", "ping"),
        *("run", "runsync", "status", "status-sync", "stream", "cancel", "retry"),
        *("purge-queue", "health", "requests", "openai"),
    )
}


class Fault(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What happens to the next requests of a route.

    `status` is answered instead of doing anything, `drop` cuts the connection instead.
    `delay_ms` passes before the request is handled, `answer_delay_ms` between that and its
    answer; `drop_answer` cuts the connection after the request was handled: a job that was handed
    out is lost. For `job-stop` the next answer names its jobs twice (`duplicate`), or jobs that
    nobody knows (`job_ids`). `stop` cancels the job of a `job-take` or a `job-stream` and answers
    once its worker was told: before the job starts, or while its post is under way.
    """

    route: str
    status: int | None = None
    delay_ms: float = 0.0
    answer_delay_ms: float = 0.0
    drop: bool = False
    drop_answer: bool = False
    stop: bool = False
    duplicate: bool = False
    job_ids: tuple[str, ...] = ()
    worker_id: str | None = None  # only this worker's requests

    def __post_init__(self) -> None:
        if self.route not in ROUTES:
            raise ValueError(f"route={self.route!r} is not one of {', '.join(ROUTES)}")
        if self.status is not None and not 200 <= self.status <= 599:
            raise ValueError(f"status={self.status!r} is not an HTTP status")
        if self.stop and self.route not in ("job-take", "job-stream"):
            raise ValueError("stop is for job-take and job-stream")
        if (self.duplicate or self.job_ids) and self.route != "job-stop":
            raise ValueError("duplicate and job_ids are for job-stop")

    async def before(self, request: web.Request) -> web.Response | None:
        """Do what comes before the handling; an answer means that there will be none."""
        await asyncio.sleep(self.delay_ms / 1000)
        if self.drop:
            cut(request)
            return web.Response(status=500)
        if self.status is None:
            return None
        if self.route in ("job-take", "job-stop"):
            await asyncio.sleep(SPIN_S)
        await request.read()  # so that the connection stays usable, and for the recording
        if self.status == 204:
            return web.Response(status=204)
        return web.json_response({"error": "injected fault"}, status=self.status)

    async def before_answer(self, request: web.Request) -> bool:
        """Do what comes between handling and answer; False means that there will be no answer."""
        await asyncio.sleep(self.answer_delay_ms / 1000)
        if self.drop_answer:
            cut(request)
        return not self.drop_answer


def cut(request: web.Request) -> None:
    """Drop the connection of a request."""
    if request.transport is not None:
        request.transport.abort()


FAULT = web.RequestKey("fault", Fault)  # set on the request that it happens to


class Faults:
    """Faults that wait for their requests, used up in the order in which they were added.

    May be used from any thread::

        endpoint.faults.add("posts", status=500, times=3)  # the next three posts fail with 500
        endpoint.faults.add("job-stream", delay_ms=200, times=None)  # until clear()
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Fault, int | None]] = []
        self._lock = threading.Lock()

    def add(self, route: str, *, times: int | None = 1, **fault: Any) -> None:
        """Let a `Fault` happen to the next `times` requests to `route`. Raises `ValueError`."""
        if times is not None and times < 1:
            raise ValueError(f"times={times!r} is less than 1")
        made = msgspec.convert({"route": route, **fault}, Fault)
        with self._lock:
            self._waiting.append((made, times))

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def waiting(self) -> list[dict[str, Any]]:
        """Return what is still to happen: the arguments of `add`, without the defaults."""
        with self._lock:
            return [
                {**msgspec.to_builtins(fault), "times": times} for fault, times in self._waiting
            ]

    def next(self, route: str, worker_id: str | None = None) -> Fault | None:
        """Return the fault that happens to this request, and use it up."""
        if not self._waiting:
            return None
        with self._lock:
            for index, (fault, times) in enumerate(self._waiting):
                if route in ROUTES[fault.route] and fault.worker_id in (None, worker_id):
                    if times is not None and times <= 1:
                        del self._waiting[index]
                    elif times is not None:
                        self._waiting[index] = (fault, times - 1)
                    return fault
        return None
