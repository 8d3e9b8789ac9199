"""The routes a customer calls: run, runsync, status, stream, cancel, retry, purge, health."""

import time
from typing import Any

from aiohttp import web

from local_endpoint import wire
from local_endpoint.job import Job, Kind, Policy
from local_endpoint.side import Side
from local_endpoint.views import brief_view, health_view, status_view, stream_view

MAX_WAIT_MS = 300_000
POLICY_MIN_S = {"executionTimeout": 5.0, "ttl": 10.0}
POLICY_MAX_S = 7 * 86_400.0
LISTED = 1000
PASSED_ON = ("webhook", "s3Config")


class PublicSide(Side):
    """Answers customers, in the platform's shapes."""

    def routes(self) -> list[web.RouteDef]:
        base = self._base
        routes = [
            web.post(base + "/run", self.run),
            web.post(base + "/runsync", self.runsync),
            web.post(base + "/cancel/{job}", self.cancel),
            web.post(base + "/retry/{job}", self.retry),
            web.post(base + "/purge-queue", self.purge),
            web.get(base + "/health", self.health),
            web.get(base + "/requests", self.requests),
        ]
        for method in ("GET", "POST"):
            routes += [
                web.route(method, base + "/status/{job}", self.status),
                web.route(method, base + "/status-sync/{job}", self.status_sync),
                web.route(method, base + "/stream/{job}", self.stream),
            ]
        return routes

    async def run(self, request: web.Request) -> web.Response:
        """Queue a job and answer at once."""
        return wire.reply(brief_view(await self._submit(request, "run")))

    async def runsync(self, request: web.Request) -> web.Response:
        """Queue a job and wait for its end, at most `wait` milliseconds."""
        wait_s = _wait_s(request, self._knobs.runsync_wait_ms / 1000)
        return await self._at_its_end(await self._submit(request, "sync"), wait_s)

    async def status(self, request: web.Request) -> web.Response:
        """Return the state of a job; `ttl` (milliseconds) sets how long it may exist."""
        job = self._find(request)
        if "ttl" in request.query:
            self._jobs.set_ttl(job, _positive_ms("ttl", request.query["ttl"]))
        return wire.reply(status_view(job))

    async def status_sync(self, request: web.Request) -> web.Response:
        """Return the state of a job at its end, or after `wait` milliseconds."""
        wait_s = _wait_s(request, self._knobs.runsync_wait_ms / 1000)
        return await self._at_its_end(self._find(request), wait_s)

    async def stream(self, request: web.Request) -> web.Response:
        """Hand out, once, what a job has streamed; an empty answer is held back for a while."""
        job = self._find(request)
        until_s = time.monotonic() + _wait_s(request, self._knobs.stream_hold_s)
        await self._endpoint.waiters.wait_until(
            job.id, lambda: bool(job.run.chunks) or job.status.is_final, until_s
        )
        with self._jobs.draining(job) as chunks:
            response = wire.reply(stream_view(job, chunks))
            await wire.send(request, response)
        return response

    async def cancel(self, request: web.Request) -> web.Response:
        """End a job, queued or running; its worker is told to stop it."""
        job = self._find(request)
        self._jobs.cancel(job)
        return wire.reply(brief_view(job))

    async def retry(self, request: web.Request) -> web.Response:
        """Queue a failed or timed-out job again."""
        job = self._find(request)
        if not self._jobs.retry(job):
            raise wire.RefusedError(f"only a failed job can be retried; this one is {job.status}")
        return wire.reply(brief_view(job))

    async def purge(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Remove all queued jobs; running ones go on."""
        return wire.reply({"removed": self._jobs.purge(), "status": "completed"})

    async def health(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Count jobs and workers by state."""
        return wire.reply(health_view(self._jobs))

    async def requests(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """List the latest jobs."""
        return wire.reply({"requests": [brief_view(job) for job in self._jobs.latest(LISTED)]})

    def _find(self, request: web.Request) -> Job:
        job = self._jobs.get(request.match_info["job"])
        if job is None:
            raise wire.RefusedError("job not found", 404)
        return job

    async def _at_its_end(self, job: Job, wait_s: float) -> web.Response:
        until_s = time.monotonic() + wait_s
        await self._endpoint.waiters.wait_until(job.id, lambda: job.status.is_final, until_s)
        if not job.status.is_final:
            return wire.reply(brief_view(job))
        if self._jobs.get(job.id) is None:  # its lifetime ended, or the queue was purged
            raise wire.RefusedError("job not found", 404)
        return wire.reply(status_view(job))

    async def _submit(self, request: web.Request, kind: Kind) -> Job:
        try:
            limit = self._knobs.max_body_sync if kind == "sync" else self._knobs.max_body_run
            body = await wire.read(request, limit)
        except wire.TooLargeError as error:
            raise wire.RefusedError(str(error), self._knobs.oversize_request_status) from None
        try:
            message = wire.parse(body, self._knobs.max_depth)
        except ValueError as error:
            raise wire.RefusedError(f"the body is not JSON: {error}") from None
        if not isinstance(message, dict) or "input" not in message:
            raise wire.RefusedError('the body has no "input"')
        extras = {key: message[key] for key in PASSED_ON if message.get(key)}
        policy = self._policy(message.get("policy") or {})
        return self._jobs.submit(
            message["input"], kind, policy=policy, size=len(body), extras=extras
        )

    def _policy(self, policy: Any) -> Policy:
        if not isinstance(policy, dict):
            raise wire.RefusedError("policy is not an object")
        given = {
            name: _positive_ms(f"policy.{name}", policy[name])
            for name in POLICY_MIN_S
            if policy.get(name) is not None
        }
        for name, duration_s in given.items():
            if self._knobs.policy_limits and not POLICY_MIN_S[name] <= duration_s <= POLICY_MAX_S:
                raise wire.RefusedError(
                    f"policy.{name}={policy[name]!r} is not between "
                    f"{POLICY_MIN_S[name] * 1000:.0f} and {POLICY_MAX_S * 1000:.0f} milliseconds"
                )
        return Policy(
            given.get("executionTimeout", self._knobs.execution_timeout_s),
            given.get("ttl", self._knobs.ttl_s),
            is_low_priority=policy.get("lowPriority") is True,
        )


def _wait_s(request: web.Request, default_s: float) -> float:
    if "wait" not in request.query:
        return default_s
    return min(_positive_ms("wait", request.query["wait"]), MAX_WAIT_MS / 1000)


def _positive_ms(name: str, value: Any) -> float:
    try:
        duration_ms = float(value)
    except (TypeError, ValueError):
        duration_ms = -1
    if not 0 < duration_ms < float("inf") or isinstance(value, bool):
        raise wire.RefusedError(f"{name}={value!r} is not a number of milliseconds")
    return duration_ms / 1000
