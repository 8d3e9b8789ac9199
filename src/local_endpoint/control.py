"""The control API: what happens inside the endpoint, faults, recording, workers and knobs.

It needs no key, and `gate` lets only this machine use it.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from local_endpoint import figures, knobs, wire
from local_endpoint.endpoint import Endpoint
from local_endpoint.job import Job, Status, Worker
from local_endpoint.process import WorkerError, log_since
from local_endpoint.recording import Post, Record, Request
from local_endpoint.side import Side
from local_endpoint.views import health_view

LATEST_JOBS = 200
PREVIEW = 500  # characters


@dataclass(frozen=True)
class WorkerInfo:
    """A worker as it is at one moment, as `/control/state` shows it."""

    id: str
    state: str
    jobs: tuple[str, ...]
    stops_pending: tuple[str, ...]
    ping_s_ago: float | None
    ping_jobs: tuple[str, ...]  # those that its last heartbeat named
    sdk_version: str | None
    is_retired: bool
    pid: int | None  # of a worker that was started here
    starts: int  # of this worker and of the failed ones that it replaces
    phase: str  # what it says that it does while it starts
    log: str | None


class ControlSide(Side):
    """Answers whoever develops a worker."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/control/state", self.state),
            web.get("/control/jobs", self.jobs),
            web.get("/control/jobs/{job}", self.job),
            web.get("/control/faults", self.faults),
            web.post("/control/faults", self.add_fault),
            web.delete("/control/faults", self.clear_faults),
            web.get("/control/recording", self.recording),
            web.post("/control/recording", self.switch_recording),
            web.delete("/control/recording", self.clear_recording),
            web.post("/control/workers", self.workers),
            web.get("/control/workers/{id}/log", self.log),
            web.get("/control/engines", self.engines),
            web.get("/control/knobs", self.knobs),
            web.put("/control/knobs", self.set_knobs),
        ]

    async def state(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Return the state of everything, with the latest jobs."""
        return wire.reply(state(self._endpoint))

    async def jobs(self, request: web.Request) -> web.Response:
        """Return the latest jobs of one status: `?status=FAILED`."""
        try:
            status = Status(request.query.get("status", ""))
        except ValueError:
            raise wire.RefusedError(f"status is none of {', '.join(Status)}") from None
        now_s = time.monotonic()
        return wire.reply(
            {"jobs": [_row(job, now_s) for job in self._jobs.latest(LATEST_JOBS, status)]}
        )

    async def job(self, request: web.Request) -> web.Response:
        """Return everything that is known about one job."""
        job_id = request.match_info["job"]
        job = self._jobs.get(job_id)
        try:
            record = self._endpoint.recording.record(job_id)
        except KeyError:
            record = None
        if job is None and record is None:
            raise wire.RefusedError("job not found", 404)
        return wire.reply(_job_view(job, record))

    async def faults(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """List the faults that are still to happen."""
        return wire.reply({"faults": self._endpoint.faults.waiting()})

    async def add_fault(self, request: web.Request) -> web.Response:
        """Add one: `{"route": "posts", "status": 500, "times": 3}`; see `faults.Fault`."""
        fault = await _object(request)
        try:
            self._endpoint.faults.add(**fault)
        except (ValueError, TypeError) as error:
            raise wire.RefusedError(str(error)) from None
        return wire.reply({"faults": self._endpoint.faults.waiting()})

    async def clear_faults(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Forget all faults."""
        self._endpoint.faults.clear()
        return wire.reply({"faults": []})

    async def recording(self, request: web.Request) -> web.StreamResponse:
        """Download what is recorded: a line of JSON for each job, and for each other request."""
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/x-ndjson",
                "Content-Disposition": 'attachment; filename="recording.jsonl"',
            }
        )
        await response.prepare(request)
        for line in _lines(self._endpoint):
            await response.write(line)
        await response.write_eof()
        return response

    async def switch_recording(self, request: web.Request) -> web.Response:
        """Turn it on or off: `{"on": true}`."""
        is_on = (await _object(request)).get("on")
        if not isinstance(is_on, bool):
            raise wire.RefusedError('"on" is neither true nor false')
        self._endpoint.recording.is_on = is_on
        return wire.reply({"recording": is_on})

    async def clear_recording(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Forget what is recorded."""
        self._endpoint.recording.clear()
        return wire.reply({"recording": self._endpoint.recording.is_on})

    async def workers(self, request: web.Request) -> web.Response:
        """Start, end or scale workers: `{"action": "kill", "id": "local-1"}`; see `Supervisor`."""
        order = await _object(request)
        supervisor = self._endpoint.supervisor
        if supervisor is None:
            raise wire.RefusedError("no workers are started here", 409)
        try:
            result = await supervisor.act(**order)
        except (WorkerError, TypeError) as error:
            raise wire.RefusedError(str(error)) from None
        return wire.reply({"id": result, "scaling": _scaling(self._endpoint)})

    async def log(self, request: web.Request) -> web.Response:
        """Return what is new in a worker's log: `?since=` the `end` of the last answer."""
        try:
            since = int(request.query.get("since", "0"))
        except ValueError:
            raise wire.RefusedError("since is not a number of bytes") from None
        supervisor = self._endpoint.supervisor
        if supervisor is None:
            raise wire.RefusedError("no workers are started here", 409)
        try:
            log = supervisor.log(request.match_info["id"])
        except WorkerError as error:
            raise wire.RefusedError(str(error), 404) from None
        return wire.reply(log_since(log, since))

    async def engines(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Ask the engines of the workers run here for their figures, those that give any."""
        processes = self._endpoint.supervisor.processes() if self._endpoint.supervisor else []
        answers = await asyncio.gather(*(figures.ask(one.metrics_port) for one in processes))
        engines = {
            process.id: dataclasses.asdict(answer)
            for process, answer in zip(processes, answers, strict=True)
            if answer is not None
        }
        return wire.reply({"now_s": _round(time.monotonic()), "engines": engines})

    async def knobs(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Return every knob with its value and its meaning."""
        values = self._knobs
        described = [{**one, "value": getattr(values, one["name"])} for one in knobs.describe()]
        return wire.reply({"knobs": described})

    async def set_knobs(self, request: web.Request) -> web.Response:
        """Change knobs: `{"rtt_ms": 50}`."""
        try:
            self._endpoint.set_knobs(self._knobs.replace(await _object(request)))
        except ValueError as error:
            raise wire.RefusedError(str(error)) from None
        return wire.reply({"knobs": dataclasses.asdict(self._knobs)})


def state(endpoint: Endpoint) -> dict[str, Any]:
    """Return the object of `/control/state`."""
    now_s = time.monotonic()
    jobs = endpoint.jobs
    return {
        "endpoint": {
            "id": endpoint.id,
            "type": endpoint.type,
            "url": endpoint.url,
            "openai_url": endpoint.openai_url,
            "api_key": endpoint.api_key,
            "started_s_ago": _round(now_s - endpoint.started_s),
        },
        "now_s": _round(now_s),
        "health": health_view(jobs),
        "workers": [
            dataclasses.asdict(worker_info(endpoint, worker)) for worker in jobs.workers.values()
        ],
        "jobs": [_row(job, now_s) for job in jobs.latest(LATEST_JOBS)],
        "faults": endpoint.faults.waiting(),
        "recording": endpoint.recording.is_on,
        "scaling": _scaling(endpoint),
        "knobs": dataclasses.asdict(endpoint.knobs),
    }


def worker_info(endpoint: Endpoint, worker: Worker) -> WorkerInfo:
    process = endpoint.supervisor.process(worker.id) if endpoint.supervisor else None
    return WorkerInfo(
        id=worker.id,
        state=worker.state,
        jobs=tuple(worker.jobs),
        stops_pending=tuple(worker.stops),
        ping_s_ago=None if worker.ping_s is None else _round(time.monotonic() - worker.ping_s),
        ping_jobs=tuple(sorted(worker.ping_jobs)),
        sdk_version=worker.sdk_version,
        is_retired=worker.retired,
        pid=process.pid if process else None,
        starts=process.starts if process else 1,
        phase=process.phase if process else "",
        log=str(process.log) if process else None,
    )


def _scaling(endpoint: Endpoint) -> dict[str, Any]:
    supervisor = endpoint.supervisor
    return {
        "supervised": supervisor is not None,
        "min": supervisor.min_workers if supervisor else None,
        "max": supervisor.max_workers if supervisor else None,
        "scaler": endpoint.knobs.scaler,
        "scaler_value": endpoint.knobs.scaler_value,
        "idle_timeout_s": endpoint.knobs.idle_timeout_s,
    }


def _row(job: Job, now_s: float) -> dict[str, Any]:
    run = job.run
    tokens = run.tokens if run.tokens is not None else run.events or None
    last_s = run.last_post_s if not job.status.is_final else run.ended_s
    running_s = last_s - run.taken_s if last_s is not None and run.taken_s is not None else 0.0
    is_failed = job.status in (Status.FAILED, Status.TIMED_OUT)
    rate = tokens / running_s if tokens and running_s > 0 and not is_failed else None
    # An answer that comes whole has no first token: its first post is all of it.
    has_first = run.chunk_count > (not (job.is_stream or run.events)) and (tokens or not is_failed)
    first_s = run.first_post_s if has_first else None
    return {
        "id": job.id,
        "kind": job.kind,
        "route": _route(job),
        "status": job.status,
        "queued_s": _round((run.taken_s or run.ended_s or now_s) - job.submitted_s),
        "time_to_first_token_s": None if first_s is None else _round(first_s - job.submitted_s),
        "tokens": tokens,
        "tokens_reported": run.tokens is not None,
        "tokens_per_s": None if rate is None else round(rate, 1),
        "posts": run.posts,
        "bytes": run.post_bytes,
        "submitted_s_ago": _round(now_s - job.submitted_s),
        "ended_s": None if run.ended_s is None else _round(run.ended_s - job.submitted_s),
        "worker_id": run.worker_id,
        "error": run.error,
    }


def _route(job: Job) -> str | None:
    if job.kind == "http":
        return str(job.input)
    return job.input.get("openai_route") if isinstance(job.input, dict) else None


def _job_view(job: Job | None, record: Record | None) -> dict[str, Any]:
    """Return the object of `/control/jobs/<id>`: each `at_s` is on the clock of `now_s`."""
    now_s = time.monotonic()
    view: dict[str, Any] = {"now_s": _round(now_s)}
    if job is not None:
        view |= _row(job, now_s)
        view["states"] = _states(job.history)
    if record is not None:
        view |= _record_view(record, _preview)
    if job is not None:  # what is still there is not recorded only for this
        view["input"] = _preview(job.input)
        view["output"] = _preview(job.run.output) if job.run.has_output else None
    return view


def _record_view(record: Record, show: Callable[[Any], Any]) -> dict[str, Any]:
    def posts(of_kind: tuple[Post, ...], key: str) -> list[dict[str, Any]]:
        return [
            {
                "at_s": _round(post.at_s),
                "bytes": post.size,
                key: None if post.value is None else show(post.value),
                "worker_id": post.worker_id,
            }
            for post in of_kind
        ]

    key = "preview" if show is _preview else "value"
    return {
        "id": record.job_id,
        "status": record.status,
        "input": None if record.input is None else show(record.input),
        "states": _states(record.states),
        "stream": posts(record.stream, key),
        "done": posts(record.done, key),
        "late": posts(record.late, key),
        "stops": [_round(at_s) for at_s in record.stops],
        "requests": [_request_view(request) for request in record.requests],
    }


def _states(history: Iterable[tuple[float, Status]]) -> list[dict[str, Any]]:
    return [{"at_s": _round(at_s), "status": status} for at_s, status in history]


def _request_view(request: Request) -> dict[str, Any]:
    return {**dataclasses.asdict(request), "body": request.body.decode(errors="replace")}


def _lines(endpoint: Endpoint) -> Iterator[bytes]:
    for record in list(endpoint.recording.records()):
        yield wire.dump(_record_view(record, lambda value: value)) + b"\n"
    for request in endpoint.recording.other_requests():
        yield wire.dump({"request": _request_view(request)}) + b"\n"


def _preview(value: Any) -> str:
    text = value if isinstance(value, str) else wire.dump(value).decode()
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"


async def _object(request: web.Request) -> dict[str, Any]:
    try:
        message = wire.parse(await request.read())
    except ValueError as error:
        raise wire.RefusedError(f"the body is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise wire.RefusedError("the body is not an object")
    return message


def _round(seconds: float) -> float:
    return round(seconds, 4)
