"""The endpoint as a web application, and as something to run: on this event loop or on a thread."""

import asyncio
import contextlib
import hmac
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from local_endpoint import page, wire, worker_side
from local_endpoint.endpoint import Endpoint
from local_endpoint.faults import Faults
from local_endpoint.jobs import Job
from local_endpoint.knobs import Knobs
from local_endpoint.openai_side import OpenAISide
from local_endpoint.public_side import PublicSide
from local_endpoint.recording import Record
from local_endpoint.worker_side import WorkerSide

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
POSTS = frozenset({"job-stream", "job-done"})
SHUTDOWN_S = 0.5  # for requests that are still being answered

T = TypeVar("T")


def application(endpoint: Endpoint) -> web.Application:
    """Build the web application of an endpoint."""

    @web.middleware
    async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[worker_side.ARRIVED_S] = time.monotonic()
        if page.is_page(request.path):
            return await handler(request)
        _, version, endpoint_id, route, *_ = f"{request.path}////".split("/", 4)
        if (version, endpoint_id) != ("v2", endpoint.id):
            return wire.refuse("endpoint not found", 404)
        key = endpoint.worker_key if route in worker_side.ROUTES else endpoint.api_key
        if not _is_authorized(request, key):
            return wire.refuse("unauthorized", 401)
        fault = endpoint.faults.next(route)
        if fault is not None and (answer := await fault.happen(request)) is not None:
            return answer
        half_rtt_s = endpoint.knobs.rtt_ms / 2000 if route in POSTS else 0.0
        if half_rtt_s:
            await asyncio.sleep(half_rtt_s)
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            return wire.refuse(error.reason.lower(), error.status)
        if half_rtt_s:
            await asyncio.sleep(half_rtt_s)
        return answer

    async def living(app: web.Application) -> AsyncIterator[None]:  # noqa: ARG001
        clock = asyncio.create_task(endpoint.keep_time())
        yield
        clock.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await clock
        await endpoint.webhooks.close()

    app = web.Application(middlewares=[gate], client_max_size=2**40)  # `wire.read` has the limits
    for side in (WorkerSide(endpoint), PublicSide(endpoint), OpenAISide(endpoint)):
        app.add_routes(side.routes())
    app.add_routes(page.routes())
    app.cleanup_ctx.append(living)
    return app


def _is_authorized(request: web.Request, key: str) -> bool:
    given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    return hmac.compare_digest(given.encode(), key.encode())


@contextlib.asynccontextmanager
async def listening(
    endpoint: Endpoint, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[None]:
    """Serve an endpoint on this event loop: inside the block it answers. Port 0 is a free one.

    Raises `OSError` if it cannot listen there.
    """
    runner = web.AppRunner(
        application(endpoint),
        access_log=None,
        handle_signals=False,
        handler_cancellation=True,  # a client that goes away ends its long poll at once
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        name = f"[{host}]" if ":" in host else host.replace("0.0.0.0", "127.0.0.1")
        endpoint.origin = f"http://{name}:{runner.addresses[0][1]}"
        yield
    finally:
        endpoint.close()
        await runner.cleanup()


@dataclass(frozen=True)
class WorkerInfo:
    """A worker as it was at one moment; times are `time.monotonic` in seconds."""

    id: str
    state: str
    jobs: tuple[str, ...]
    stops_pending: tuple[str, ...]
    ping_s: float | None
    ping_jobs: frozenset[str]
    sdk_version: str | None
    is_retired: bool


class LocalEndpoint:
    """A running endpoint, for use from other threads than its own."""

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self.id = endpoint.id
        self.api_key = endpoint.api_key
        self.worker_key = endpoint.worker_key
        self.knobs = endpoint.knobs
        self.url = endpoint.url
        self.openai_url = endpoint.openai_url

    @property
    def faults(self) -> Faults:
        return self._endpoint.faults

    def worker_environ(self, worker_id: str, home: Path | str) -> dict[str, str]:
        """Give the variables for a worker; to be laid over the caller's environment."""
        return self._endpoint.worker_environ(worker_id, home)

    def record(self, job_id: str) -> Record:
        """Give what is recorded of a job up to now. Raises `KeyError` if that is nothing."""
        return self._call(lambda: self._endpoint.recording.record(job_id))

    def records(self) -> list[Record]:
        """Give all recorded jobs in the order of submission, for those whose id nobody told."""
        return self._call(lambda: list(self._endpoint.recording.records()))

    def workers(self) -> list[WorkerInfo]:
        """Give the workers known at present."""
        return self._call(self._worker_infos)

    def wait_ready(self, workers: int = 1, timeout_s: float = 60.0) -> None:
        """Wait until so many workers have asked for jobs. Raises `TimeoutError`."""
        deadline_s = time.monotonic() + timeout_s
        while sum(worker.state in ("idle", "running") for worker in self.workers()) < workers:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{workers} worker(s) not ready within {timeout_s:g} s")
            time.sleep(0.02)

    def wait_for_end(self, job_id: str, timeout_s: float = 30.0) -> Record:
        """Wait until a recorded job is in a final state. Raises `TimeoutError`."""
        deadline_s = time.monotonic() + timeout_s
        while not (record := self.record(job_id)).status.is_final:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"job {job_id} is {record.status} after {timeout_s:g} s")
            time.sleep(0.01)
        return record

    def submit(self, job_input: object) -> str:
        """Queue a job as `/run` does, and give its id."""

        def submit() -> Job:
            return self._endpoint.submit(job_input, "run", len(wire.dump(job_input)))

        return self._call(submit).id

    def lose_worker(self, worker_id: str) -> None:
        """Treat a worker as gone, as when its process has ended: its jobs are queued again."""
        self._call(lambda: self._endpoint.jobs.lose(worker_id))

    def _worker_infos(self) -> list[WorkerInfo]:
        return [
            WorkerInfo(
                id=worker.id,
                state=worker.state,
                jobs=tuple(worker.jobs),
                stops_pending=tuple(worker.stops),
                ping_s=worker.ping_s,
                ping_jobs=frozenset(worker.ping_jobs),
                sdk_version=worker.sdk_version,
                is_retired=worker.retired,
            )
            for worker in self._endpoint.jobs.workers.values()
        ]

    def _call(self, function: Callable[[], T]) -> T:
        if self._loop.is_closed():
            return function()

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(timeout=10)


@contextlib.contextmanager
def serve(
    knobs: Knobs | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    endpoint_id: str = "local",
    api_key: str = "local-api-key",
    worker_key: str = "local-worker-key",
) -> Iterator[LocalEndpoint]:
    """Run an endpoint on a thread of its own, on a free port unless one is given::

        with local_endpoint.serve(Knobs(rtt_ms=50)) as endpoint:
            client = openai.OpenAI(base_url=endpoint.openai_url, api_key=endpoint.api_key)

    Raises `OSError` if it cannot listen there.
    """
    endpoint = Endpoint(
        knobs or Knobs(), endpoint_id=endpoint_id, api_key=api_key, worker_key=worker_key
    )
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        stop = asyncio.Event()
        async with listening(endpoint, host, port):
            started.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=main, name="local-endpoint", daemon=True)
    thread.start()
    loop, stop = started.result()
    try:
        yield LocalEndpoint(endpoint, loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
