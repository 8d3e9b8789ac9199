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

import dataclasses
import heapq
import itertools
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from local_endpoint.knobs import Knobs

Kind = Literal["run", "sync", "openai"]
WAITING_FOR_JOBS = "queue"


class Status(StrEnum):
    """The states of a job, in the platform's words."""

    IN_QUEUE = "IN_QUEUE"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"

    @property
    def is_final(self) -> bool:
        return self not in (Status.IN_QUEUE, Status.IN_PROGRESS)


@dataclass(frozen=True)
class Policy:
    """How long a job may run once taken, how long it may exist, and whether it may wait long."""

    execution_timeout_s: float
    ttl_s: float
    is_low_priority: bool = False  # starts no worker


@dataclass(eq=False, slots=True)
class Job:
    """One job. Only `Jobs` changes it."""

    id: str
    input: Any
    kind: Kind
    policy: Policy
    size: int
    extras: dict[str, Any]  # handed on to the worker beside the input: webhook, s3Config
    submitted_s: float
    status: Status = Status.IN_QUEUE
    history: list[tuple[float, Status]] = field(default_factory=list)
    worker_id: str | None = None
    taken_s: float | None = None
    ended_s: float | None = None
    output: Any = None
    has_output: bool = False
    output_size: int = 0
    error: str | None = None
    lost: int = 0  # workers that vanished with it
    chunks: list[Any] = field(default_factory=list)  # streamed and not yet drained
    chunk_bytes: int = 0
    chunk_count: int = 0  # ever streamed in this run
    posts: int = 0  # accepted stream and done posts of this run, with their times and bytes
    post_bytes: int = 0
    first_post_s: float | None = None
    last_post_s: float | None = None
    tokens: int | None = None  # as the worker reports them
    events: int = 0  # SSE events streamed in this run

    @property
    def weight(self) -> int:
        return self.size + self.chunk_bytes + self.output_size


@dataclass(eq=False, slots=True)
class Worker:
    """What the endpoint knows of one worker. Only `Jobs` changes it, but for `open_polls`."""

    id: str
    seen_s: float
    expected: bool = False  # it is being started, and may be silent until it is ready
    ready: bool = False  # it has asked for jobs
    unhealthy: str | None = None
    retired: bool = False  # gets no more jobs
    open_polls: int = 0
    ping_s: float | None = None
    ping_jobs: set[str] = field(default_factory=set)
    sdk_version: str | None = None
    jobs: dict[str, Job] = field(default_factory=dict)
    idle_s: float | None = None  # since when it is ready and has nothing to do
    stops: dict[str, float | None] = field(default_factory=dict)  # job id: when last sent

    @property
    def state(self) -> Literal["initializing", "idle", "running", "unhealthy"]:
        if self.unhealthy is not None:
            return "unhealthy"
        if not self.ready:
            return "initializing"
        return "running" if self.jobs else "idle"


class Jobs:
    """All jobs and workers of one endpoint.

    `wake` is called with what has changed: a job's id, `WAITING_FOR_JOBS`, or `stops_of(worker)`;
    `ended` with each job that reaches a final state.
    """

    def __init__(
        self,
        knobs: Knobs,
        clock: Callable[[], float],
        wake: Callable[[str], None] = lambda _key: None,
        ended: Callable[[Job], None] = lambda _job: None,
    ) -> None:
        self.knobs = knobs
        self._clock = clock
        self._wake = wake
        self._on_end = ended
        self._queue: deque[Job] = deque()
        self._live: dict[str, Job] = {}
        self._ended: dict[str, Job] = {}  # in the order of their end
        self._ended_bytes = 0
        self.workers: dict[str, Worker] = {}
        self.completed = 0
        self.failed = 0
        self.retried = 0

    # --- the public side -------------------------------------------------------------------

    @property
    def in_queue(self) -> int:
        return len(self._queue)

    @property
    def in_progress(self) -> int:
        return len(self._live) - len(self._queue)

    def overdue(self, wait_s: float) -> int:
        """Count the queued jobs which have waited so long and may start a worker."""
        since_s = self._clock() - wait_s
        return sum(
            job.submitted_s <= since_s and not job.policy.is_low_priority for job in self._queue
        )

    def latest(self, most: int) -> list[Job]:
        """Give the jobs submitted last, the newest first."""
        jobs = itertools.chain(self._ended.values(), self._live.values())
        return heapq.nlargest(most, jobs, key=lambda job: job.submitted_s)

    def policy(
        self,
        execution_timeout_s: float | None = None,
        ttl_s: float | None = None,
        *,
        is_low_priority: bool = False,
    ) -> Policy:
        return Policy(
            self.knobs.execution_timeout_s if execution_timeout_s is None else execution_timeout_s,
            self.knobs.ttl_s if ttl_s is None else ttl_s,
            is_low_priority,
        )

    def get(self, job_id: str) -> Job | None:
        return self._live.get(job_id) or self._ended.get(job_id)

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
            policy=policy or self.policy(),
            size=size,
            extras=extras or {},
            submitted_s=self._clock(),
        )
        self._live[job.id] = job
        self._queue.append(job)
        self._move(job, Status.IN_QUEUE)
        self._wake(WAITING_FOR_JOBS)
        return job

    def set_ttl(self, job: Job, ttl_s: float) -> None:
        job.policy = dataclasses.replace(job.policy, ttl_s=ttl_s)

    def cancel(self, job: Job) -> None:
        """End a job at once, queued or running; a finished one stays what it is."""
        if not job.status.is_final:
            self._stop(job)
            self._end(job, Status.CANCELLED)

    def retry(self, job: Job) -> bool:
        """Queue a FAILED or TIMED_OUT job again, its old result removed; else False."""
        if job.status not in (Status.FAILED, Status.TIMED_OUT) or job.id not in self._ended:
            return False
        self._forget(job)
        self.retried += 1
        job.lost = 0
        job.submitted_s = self._clock()
        self._live[job.id] = job
        self._requeue(job, front=False)
        return True

    def purge(self) -> int:
        """Remove all queued jobs, and say how many there were."""
        purged = list(self._queue)
        for job in purged:
            self._end(job, Status.CANCELLED)
            self._forget(job)
        return len(purged)

    def drain(self, job: Job) -> list[Any]:
        """Give what was streamed and not yet read; it is given only once."""
        chunks, job.chunks = job.chunks, []
        if job.id in self._ended:
            self._ended_bytes -= job.chunk_bytes
        job.chunk_bytes = 0
        return chunks

    def undrain(self, job: Job, chunks: list[Any]) -> None:
        """Put back in front what could not be delivered after all."""
        job.chunks[:0] = chunks

    # --- the worker side -------------------------------------------------------------------

    def worker(self, worker_id: str) -> Worker:
        """Give the worker of this name, which is herewith known and seen alive."""
        worker = self.workers.get(worker_id)
        if worker is None:
            worker = self.workers[worker_id] = Worker(worker_id, self._clock())
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
            worker.ready, worker.idle_s = True, self._clock()

    def take(self, worker: Worker, most: int = 1) -> list[Job]:
        """Hand up to `most` queued jobs to a worker."""
        if worker.retired or not self._queue:
            return []
        # A retried job may still be running there, and the SDK's books are a set of ids.
        busy = worker.ping_jobs | worker.stops.keys()
        taken: list[Job] = []
        skipped: list[Job] = []
        while self._queue and len(taken) < most:
            job = self._queue.popleft()
            (skipped if job.id in busy else taken).append(job)
        self._queue.extendleft(reversed(skipped))
        for job in taken:
            job.worker_id = worker.id
            job.taken_s = self._clock()
            worker.jobs[job.id] = job
            worker.idle_s = None
            self._move(job, Status.IN_PROGRESS)
        return taken

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Return to the front of the queue, in their order, jobs that never left the house."""
        for job in reversed(list(jobs)):
            if job.status is Status.IN_PROGRESS:
                self._requeue(job, front=True)

    def stream(
        self,
        worker: Worker,
        job_id: str,
        values: list[Any],
        size: int,
        tokens: int | None = None,
        events: int = 0,
    ) -> bool:
        """Append to what a job has streamed; False if it is not this worker's (any more)."""
        job = worker.jobs.get(job_id)
        if job is None:
            return False
        self._count(job, size, tokens)
        job.events += events
        job.chunks += values
        job.chunk_count += len(values)
        job.chunk_bytes += size
        self._wake(job_id)
        return True

    def progress(self, worker: Worker, job_id: str, output: Any) -> bool:
        """Keep the latest progress of a running job, as its output for the time being."""
        job = worker.jobs.get(job_id)
        if job is None:
            return False
        job.output, job.has_output = output, True
        return True

    def complete(
        self, worker: Worker, job_id: str, *output: Any, size: int = 0, tokens: int | None = None
    ) -> bool:
        """End a job as COMPLETED, with its output or without any; False if it is too late."""
        job = self._done(worker, job_id)
        if job is None:
            return False
        self._count(job, size, tokens)
        job.output = output[0] if output else None
        job.has_output = bool(output)
        job.output_size = size
        self._end(job, Status.COMPLETED)
        return True

    def fail(self, worker: Worker, job_id: str, error: str) -> bool:
        """End a job as FAILED with its error; False if it is too late."""
        job = self._done(worker, job_id)
        if job is None:
            return False
        self._count(job, len(error))
        self._end(job, Status.FAILED, error)
        return True

    def ping(self, worker: Worker, job_ids: Iterable[str], sdk_version: str | None = None) -> None:
        """Note a heartbeat: it ends the stop signals of jobs which it does not name any more."""
        worker.ping_s = self._clock()
        worker.ping_jobs = set(job_ids)
        worker.sdk_version = sdk_version or worker.sdk_version
        for job_id, sent_s in list(worker.stops.items()):
            if sent_s is not None and job_id not in worker.ping_jobs:
                del worker.stops[job_id]
        if self._queue:
            self._wake(WAITING_FOR_JOBS)

    def due_stops(self, worker: Worker) -> list[str]:
        """Give the jobs the worker is to be told to stop now, and note that it is told."""
        now_s = self._clock()
        due = [
            job_id
            for job_id, sent_s in worker.stops.items()
            if sent_s is None or now_s - sent_s >= self.knobs.stop_repeat_s
        ]
        worker.stops.update(dict.fromkeys(due, now_s))
        return due

    def next_stop_s(self, worker: Worker) -> float | None:
        """Give the time at which a stop signal is due again, if one is pending."""
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

    def lose(self, worker_id: str) -> None:
        """Forget a worker that is gone, and queue its jobs again, up to the retry limit."""
        worker = self.workers.pop(worker_id, None)
        if worker is None:
            return
        for job in reversed(list(worker.jobs.values())):
            job.lost += 1
            if job.lost > self.knobs.worker_lost_retries:
                self._end(job, Status.FAILED, f"worker {worker_id} was lost with the job")
            else:
                self.retried += 1
                self._requeue(job, front=True)

    # --- time ------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due: timeouts, lifetimes, lost workers, retention."""
        now_s = self._clock()
        for job in list(self._live.values()):
            self._expire(job, now_s)
        for worker in list(self.workers.values()):
            may_be_silent = worker.open_polls or (worker.expected and not worker.ready)
            if now_s - worker.seen_s > self.knobs.worker_lost_s and not may_be_silent:
                self.lose(worker.id)
        for job in [job for job in self._ended.values() if self._is_stale(job, now_s)]:
            self._forget(job)

    def _expire(self, job: Job, now_s: float) -> None:
        may_expire = self.knobs.ttl_mode == "delete" or job.status is Status.IN_QUEUE
        if may_expire and now_s - job.submitted_s >= job.policy.ttl_s:
            self._stop(job)
            self._end(job, Status.TIMED_OUT, "ttl exceeded")
            if self.knobs.ttl_mode == "delete":
                self._forget(job)
        elif job.taken_s is not None and now_s - job.taken_s >= job.policy.execution_timeout_s:
            self._stop(job)
            self._end(job, Status(self.knobs.exec_timeout_status), "executionTimeout exceeded")

    def _is_stale(self, job: Job, now_s: float) -> bool:
        knobs = self.knobs
        retention_s = knobs.retention_sync_s if job.kind == "sync" else knobs.retention_run_s
        outlived = knobs.ttl_mode == "delete" and now_s - job.submitted_s >= job.policy.ttl_s
        return outlived or now_s - (job.ended_s or now_s) >= retention_s

    # --- states ----------------------------------------------------------------------------

    def _move(self, job: Job, status: Status) -> None:
        job.status = status
        job.history.append((self._clock(), status))
        self._wake(job.id)

    def _count(self, job: Job, size: int, tokens: int | None = None) -> None:
        job.last_post_s = self._clock()
        if job.first_post_s is None:
            job.first_post_s = job.last_post_s
        job.posts += 1
        job.post_bytes += size
        if tokens is not None:
            job.tokens = tokens

    def _done(self, worker: Worker, job_id: str) -> Job | None:
        worker.stops.pop(job_id, None)
        worker.ping_jobs.discard(job_id)
        return worker.jobs.get(job_id)

    def _stop(self, job: Job) -> None:
        worker = self._holder(job)
        if worker is not None:
            worker.stops[job.id] = None
            self._wake(stops_of(worker.id))

    def _holder(self, job: Job) -> Worker | None:
        return self.workers.get(job.worker_id) if job.worker_id else None

    def _leave_worker(self, job: Job) -> None:
        worker = self._holder(job)
        if worker is not None:
            worker.jobs.pop(job.id, None)
            if not worker.jobs and worker.ready:
                worker.idle_s = self._clock()

    def _requeue(self, job: Job, *, front: bool) -> None:
        self._leave_worker(job)
        job.worker_id = job.taken_s = job.ended_s = job.error = job.output = None
        job.has_output = False
        job.output_size = job.chunk_bytes = job.chunk_count = job.posts = job.post_bytes = (
            job.events
        ) = 0
        job.first_post_s = job.last_post_s = job.tokens = None
        job.chunks = []
        if front:
            self._queue.appendleft(job)
        else:
            self._queue.append(job)
        self._move(job, Status.IN_QUEUE)
        self._wake(WAITING_FOR_JOBS)

    def _end(self, job: Job, status: Status, error: str | None = None) -> None:
        if job.status is Status.IN_QUEUE and job in self._queue:
            self._queue.remove(job)
        self._leave_worker(job)
        del self._live[job.id]
        if error is not None:
            job.error, job.output, job.has_output = error, None, False
        job.ended_s = self._clock()
        self._ended[job.id] = job
        self._ended_bytes += job.weight
        self.completed += status is Status.COMPLETED
        self.failed += status in (Status.FAILED, Status.TIMED_OUT)
        self._move(job, status)
        self._on_end(job)
        for oldest in self._over_the_limit():
            self._forget(oldest)

    def _over_the_limit(self) -> Iterator[Job]:
        while len(self._ended) > self.knobs.retain_jobs or (
            self._ended_bytes > self.knobs.retain_bytes and len(self._ended) > 1
        ):
            yield next(iter(self._ended.values()))

    def _forget(self, job: Job) -> None:
        if self._ended.pop(job.id, None) is not None:
            self._ended_bytes -= job.weight


def stops_of(worker_id: str) -> str:
    return f"stops of {worker_id}"
