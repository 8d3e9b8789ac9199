"""The gate that every request goes through: who may ask, injected faults, and the recording."""

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from local_endpoint import page, wire, worker_side
from local_endpoint.endpoint import Endpoint
from local_endpoint.faults import FAULT
from local_endpoint.rate_limits import RateLimits
from local_endpoint.recording import Request, without_secrets

Answer = web.StreamResponse
Handler = Callable[[web.Request], Awaitable[Answer]]
NO_KEY = "the key is missing: send it in the header Authorization: Bearer <key>"
WRONG_KEY = "the key in the header Authorization: Bearer <key> is not this endpoint's"
ASK_FOR_KEY = {"WWW-Authenticate": "Bearer"}
POSTS = frozenset({"job-stream", "job-done"})


class Gate:
    """The middleware of an endpoint's application."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._limits = RateLimits(time.monotonic)

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> Answer:
        """Answer a request, or refuse it to those who have no right to ask."""
        endpoint = self._endpoint
        request[worker_side.ARRIVED_S] = time.monotonic()
        if request.path.startswith("/control/") or page.is_page(request.path):
            why_not = _why_not_local(request)
            return wire.refuse(why_not, 403) if why_not else await self._answer(request, handler)
        _, version, endpoint_id, route, *_ = f"{request.path}////".split("/", 4)
        is_forwarded = (version, endpoint_id) != ("v2", endpoint.id)
        if is_forwarded and endpoint.balancer is None:
            return self._no_such(request, "endpoint")
        is_worker = route in worker_side.ROUTES and not is_forwarded
        key = endpoint.worker_key if is_worker else endpoint.api_key
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not given and endpoint.knobs.x_api_key and not is_worker:
            given = request.headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode(errors="replace"), key.encode()):
            return _refuse(request, NO_KEY if not given else WRONG_KEY, 401, **ASK_FOR_KEY)
        if endpoint.balancer is not None:
            return await self._answer(
                request, endpoint.balancer.answer if is_forwarded else handler
            )
        return await (self._worker if is_worker else self._customer)(request, handler, route)

    async def _worker(self, request: web.Request, handler: Handler, route: str) -> Answer:
        """Answer a worker's request, and record it."""
        arrived_s = request[worker_side.ARRIVED_S]
        answer = await self._with_faults(request, handler, route)
        if self._endpoint.recording.is_on:
            job_id = request.match_info.get("job")
            self._endpoint.recording.requested(
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

    async def _customer(self, request: web.Request, handler: Handler, route: str) -> Answer:
        """Answer a customer's request, unless there are too many."""
        jobs, supervisor = self._endpoint.jobs, self._endpoint.supervisor
        workers = supervisor.max_workers if supervisor else len(jobs.workers)
        scale = self._endpoint.knobs.rate_limits
        with self._limits.request(route, scale, jobs.in_queue, workers) as refusal:
            if refusal is not None:
                return _refuse(request, "too many requests", 429, **refusal)
            return await self._with_faults(request, handler, route)

    async def _with_faults(self, request: web.Request, handler: Handler, route: str) -> Answer:
        """Answer a request with the fault that awaits it, and the round trip around it."""
        fault = self._endpoint.faults.next(route, request.match_info.get("worker"))
        if fault is not None:
            request[FAULT] = fault
            if (instead := await fault.before(request)) is not None:
                if not fault.drop:
                    request[wire.BODY] = await request.read()
                return instead
        half_rtt_s = self._endpoint.knobs.rtt_ms / 2000 if route in POSTS else 0.0
        if half_rtt_s:
            await asyncio.sleep(half_rtt_s)
        answer = await self._answer(request, handler)
        if half_rtt_s:
            await asyncio.sleep(half_rtt_s)
        if fault is not None and not answer.prepared:  # else `wire.send` has done it
            await fault.before_answer(request)
        return answer

    async def _answer(self, request: web.Request, handler: Handler) -> Answer:
        """Answer a request; what is wrong with it becomes a sentence in JSON."""
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            methods = " or ".join(sorted(error.allowed_methods - {"HEAD"}))
            sentence = f"this address takes {methods}, and this was {request.method}"
            return _refuse(request, sentence, 405, Allow=error.headers["Allow"])
        except web.HTTPNotFound:
            return self._no_such(request, "route")
        except web.HTTPException as error:
            return _refuse(request, error.reason.lower(), error.status)
        except wire.RefusedError as error:
            return _refuse(request, str(error), error.status)

    def _no_such(self, request: web.Request, what: str) -> web.Response:
        """Refuse a request to an address that is none, with the one that was likely meant."""
        origin = f"{request.scheme}://{request.host}"
        is_balanced = self._endpoint.balancer is not None
        base = f"{origin}/v2/{self._endpoint.id}"
        openai = f"{origin}/v1" if is_balanced else f"{base}/openai/v1"
        _, is_openai, path = request.path.rpartition("/v1/")
        if is_openai:
            right = f"{openai}/{path}"
        elif request.path.startswith("/control/"):
            right = f"{origin}/control/state"
        elif is_balanced:
            right = f"{origin} with a path of the worker's: a load-balancing endpoint has no jobs"
        else:
            right = f"{base}/run, or {openai} for OpenAI's clients"
        return _refuse(request, f"no {what} is at this address; try {right}", 404)


def _refuse(request: web.Request, sentence: str, status: int, **headers: str) -> web.Response:
    """Refuse a request in the shape that its client reads."""
    is_openai = "/openai/" in request.path or "/v1/" in request.path
    answer = wire.reply(wire.openai_error(sentence) if is_openai else {"error": sentence}, status)
    answer.headers.update(headers)
    return answer


def _why_not_local(request: web.Request) -> str | None:
    """Return why a request may not use what is only for this machine, or None if it may.

    A web page of another origin may not: the names in `Host` and `Origin` must be this machine's.
    """
    if not _is_loopback(request.remote or ""):
        return "only for this machine"
    host = request.headers.get("Host", "")
    if not _is_loopback(urlsplit(f"//{host}").hostname or ""):
        return "the Host header does not name this machine"
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return "not for pages of another origin"
    return None


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
