"""The OpenAI route: any request under `/openai/` becomes a job, and its yields the answer."""

import asyncio
import json
import time
from typing import Any

from aiohttp import web

from local_endpoint import wire
from local_endpoint.job import Job, Status
from local_endpoint.side import Side

NO_BODY: dict[str, dict[str, Any]] = {
    "absent": {},
    "null": {"openai_input": None},
    "empty": {"openai_input": {}},
}
POSTED = frozenset({"v1/chat/completions", "v1/completions", "v1/embeddings"})


class OpenAISide(Side):
    """Answers OpenAI clients, whose requests reach a worker without method, headers or query."""

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", self._base + "/openai/{path:.*}", self.answer)]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Run a request as a job, and answer what the job yields."""
        if request.method in ("GET", "HEAD") and request.match_info["path"] in POSTED:
            raise web.HTTPMethodNotAllowed(request.method, ["POST"])
        until_s = time.monotonic() + self._knobs.openai_timeout_s
        job_input: dict[str, Any] = {"openai_route": "/" + request.match_info["path"]}
        try:
            body = await wire.read(request, self._knobs.max_body_run)
            job_input |= (
                {"openai_input": wire.parse(body, self._knobs.max_depth)}
                if body
                else NO_BODY[self._knobs.models_input]
            )
        except wire.TooLargeError as error:
            return wire.reply(wire.openai_error(str(error)), self._knobs.oversize_request_status)
        except ValueError as error:
            return wire.reply(wire.openai_error(f"the body is not JSON: {error}"), 400)
        job = self._jobs.submit(job_input, "openai", size=len(body))
        try:
            if job.is_stream:
                return await self._stream(request, job, until_s)
            return await self._whole(job, until_s)
        except (asyncio.CancelledError, ConnectionError):  # the client is gone
            if self._knobs.cancel_on_disconnect:
                self._jobs.cancel(job)
            raise

    async def _whole(self, job: Job, until_s: float) -> web.Response:
        await self._endpoint.waiters.wait_until(job.id, lambda: job.status.is_final, until_s)
        if job.status is not Status.COMPLETED:
            return self._failure(job)
        yields = self._jobs.drain(job) if job.run.chunk_count else _as_yields(job)
        return web.Response(body=_join(yields), content_type="application/json", charset="utf-8")

    async def _stream(self, request: web.Request, job: Job, until_s: float) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        lost = job.lost

        def has_news() -> bool:
            return bool(job.run.chunks) or job.status.is_final or job.lost > lost

        while True:
            if response is not None and job.lost > lost:  # a second worker would repeat the first
                break
            lost = job.lost
            yields = self._jobs.drain(job)
            is_final = job.status.is_final
            if job.status is Status.COMPLETED and not job.run.chunk_count:
                yields = _as_yields(job)
            if response is None and (yields or job.status is Status.COMPLETED):
                response = web.StreamResponse(
                    headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
                )
                await response.prepare(request)
            if yields and response is not None:
                await response.write(b"".join(map(_as_bytes, yields)))
            if is_final or not await self._endpoint.waiters.wait_until(job.id, has_news, until_s):
                break
        if response is None:
            return self._failure(job)
        if job.status is not Status.COMPLETED:
            self._jobs.cancel(job)
            response.force_close()
        await response.write_eof()
        return response

    def _failure(self, job: Job) -> web.Response:
        if not job.status.is_final:
            self._jobs.cancel(job)
            return wire.reply(
                wire.openai_error("the job did not end in time", "timeout_error"), 504
            )
        error = job.run.error or f"the job ended as {job.status}"
        try:
            body = json.loads(error)
        except ValueError:
            body = None
        if not (isinstance(body, dict) and isinstance(body.get("error"), dict)):
            body = wire.openai_error(error, "server_error")
        status = self._knobs.openai_failed_status
        if status == "code":
            code = body["error"].get("code")
            status = code if isinstance(code, int) and 400 <= code <= 599 else 500
        return wire.reply(body, status)


def _as_yields(job: Job) -> list[Any]:
    """Return the output of a handler that streamed nothing as if it had yielded it."""
    if not job.run.has_output:
        return []
    return job.run.output if isinstance(job.run.output, list) else [job.run.output]


def _join(yields: list[Any]) -> bytes:
    if all(isinstance(value, str) for value in yields) or len(yields) == 1:
        return b"".join(map(_as_bytes, yields))
    return wire.dump(yields)


def _as_bytes(value: Any) -> bytes:
    """Return a string as it is, and anything else as JSON."""
    return value.encode(errors="backslashreplace") if isinstance(value, str) else wire.dump(value)
