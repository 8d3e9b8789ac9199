"""The routes a worker calls: take, stop, stream, done, ping."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from local_endpoint import usage, wire
from local_endpoint.faults import FAULT
from local_endpoint.job import Job, Worker
from local_endpoint.jobs import WAITING_FOR_JOBS, stops_of
from local_endpoint.recording import Post
from local_endpoint.side import Side

ARRIVED_S = web.RequestKey("arrived_s", float)  # set on each request before any delay
JOB_IDS = web.RequestKey("job_ids", list[str])  # set on polls that are answered with jobs
TOLD_S = 3.0  # a worker learns of a stop within this: the SDK pauses 1 s between its polls
RETIRED_HOLD_S = 1.0  # of the polls of a worker that is to end: it waits for them
LANDED_S = 0.1  # from the answer of a poll to the task that it stops
ROUTES = frozenset({"job-take", "job-take-batch", "job-stop", "job-stream", "job-done", "ping"})


class WorkerSide(Side):
    """Answers workers. Paths end in the worker's id, and for posts in the job's."""

    def routes(self) -> list[web.RouteDef]:
        base = self._base
        return [
            web.post(base + "/job-stream/{worker}/{job}", self.stream),
            web.post(base + "/job-done/{worker}/{job}", self.done),
            web.get(base + "/ping/{worker}", self.ping, allow_head=False),
            web.get(base + "/job-take/{worker}", self.take, allow_head=False),
            web.get(base + "/job-take-batch/{worker}", self.take, allow_head=False),
            web.get(base + "/job-stop/{worker}", self.stop, allow_head=False),
        ]

    async def take(self, request: web.Request) -> web.Response:
        """Hold until there is a job; 200 with it, or an array of up to `batch_size`; else 204."""
        is_batch = "/job-take-batch/" in request.path
        try:
            most = max(1, int(request.query.get("batch_size", "1"))) if is_batch else 1
        except ValueError:
            raise wire.RefusedError("batch_size is not a number") from None
        with self._polling(request) as worker:
            self._jobs.asks(worker)
            was_retired = worker.retired
            until_s = self._until_s(worker, self._knobs.take_hold_s)
            while self._may_hold(request, worker, was_retired=was_retired):
                if taken := self._jobs.take(worker, most):
                    return await self._hand_over(request, taken, is_batch=is_batch)
                if not await self._endpoint.waiters.wait(WAITING_FOR_JOBS, until_s):
                    break
        return await self._nothing()

    async def _hand_over(
        self, request: web.Request, taken: list[Job], *, is_batch: bool
    ) -> web.Response:
        request[JOB_IDS] = [job.id for job in taken]
        orders = [{**job.extras, "id": job.id, "input": job.input} for job in taken]
        try:
            await self._stop_at_once(request, taken)
            response = wire.reply(orders if is_batch else orders[0])
            await wire.send(request, response)
        except BaseException:
            self._jobs.give_back(taken)
            raise
        return response

    async def stop(self, request: web.Request) -> web.Response:
        """Hold until there are jobs to stop; 200 with their ids, or 204."""
        with self._polling(request) as worker:
            was_retired = worker.retired
            until_s = self._until_s(worker, self._knobs.stop_hold_s)
            while self._may_hold(request, worker, was_retired=was_retired):
                fault = request.get(FAULT)
                unknown = list(fault.job_ids) if fault is not None else []
                if due := self._jobs.due_stops(worker) + unknown:
                    return await self._tell(request, worker, due)
                wake_s = min(until_s, self._jobs.next_stop_s(worker) or until_s)
                await self._endpoint.waiters.wait(stops_of(worker.id), wake_s)
                if time.monotonic() >= until_s:
                    break
        return await self._nothing()

    async def _tell(self, request: web.Request, worker: Worker, due: list[str]) -> web.Response:
        fault = request.get(FAULT)
        is_twice = fault is not None and fault.duplicate
        request[JOB_IDS] = due
        response = wire.reply({"jobsToStop": due * 2 if is_twice else due})
        try:
            await wire.send(request, response)
        except BaseException:
            self._jobs.unsend_stops(worker, due)
            raise
        for job_id in due:
            self._endpoint.recording.stopped(job_id, time.monotonic())
        self._endpoint.waiters.wake(_told(worker))
        return response

    async def _stop_at_once(self, request: web.Request, jobs: list[Job]) -> None:
        """Cancel the jobs of a request where a fault says so, and wait until the worker knows."""
        fault = request.get(FAULT)
        if fault is None or not fault.stop:
            return
        for job in jobs:
            self._jobs.cancel(job)
        worker = self._jobs.worker(request.match_info["worker"])
        await self._endpoint.waiters.wait_until(
            _told(worker),
            lambda: all(worker.stops.get(job.id, 0.0) is not None for job in jobs),
            time.monotonic() + TOLD_S,
        )
        await asyncio.sleep(LANDED_S)

    @contextmanager
    def _polling(self, request: web.Request) -> Iterator[Worker]:
        worker = self._jobs.worker(request.match_info["worker"])
        worker.open_polls += 1
        try:
            yield worker
        finally:
            worker.open_polls -= 1
            worker.seen_s = time.monotonic()

    def _until_s(self, worker: Worker, hold_s: float) -> float:
        return time.monotonic() + (min(hold_s, RETIRED_HOLD_S) if worker.retired else hold_s)

    def _may_hold(self, request: web.Request, worker: Worker, *, was_retired: bool) -> bool:
        """Return whether a poll may go on: not if its worker was told to end in the meantime."""
        is_told = worker.retired and not was_retired
        return not (is_told or self._endpoint.waiters.closed) and wire.is_connected(request)

    async def _nothing(self) -> web.Response:
        if self._endpoint.waiters.closed:
            await asyncio.sleep(0.02)  # the SDK asks again at once until it has noticed its SIGTERM
        return web.Response(status=204)

    async def stream(self, request: web.Request) -> web.Response:
        """Take one yield of a generator: `{"output": value}`."""
        at_s = request[ARRIVED_S]
        worker, job_id = self._sender(request)
        limit = self._knobs.max_stream_chunk
        longest = limit if self._knobs.oversize_chunk == "reject" else self._knobs.max_body_sync
        try:
            body = await wire.read(request, longest)
            value = wire.parse(body)["output"]
        except wire.TooLargeError as error:
            return wire.refuse(str(error), 400)
        except (ValueError, KeyError, TypeError):
            return wire.refuse('the body is not {"output": …} in JSON', 400)
        values = [value]
        if len(body) > limit and self._knobs.oversize_chunk == "split" and isinstance(value, str):
            step = max(1, limit // 4)  # a character has up to four bytes
            values = [value[start : start + step] for start in range(0, len(value), step)]
        post = Post(at_s, len(body), value, worker.id)
        job = worker.jobs.get(job_id)
        tokens, events = usage.output_tokens(value), usage.events(value)
        if job is None or not self._jobs.stream(worker, job_id, values, len(body), tokens, events):
            return self._late(job_id, post)
        self._endpoint.recording.posted("stream", job_id, post)
        await self._stop_at_once(request, [job])
        return web.Response()

    async def done(self, request: web.Request) -> web.Response:
        """Take the result of a job, or its progress."""
        at_s = request[ARRIVED_S]
        worker, job_id = self._sender(request)
        job = self._jobs.get(job_id)
        is_sync = job is not None and job.kind == "sync"
        limit = self._knobs.max_body_sync if is_sync else self._knobs.max_body_run
        try:
            body = await wire.read(request, limit)
            message = wire.parse(body)
            if not isinstance(message, dict):
                raise ValueError("not an object")
        except (wire.TooLargeError, ValueError) as error:
            # The platform refuses the post and ends the job as a success with nothing in it.
            post = Post(at_s, request.content_length or 0, None, worker.id)
            self._endpoint.recording.posted("done", job_id, post)
            self._jobs.complete(worker, job_id)
            return wire.refuse(f"invalid JSON, or larger than the maximum size: {error}", 400)
        post = Post(at_s, len(body), message, worker.id)
        if not self._finish(worker, job_id, message, len(body)):
            return self._late(job_id, post)
        self._endpoint.recording.posted("done", job_id, post)
        return web.Response()

    def _finish(self, worker: Worker, job_id: str, message: dict[str, Any], size: int) -> bool:
        if message.get("status") == "IN_PROGRESS":
            return self._jobs.progress(worker, job_id, message.get("output"), size)
        if message.get("stopPod") is True:
            self._jobs.retire(worker)
        error = message.get("error")
        if isinstance(error, str) and error:
            return self._jobs.fail(worker, job_id, error)
        if error or "output" not in message:  # the platform loses an error that is not a string
            return self._jobs.complete(worker, job_id)
        output = message["output"]
        tokens = usage.output_tokens(output)
        return self._jobs.complete(worker, job_id, output, size=size, tokens=tokens)

    def _sender(self, request: web.Request) -> tuple[Worker, str]:
        return self._jobs.worker(request.match_info["worker"]), request.match_info["job"]

    def _late(self, job_id: str, post: Post) -> web.Response:
        self._endpoint.recording.posted("late", job_id, post)
        return web.Response(status=self._knobs.late_post_status)

    async def ping(self, request: web.Request) -> web.Response:
        """Note a heartbeat with the jobs that the worker believes it runs."""
        worker = self._jobs.worker(request.match_info["worker"])
        job_ids = filter(None, request.query.get("job_id", "").split(","))
        self._jobs.ping(worker, job_ids, request.query.get("runpod_version"))
        if request.query.get("status") == "unhealthy":
            worker.unhealthy = request.query.get("reason", "")
        return web.Response()


def _told(worker: Worker) -> str:
    return f"worker {worker.id} was told to stop jobs"
