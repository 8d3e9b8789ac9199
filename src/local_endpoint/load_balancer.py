"""A load-balancing endpoint: requests go straight to the HTTP servers of ready workers.

A worker listens on `PORT`, and is asked for its health on `PORT_HEALTH`. There is no queue and no
second try. To the rest of the endpoint a request is a job that waits IN_QUEUE for a ready worker
and is IN_PROGRESS there: so it is counted, shown and recorded like any other.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from local_endpoint import faults, usage, wire
from local_endpoint.job import Job, Policy, Status, Worker
from local_endpoint.jobs import WAITING_FOR_WORKERS, Jobs
from local_endpoint.process import free_port
from local_endpoint.recording import Post, Recording
from local_endpoint.waiting import Waiters

AFFINITY = "X-Runpod-Worker-Id"
HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=5)
UNLIMITED = Policy(execution_timeout_s=math.inf, ttl_s=math.inf)  # `answer` has its own limits
# What is between two neighbours only.
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "host", "expect"}
)
NOT_ADDED = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)


class LoadBalancer:
    """Checks the health of the workers that are started here, and gives them the requests."""

    _session: aiohttp.ClientSession

    def __init__(self, jobs: Jobs, waiters: Waiters, recording: Recording) -> None:
        self._jobs = jobs
        self._waiters = waiters
        self._recording = recording
        self._ports: dict[str, tuple[str, str]] = {}  # PORT and PORT_HEALTH of each worker

    def environ(self, worker_id: str) -> dict[str, str]:
        """Return the variables of a new worker, with a free port of its own."""
        port = str(free_port({int(port) for port, _ in self._ports.values()}))
        health = os.environ.get("PORT_HEALTH") or port
        self._ports[worker_id] = port, health
        return {"WORKER_MODE": "load_balancer", "PORT": port, "PORT_HEALTH": health}

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Check the workers' health, and be able to answer, inside the block."""
        async with aiohttp.ClientSession(
            # A kept connection may be closed by the worker in the moment of the next request.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(),
            auto_decompress=False,
            skip_auto_headers=NOT_ADDED,
        ) as self._session:
            watch = asyncio.create_task(self._watch())
            yield
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.gather(*map(self._check, list(self._jobs.workers)))
            await asyncio.sleep(self._jobs.knobs.health_check_s)

    async def _check(self, worker_id: str) -> None:
        path = os.environ.get("HEALTH_CHECK_PATH") or "ping"
        url = f"http://127.0.0.1:{self._ports[worker_id][1]}/{path.lstrip('/')}"
        status = None
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.get(url, timeout=HEALTH_TIMEOUT) as answer:
                status = answer.status
        self._jobs.checked(worker_id, status)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on to a worker and its answer back, each piece as it comes."""
        limit = self._jobs.knobs.max_body_http
        if (request.content_length or 0) > limit:
            return wire.refuse(_too_large("request", limit), 413)
        job = self._jobs.submit(f"{request.method} {request.path}", "http", policy=UNLIMITED)
        response = web.StreamResponse()
        status, error = Status.CANCELLED, None  # unless it ends otherwise, the client has left
        try:
            worker = await self._find_worker(request.headers.get(AFFINITY, ""))
            self._jobs.assign(job, worker)
            response.headers[AFFINITY] = worker.id
            await self._pass_on(request, response, job, worker)
            status = Status.COMPLETED
            if response.status >= 400:
                status, error = Status.FAILED, f"HTTP {response.status}"
        except wire.RefusedError as refusal:
            status, error = Status.FAILED, str(refusal)
            if response.prepared:
                faults.cut(request)
                return response
            refused = wire.refuse(error, refusal.status)
            refused.headers.update(response.headers)
            return refused
        finally:
            self._jobs.end(job, status, error)
        return response

    async def _find_worker(self, affinity: str) -> Worker:
        """Wait for a worker: the one that is asked for, else of those ready the least busy."""
        mode, _, pinned = affinity.strip().rpartition(" ")
        is_strict = mode in ("strict", "strict-resume")
        knobs = self._jobs.knobs

        def is_gone() -> bool:
            worker = self._jobs.workers.get(pinned)
            return is_strict and (worker is None or worker.retired)

        def find() -> Worker | None:
            ready = {one.id: one for one in self._jobs.workers.values() if one.is_available}
            if pinned in ready or is_strict:
                return ready.get(pinned)
            return min(ready.values(), key=lambda one: len(one.jobs), default=None)

        await self._waiters.wait_until(
            WAITING_FOR_WORKERS,
            lambda: is_gone() or find() is not None,
            time.monotonic() + (knobs.strict_wait_s if is_strict else knobs.worker_wait_s),
        )
        if is_gone():
            raise wire.RefusedError("affinity_worker_gone", 404)
        if (worker := find()) is None:
            raise wire.RefusedError("worker_timeout" if is_strict else "no workers available")
        return worker

    async def _pass_on(
        self, request: web.Request, response: web.StreamResponse, job: Job, worker: Worker
    ) -> None:
        """Let the worker answer. Raises `RefusedError` if it does not, or not to the end."""
        try:
            async with asyncio.timeout(self._jobs.knobs.request_timeout_s):
                await self._exchange(request, response, job, worker)
        except TimeoutError:
            raise wire.RefusedError("the worker did not answer in time", 524) from None
        except aiohttp.ClientError as error:
            if isinstance(error.__cause__, wire.TooLargeError):
                raise wire.RefusedError(str(error.__cause__), 413) from None
            if not wire.is_connected(request):
                raise
            raise wire.RefusedError(f"the worker's answer was not received: {error}", 502) from None

    async def _exchange(
        self, request: web.Request, response: web.StreamResponse, job: Job, worker: Worker
    ) -> None:
        knobs = self._jobs.knobs
        headers = _end_to_end(request.headers)
        if not knobs.forward_authorization:
            headers.popall(hdrs.AUTHORIZATION, None)
        url = f"http://127.0.0.1:{self._ports[worker.id][0]}{request.rel_url.raw_path_qs}"
        async with self._session.request(
            request.method,
            URL(url, encoded=True),
            headers=headers,
            data=_pieces(request, knobs.max_body_http) if request.body_exists else None,
            allow_redirects=False,
        ) as upstream:
            size = upstream.content_length or 0
            if size > knobs.max_body_http and request.method != hdrs.METH_HEAD:
                raise wire.RefusedError(_too_large("answer", knobs.max_body_http), 502)
            response.set_status(upstream.status, upstream.reason)
            response.headers.extend(_end_to_end(upstream.headers))
            response.headers[AFFINITY] = worker.id
            await response.prepare(request)
            size = 0
            async for data in upstream.content.iter_any():
                size += len(data)
                if size > knobs.max_body_http:
                    raise wire.RefusedError(_too_large("answer", knobs.max_body_http), 502)
                self._note(job, worker, data)
                await response.write(data)
        await response.write_eof()

    def _note(self, job: Job, worker: Worker, data: bytes) -> None:
        text = data.decode(errors="replace")
        tokens, events = usage.output_tokens(text), usage.events(text)
        self._jobs.passed_on(job, len(data), tokens, events)
        post = Post(time.monotonic(), len(data), text, worker.id)
        self._recording.posted("stream", job.id, post)
        if text.endswith("data: [DONE]\n\n"):  # after which OpenAI's client leaves at once
            self._jobs.end(job, Status.COMPLETED)


async def _pieces(request: web.Request, limit: int) -> AsyncIterator[bytes]:
    size = 0
    async for data in request.content.iter_any():
        size += len(data)
        if size > limit:
            raise wire.TooLargeError(_too_large("request", limit))
        yield data


def _end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Return the headers that are meant for the other end."""
    named = {name.strip().lower() for name in headers.get(hdrs.CONNECTION, "").split(",")}
    own = HOP_BY_HOP | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in own)


def _too_large(what: str, limit: int) -> str:
    return f"the {what} is larger than {limit:,} bytes"
