"""The endpoint as a web application: who may ask, what goes wrong on order, and what is noted."""

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from local_endpoint import control, page, wire, worker_side
from local_endpoint.control import ControlSide
from local_endpoint.endpoint import Endpoint
from local_endpoint.faults import FAULT
from local_endpoint.openai_side import OpenAISide
from local_endpoint.public_side import PublicSide
from local_endpoint.rate_limits import RateLimits
from local_endpoint.recording import Request, without_secrets
from local_endpoint.worker_side import WorkerSide

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
POSTS = frozenset({"job-stream", "job-done"})
SHUTDOWN_S = 0.5  # for requests that are still being answered


def application(endpoint: Endpoint) -> web.Application:
    """Build the web application of an endpoint."""
    jobs = endpoint.jobs
    limits = RateLimits(time.monotonic)

    async def treat(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            return wire.refuse(error.reason.lower(), error.status)
        except wire.RefusedError as error:
            return wire.refuse(str(error), error.status)

    async def delayed(request: web.Request, handler: Handler, route: str) -> web.StreamResponse:
        """Treat a request with its fault and the round trip around it."""
        fault = endpoint.faults.next(route, request.match_info.get("worker"))
        if fault is not None:
            request[FAULT] = fault
            if (instead := await fault.before(request)) is not None:
                if not fault.drop:
                    request[wire.BODY] = await request.read()
                return instead
        half_rtt_s = endpoint.knobs.rtt_ms / 2000 if route in POSTS else 0.0
        if half_rtt_s:
            await asyncio.sleep(half_rtt_s)
        answer = await treat(request, handler)
        if half_rtt_s:
            await asyncio.sleep(half_rtt_s)
        if fault is not None and not answer.prepared:  # else it met its fault in `wire.send`
            await fault.before_answer(request)
        return answer

    async def worker(request: web.Request, handler: Handler, route: str) -> web.StreamResponse:
        """Treat a worker's request, and record it."""
        arrived_s = request[worker_side.ARRIVED_S]
        answer = await delayed(request, handler, route)
        if endpoint.recording.is_on:
            job_id = request.match_info.get("job")
            endpoint.recording.requested(
                Request(
                    at_s=arrived_s,
                    duration_s=time.monotonic() - arrived_s,
                    method=request.method,
                    path=request.path_qs,
                    headers=without_secrets(request.headers),
                    body=request.get(wire.BODY, b""),
                    status=answer.status,
                ),
                request.get(worker_side.JOB_IDS, [job_id] if job_id else []),
            )
        return answer

    async def customer(request: web.Request, handler: Handler, route: str) -> web.StreamResponse:
        """Treat a customer's request, unless there are too many."""
        workers = endpoint.supervisor.max_workers if endpoint.supervisor else len(jobs.workers)
        headers = limits.enter(route, endpoint.knobs.rate_limits, jobs.in_queue, workers)
        if headers is not None:
            answer = wire.refuse("too many requests", 429)
            answer.headers.update(headers)
            return answer
        try:
            return await delayed(request, handler, route)
        finally:
            limits.leave(route)

    @web.middleware
    async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[worker_side.ARRIVED_S] = time.monotonic()
        if control.is_local(request.path):
            why_not = control.refusal(request)
            return wire.refuse(why_not, 403) if why_not else await treat(request, handler)
        _, version, endpoint_id, route, *_ = f"{request.path}////".split("/", 4)
        if (version, endpoint_id) != ("v2", endpoint.id):
            return wire.refuse("endpoint not found", 404)
        is_worker = route in worker_side.ROUTES
        key = endpoint.worker_key if is_worker else endpoint.api_key
        may_be_x = endpoint.knobs.x_api_key and not is_worker
        if not _is_authorized(request, key, "x-api-key" if may_be_x else None):
            return wire.refuse("unauthorized", 401)
        return await (worker if is_worker else customer)(request, handler, route)

    async def living(app: web.Application) -> AsyncIterator[None]:  # noqa: ARG001
        clock = asyncio.create_task(endpoint.keep_time())
        yield
        clock.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await clock
        await endpoint.webhooks.close()

    app = web.Application(middlewares=[gate], client_max_size=2**40)  # `wire.read` has the limits
    for side in (WorkerSide, PublicSide, OpenAISide, ControlSide):
        app.add_routes(side(endpoint).routes())
    app.add_routes(page.routes())
    app.cleanup_ctx.append(living)
    return app


def _is_authorized(request: web.Request, key: str, also: str | None) -> bool:
    given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    if also is not None and not given:
        given = request.headers.get(also, "")
    return hmac.compare_digest(given.encode(errors="replace"), key.encode())


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
