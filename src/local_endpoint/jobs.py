"""The queue and the states of jobs: plain bookkeeping with a clock passed in, no sockets.

::

    IN_QUEUE ──take──▶ IN_PROGRESS ──done──▶ COMPLETED | FAILED
       │                    ├── cancel ────────▶ CANCELLED   and a stop signal
       │                    ├── executionTimeout ▶ FAILED    and a stop signal
       │                    └── worker lost ───▶ IN_QUEUE, some times; then FAILED
       ├── cancel ▶ CANCELLED
       └── ttl, purge ▶ forgotten
    FAILED | TIMED_OUT ──retry──▶ IN_QUEUE
"""

import contextlib
import dataclasses
import heapq
import itertools
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from local_endpoint.finished import Finished
from local_endpoint.job import Job, Kind, Policy, Run, Status, Worker
from local_endpoint.knobs import Knobs

WAITING_FOR_JOBS = "queue"
WAITING_FOR_WORKERS = "workers"


class Jobs:
    """All jobs and workers of one endpoint.

    `wake` is called with what has changed: a job's id, `WAITING_FOR_JOBS`,
    `WAITING_FOR_WORKERS`, or `stops_of(worker)`; `on_submit` with each new job, `on_end` with
    each that reaches a final state.
    """

    def __init__(
        self,
        knobs: Knobs,
        clock: Callable[[], float],
        wake: Callable[[str], None] = lambda _key: None,
        on_submit: Callable[[Job], None] = lambda _job: None,
        on_end: Callable[[Job], None] = lambda _job: None,
    ) -> None:
        self.knobs = knobs
        self._clock = clock
        self._wake = wake
        self._on_submit = on_submit
        self._on_end = on_end
        self._queue: OrderedDict[str, Job] = OrderedDict()
        self._live: dict[str, Job] = {}  # queued and running
        self._finished = Finished()
        self.workers: dict[str, Worker] = {}
        self.completed = 0
        self.failed = 0
        self.retried = 0

    @property
    def in_queue(self) -> int:
        return len(self._queue)

    @property
    def in_progress(self) -> int:
        return len(self._live) - len(self._queue)

    def overdue(self, wait_s: float) -> int:
        """Count the queued jobs that have waited so long and may start a worker."""
        since_s = self._clock() - wait_s
        return sum(
            job.submitted_s <= since_s and not job.policy.is_low_priority
            for job in self._queue.values()
        )

    def latest(self, most: int, status: Status | None = None) -> list[Job]:
        """Return the jobs submitted last, all or those of one status, the newest first."""
        every = itertools.chain(self._finished, self._live.values())
        jobs = (job for job in every if status in (None, job.status))
        return heapq.nlargest(most, jobs, key=lambda job: job.submitted_s)

    def get(self, job_id: str) -> Job | None:
        return self._live.get(job_id) or self._finished.get(job_id)

    def submit(
        self,
        job_input: Any,
        kind: Kind = "run",
        *,
        policy: Policy | None = None,
        size: int = 0,
        extras: dict[str, Any] | None = None,
    ) -> Job:
        """Put a new job at the end of the queue. `size` is that of its request, in bytes."""
        job = Job(
            id=("sync-" if kind == "sync" else "") + f"{uuid.uuid4()}-u1",
            input=job_input,
            kind=kind,
            policy=policy or Policy(self.knobs.execution_timeout_s, self.knobs.ttl_s),
            size=size,
            extras=extras or {},
            submitted_s=self._clock(),
        )
        self._live[job.id] = job
        self._on_submit(job)
        self._enqueue(job)
        return job

    def set_ttl(self, job: Job, ttl_s: float) -> None:
        job.policy = dataclasses.replace(job.policy, ttl_s=ttl_s)

    def cancel(self, job: Job) -> None:
        """End a job at once, queued or running; a finished one stays what it is."""
        if not job.status.is_final:
            self._stop(job)
            self._end(job, Status.CANCELLED)

    def retry(self, job: Job) -> bool:
        """Queue a FAILED or TIMED_OUT job again, its old result removed; else return False."""
        if job.status not in (Status.FAILED, Status.TIMED_OUT) or job.id not in self._finished:
            return False
        self._finished.remove(job)
        self.retried += 1
        job.lost = 0
        job.submitted_s = self._clock()
        self._live[job.id] = job
        self._enqueue(job)
        return True

    def purge(self) -> int:
        """Remove all queued jobs, and return how many there were."""
        purged = list(self._queue.values())
        for job in purged:
            self._end(job, Status.CANCELLED, is_kept=False)
        return len(purged)

    def drain(self, job: Job) -> list[Any]:
        """Return what was streamed and not yet read; each value is returned only once."""
        chunks, job.run.chunks = job.run.chunks, []
        self._finished.set_chunk_bytes(job, 0)
        return chunks

    @contextlib.contextmanager
    def draining(self, job: Job) -> Iterator[list[Any]]:
        """Drain a job for the block; if that fails, its values are there again, in front.

        They are gone for good if the job was queued again in the meantime: another run of it
        streams them anew.
        """
        run, size = job.run, job.run.chunk_bytes
        chunks = self.drain(job)
        try:
            yield chunks
        except BaseException:
            if job.run is run:
                run.chunks[:0] = chunks
                self._finished.set_chunk_bytes(job, run.chunk_bytes + size)
                self._wake(job.id)
            raise

    def worker(self, worker_id: str) -> Worker:
        """Return the worker with this id, new or known, and note that it was heard of now."""
        worker = self.workers.setdefault(worker_id, Worker(worker_id))
        worker.seen_s = self._clock()
        return worker

    def expect(self, worker_id: str) -> None:
        """Announce a worker that is being started: it is initializing until its first take."""
        self.worker(worker_id).expected = True

    def is_ready(self, worker_id: str) -> bool:
        worker = self.workers.get(worker_id)
        return worker is not None and worker.ready

    def asks(self, worker: Worker) -> None:
        """Note that the worker asks for jobs, so it is ready."""
        if not worker.ready:
            worker.ready, worker.idle_s = True, None if worker.jobs else self._clock()

    def checked(self, worker_id: str, status: int | None) -> None:
        """Note what a worker answered when it was asked for its health, or that it did not.

        200 is ready and 204 initializing; so is silence, until it has answered for the first time.
        """
        if (worker := self.workers.get(worker_id)) is None:
            return
        worker.seen_s = self._clock()
        if status is not None:
            worker.ping_s = worker.seen_s
        if status == 200:
            self.asks(worker)
        elif status == 204:
            worker.ready = False
        is_well = status in (200, 204) or (status is None and worker.ping_s is None)
        worker.unhealthy = None if is_well else f"health check: {status or 'no answer'}"
        self._wake(WAITING_FOR_WORKERS)

    def take(self, worker: Worker, most: int = 1) -> list[Job]:
        """Hand up to `most` queued jobs to a worker."""
        if worker.retired or not self._queue:
            return []
        # A retried job may still be running there, and the SDK keeps its jobs as a set of ids.
        busy = worker.ping_jobs | worker.stops.keys()
        free = (job for job in self._queue.values() if job.id not in busy)
        taken = list(itertools.islice(free, most))
        for job in taken:
            self.assign(job, worker)
        return taken

    def assign(self, job: Job, worker: Worker) -> None:
        """Hand one queued job to a worker."""
        del self._queue[job.id]
        job.run.worker_id = worker.id
        job.run.taken_s = self._clock()
        worker.jobs[job.id] = job
        worker.idle_s = None
        self._move(job, Status.IN_PROGRESS)

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Return to the front of the queue, in their order, jobs that no worker received."""
        for job in reversed(list(jobs)):
            if job.status is Status.IN_PROGRESS:
                self._requeue(job)

    def stream(
        self,
        worker: Worker,
        job_id: str,
        values: list[Any],
        size: int,
        tokens: int | None = None,
        events: int = 0,
    ) -> bool:
        """Append to what a job has streamed; False if it is not, or no longer, this worker's."""
        job = worker.jobs.get(job_id)
        if job is None:
            return False
        self._count(job.run, size, tokens)
        job.run.events += events
        job.run.chunks += values
        job.run.chunk_count += len(values)
        self._finished.set_chunk_bytes(job, job.run.chunk_bytes + size)
        self._wake(job_id)
        return True

    def passed_on(self, job: Job, size: int, tokens: int | None, events: int) -> None:
        """Count a piece that went from a worker to the client, and is not kept."""
        self._count(job.run, size, tokens)
        job.run.events += events
        job.run.chunk_count += 1

    def end(self, job: Job, status: Status, error: str | None = None) -> None:
        """End a request that was passed on, unless its worker was lost before."""
        if not job.status.is_final:
            self._end(job, status, error)

    def progress(self, worker: Worker, job_id: str, output: Any, size: int = 0) -> bool:
        """Keep the latest progress of a running job, as its output until there is a real one."""
        job = worker.jobs.get(job_id)
        if job is None:
            return False
        job.run.output, job.run.has_output, job.run.result_bytes = output, True, size
        return True

    def complete(
        self, worker: Worker, job_id: str, *output: Any, size: int = 0, tokens: int | None = None
    ) -> bool:
        """End a job as COMPLETED, with its output or without any; False if it is too late."""
        job = self._done(worker, job_id)
        if job is None:
            return False
        self._count(job.run, size, tokens)
        job.run.output = output[0] if output else None
        job.run.has_output = bool(output)
        job.run.result_bytes = size
        self._end(job, Status.COMPLETED)
        return True

    def fail(self, worker: Worker, job_id: str, error: str) -> bool:
        """End a job as FAILED with its error; False if it is too late."""
        job = self._done(worker, job_id)
        if job is None:
            return False
        self._count(job.run, len(error))
        self._end(job, Status.FAILED, error)
        return True

    def ping(self, worker: Worker, job_ids: Iterable[str], sdk_version: str | None = None) -> None:
        """Note a heartbeat: it ends the stop signals of jobs that it no longer names."""
        worker.ping_s = self._clock()
        worker.ping_jobs = set(job_ids)
        worker.sdk_version = sdk_version or worker.sdk_version
        for job_id, sent_s in list(worker.stops.items()):
            if sent_s is not None and job_id not in worker.ping_jobs:
                del worker.stops[job_id]
        if self._queue:
            self._wake(WAITING_FOR_JOBS)

    def due_stops(self, worker: Worker) -> list[str]:
        """Return the jobs that the worker must be told to stop now, and note that it is told."""
        now_s = self._clock()
        due = [
            job_id
            for job_id, sent_s in worker.stops.items()
            if sent_s is None or now_s - sent_s >= self.knobs.stop_repeat_s
        ]
        worker.stops.update(dict.fromkeys(due, now_s))
        return due

    def next_stop_s(self, worker: Worker) -> float | None:
        """Return the time at which a stop signal is due again, if one is pending."""
        sent = [sent_s for sent_s in worker.stops.values() if sent_s is not None]
        return min(sent) + self.knobs.stop_repeat_s if sent else None

    def unsend_stops(self, worker: Worker, job_ids: Iterable[str]) -> None:
        """Note that a stop signal could not be delivered."""
        worker.stops.update({job_id: None for job_id in job_ids if job_id in worker.stops})
        self._wake(stops_of(worker.id))

    def retire(self, worker: Worker) -> None:
        """Give this worker no more jobs: it asked to be replaced, or is being stopped."""
        worker.retired = True
        self._wake(WAITING_FOR_JOBS)  # its open polls end
        self._wake(stops_of(worker.id))
        self._wake(WAITING_FOR_WORKERS)  # for this one in vain

    def lose(self, worker_id: str) -> None:
        """Forget a worker that is gone, and queue its jobs again, up to the retry limit."""
        worker = self.workers.pop(worker_id, None)
        if worker is None:
            return
        for job in reversed(list(worker.jobs.values())):
            job.lost += 1
            if job.lost > self.knobs.worker_lost_retries or job.kind == "http":
                self._end(job, Status.FAILED, f"worker {worker_id} was lost with the job")
            else:
                self.retried += 1
                self._requeue(job)
        self._wake(WAITING_FOR_WORKERS)

    def tick(self) -> None:
        """Do what is due: timeouts, lifetimes, lost workers, old results."""
        now_s = self._clock()
        for job in list(self._live.values()):
            self._expire(job, now_s)
        for worker in list(self.workers.values()):
            may_be_silent = worker.open_polls or (worker.expected and not worker.ready)
            if now_s - worker.seen_s > self.knobs.worker_lost_s and not may_be_silent:
                self.lose(worker.id)
        for job in [job for job in self._finished if self._is_stale(job, now_s)]:
            self._finished.remove(job)

    def _expire(self, job: Job, now_s: float) -> None:
        is_deleted = self.knobs.ttl_mode == "delete"
        taken_s = job.run.taken_s
        if now_s - job.submitted_s >= job.policy.ttl_s and (
            is_deleted or job.status is Status.IN_QUEUE
        ):
            self._stop(job)
            self._end(job, Status.TIMED_OUT, "ttl exceeded", is_kept=not is_deleted)
        elif taken_s is not None and now_s - taken_s >= job.policy.execution_timeout_s:
            self._stop(job)
            self._end(job, Status(self.knobs.exec_timeout_status), "executionTimeout exceeded")

    def _is_stale(self, job: Job, now_s: float) -> bool:
        knobs = self.knobs
        retention_s = knobs.retention_sync_s if job.kind == "sync" else knobs.retention_run_s
        is_expired = knobs.ttl_mode == "delete" and now_s - job.submitted_s >= job.policy.ttl_s
        return is_expired or now_s - (job.run.ended_s or now_s) >= retention_s

    def _move(self, job: Job, status: Status) -> None:
        job.status = status
        job.history.append((self._clock(), status))
        self._wake(job.id)

    def _count(self, run: Run, size: int, tokens: int | None = None) -> None:
        run.last_post_s = self._clock()
        if run.first_post_s is None:
            run.first_post_s = run.last_post_s
        run.posts += 1
        run.post_bytes += size
        if tokens is not None:
            run.tokens = tokens

    def _done(self, worker: Worker, job_id: str) -> Job | None:
        worker.stops.pop(job_id, None)
        worker.ping_jobs.discard(job_id)
        return worker.jobs.get(job_id)

    def _stop(self, job: Job) -> None:
        if (worker := self._holder(job)) is not None:
            worker.stops[job.id] = None
            self._wake(stops_of(worker.id))

    def _holder(self, job: Job) -> Worker | None:
        return self.workers.get(job.run.worker_id) if job.run.worker_id else None

    def _leave_worker(self, job: Job) -> None:
        if (worker := self._holder(job)) is not None:
            worker.jobs.pop(job.id, None)
            if not worker.jobs and worker.ready:
                worker.idle_s = self._clock()

    def _enqueue(self, job: Job) -> None:
        job.run = Run()
        self._queue[job.id] = job
        self._move(job, Status.IN_QUEUE)
        self._wake(WAITING_FOR_JOBS)

    def _requeue(self, job: Job) -> None:
        """Take a job from its worker, and put it at the front of the queue."""
        self._leave_worker(job)
        self._enqueue(job)
        self._queue.move_to_end(job.id, last=False)

    def _end(
        self, job: Job, status: Status, error: str | None = None, *, is_kept: bool = True
    ) -> None:
        self._queue.pop(job.id, None)
        self._leave_worker(job)
        del self._live[job.id]
        if error is not None:
            job.run.error, job.run.output, job.run.has_output = error, None, False
            job.run.result_bytes = len(error)
        job.run.ended_s = self._clock()
        self.completed += status is Status.COMPLETED
        self.failed += status in (Status.FAILED, Status.TIMED_OUT)
        if is_kept:
            self._finished.add(job, self.knobs.retain_jobs, self.knobs.retain_bytes)
        self._move(job, status)
        self._on_end(job)


def stops_of(worker_id: str) -> str:
    return f"stops of {worker_id}"
