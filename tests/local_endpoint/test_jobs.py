import contextlib
import time

import pytest

from local_endpoint.job import Job, Policy, Status, Worker
from local_endpoint.jobs import Jobs
from local_endpoint.knobs import Knobs


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """Jobs with a clock set by hand."""

    def __init__(self, **knobs) -> None:
        self.clock = Clock()
        self.woken: list[str] = []
        self.ended: list[tuple[str, Status]] = []
        self.jobs = Jobs(
            Knobs(**knobs),
            self.clock,
            self.woken.append,
            on_end=lambda job: self.ended.append((job.id, job.status)),
        )

    def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.jobs.tick()

    def running(self, worker_id: str = "w1", **submit) -> tuple[Job, Worker]:
        job = self.jobs.submit("in", **submit)
        worker = self.jobs.worker(worker_id)
        assert self.jobs.take(worker) == [job]
        return job, worker


def statuses(job: Job) -> list[str]:
    return [str(status) for _, status in job.history]


def test_completed() -> None:
    """A job goes from the queue through a worker's hands to its result, and each step is kept."""
    bench = Bench()
    job, worker = bench.running()
    assert bench.jobs.complete(worker, job.id, ["a", "b"], size=9)

    assert statuses(job) == ["IN_QUEUE", "IN_PROGRESS", "COMPLETED"]
    assert (job.run.output, job.run.has_output, job.run.error) == (["a", "b"], True, None)
    assert bench.ended == [(job.id, Status.COMPLETED)]
    assert worker.jobs == {}


def test_failed() -> None:
    """An error ends a job as FAILED with its text and without output."""
    bench = Bench()
    job, worker = bench.running()
    bench.jobs.progress(worker, job.id, "half")
    bench.jobs.fail(worker, job.id, "sorry")

    assert (job.status, job.run.error, job.run.has_output) == (Status.FAILED, "sorry", False)


def test_order() -> None:
    """Jobs are taken in the order in which they came, and no more than asked for."""
    bench = Bench()
    jobs = [bench.jobs.submit(n) for n in range(5)]
    worker = bench.jobs.worker("w1")

    assert bench.jobs.take(worker, 3) == jobs[:3]
    assert bench.jobs.take(worker, 3) == jobs[3:]


def test_given_back() -> None:
    """Jobs whose answer could not be written return to the front of the queue, in their order."""
    bench = Bench()
    jobs = [bench.jobs.submit(n) for n in range(3)]
    bench.jobs.give_back(bench.jobs.take(bench.jobs.worker("w1"), 2))

    assert bench.jobs.take(bench.jobs.worker("w2"), 3) == jobs
    assert [job.lost for job in jobs] == [0, 0, 0]


@pytest.mark.parametrize("act", ["stream", "progress", "complete", "fail"])
def test_only_the_holder(act: str) -> None:
    """What another worker, or one that is too late, posts for a job changes nothing."""
    bench = Bench()
    job, worker = bench.running()
    arguments = {"stream": (["x"], 1), "progress": ("x",), "complete": ("x",), "fail": ("x",)}[act]
    post = getattr(bench.jobs, act)

    assert not post(bench.jobs.worker("w2"), job.id, *arguments)
    bench.jobs.cancel(job)
    assert not post(worker, job.id, *arguments)
    assert (job.status, job.run.chunks, job.run.has_output) == (Status.CANCELLED, [], False)


def test_cancel_queued() -> None:
    """A queued job that is cancelled is never taken, and no worker hears of it."""
    bench = Bench()
    job = bench.jobs.submit("in")
    bench.jobs.cancel(job)
    worker = bench.jobs.worker("w1")

    assert job.status is Status.CANCELLED
    assert bench.jobs.take(worker) == []
    assert worker.stops == {}


def test_cancel_finished() -> None:
    """Cancelling a finished job leaves it as it is."""
    bench = Bench()
    job, worker = bench.running()
    bench.jobs.complete(worker, job.id, 1)
    bench.jobs.cancel(job)

    assert job.status is Status.COMPLETED


def test_stop_signals_repeat() -> None:
    """A stop signal is sent at once, repeated no more than once a second, and ends with a done."""
    bench = Bench(stop_repeat_s=1)
    job, worker = bench.running()
    bench.jobs.cancel(job)

    assert bench.jobs.due_stops(worker) == [job.id]
    bench.clock.now_s += 0.9
    assert bench.jobs.due_stops(worker) == []
    assert bench.jobs.next_stop_s(worker) == pytest.approx(1001.0)
    bench.clock.now_s += 0.2
    assert bench.jobs.due_stops(worker) == [job.id]
    bench.jobs.complete(worker, job.id)
    bench.clock.now_s += 2
    assert bench.jobs.due_stops(worker) == []


def test_stop_signals_end_with_a_ping() -> None:
    """A stop signal lasts while the heartbeat names the job, and until it was sent once."""
    bench = Bench(stop_repeat_s=0)
    job, worker = bench.running()
    bench.jobs.cancel(job)

    bench.jobs.ping(worker, [])
    assert bench.jobs.due_stops(worker) == [job.id]
    bench.jobs.ping(worker, [job.id])
    assert bench.jobs.due_stops(worker) == [job.id]
    bench.jobs.ping(worker, [])
    assert bench.jobs.due_stops(worker) == []


@pytest.mark.parametrize("status", ["FAILED", "TIMED_OUT"])
def test_execution_timeout(status: str) -> None:
    """A job that runs too long ends with the platform's words, and its worker is told to stop."""
    bench = Bench(exec_timeout_status=status)
    job, worker = bench.running(policy=Policy(5, 100))
    bench.pass_time(4.9)
    assert job.status is Status.IN_PROGRESS
    bench.pass_time(0.1)

    assert (job.status, job.run.error) == (status, "executionTimeout exceeded")
    assert bench.jobs.due_stops(worker) == [job.id]


def test_execution_timeout_excludes_the_queue() -> None:
    """Time in the queue does not count as time of execution."""
    bench = Bench(execution_timeout_s=5)
    job = bench.jobs.submit("in")
    bench.pass_time(100)
    bench.jobs.take(bench.jobs.worker("w1"))
    bench.pass_time(4)

    assert job.status is Status.IN_PROGRESS


def test_ttl_deletes() -> None:
    """At the end of its lifetime a job is gone, queued or running."""
    bench = Bench(ttl_s=10)
    running, worker = bench.running()
    queued = bench.jobs.submit("in")
    bench.pass_time(10)

    assert bench.jobs.get(running.id) is bench.jobs.get(queued.id) is None
    assert bench.jobs.due_stops(worker) == [running.id]
    assert bench.jobs.take(worker) == []


def test_ttl_times_out() -> None:
    """In the older reading the lifetime is that of the wait in the queue."""
    bench = Bench(ttl_s=10, ttl_mode="timed_out")
    running, _ = bench.running()
    queued = bench.jobs.submit("in")
    bench.pass_time(10)

    assert (running.status, queued.status) == (Status.IN_PROGRESS, Status.TIMED_OUT)


def test_lost_worker() -> None:
    """A lost worker's jobs are queued again, in front, and fail when that happens too often."""
    bench = Bench(worker_lost_retries=2)
    job, worker = bench.running("w0")
    bench.jobs.submit("behind it")
    for n in range(1, 3):
        bench.jobs.stream(worker, job.id, ["half"], 4)
        bench.jobs.lose(worker.id)
        assert (job.status, job.run.chunks) == (Status.IN_QUEUE, [])
        worker = bench.jobs.worker(f"w{n}")
        assert bench.jobs.take(worker) == [job]
    bench.jobs.lose("w2")

    assert job.status is Status.FAILED
    assert "w2 was lost" in str(job.run.error)
    assert bench.jobs.retried == 2


def test_silent_worker() -> None:
    """A worker is lost when it has been silent for long, unless a poll of it is open."""
    bench = Bench(worker_lost_s=30)
    job, worker = bench.running()
    worker.open_polls = 1
    bench.pass_time(31)
    assert job.status is Status.IN_PROGRESS
    worker.open_polls = 0
    bench.pass_time(1)

    assert job.status is Status.IN_QUEUE
    assert bench.jobs.workers == {}


def test_retired_worker() -> None:
    """A worker that is to be replaced finishes what it has, and gets nothing more."""
    bench = Bench()
    job, worker = bench.running()
    bench.jobs.submit("next")
    bench.jobs.retire(worker)

    assert bench.jobs.take(worker) == []
    assert bench.jobs.complete(worker, job.id)


def test_retry() -> None:
    """Only a failed or timed-out job can be retried; its result goes, and it is queued again."""
    bench = Bench()
    job, worker = bench.running()
    assert not bench.jobs.retry(job)
    bench.jobs.stream(worker, job.id, ["half"], 4)
    bench.jobs.fail(worker, job.id, "sorry")
    assert bench.jobs.retry(job)

    assert (job.status, job.run.error, job.run.chunks) == (Status.IN_QUEUE, None, [])
    assert bench.jobs.take(bench.jobs.worker("w2")) == [job]


def test_retry_after_a_timeout() -> None:
    """A job that timed out in the queue can be retried, and has its whole lifetime again."""
    bench = Bench(ttl_s=10, ttl_mode="timed_out")
    job = bench.jobs.submit("in")
    bench.pass_time(10)
    assert (job.status, job.run.error) == (Status.TIMED_OUT, "ttl exceeded")
    assert bench.jobs.retry(job)
    bench.pass_time(9)

    assert (job.status, job.run.error) == (Status.IN_QUEUE, None)


def test_cancel_running() -> None:
    """A running job that is cancelled is CANCELLED at once, and its worker is told to stop it."""
    bench = Bench()
    job, worker = bench.running()
    bench.jobs.cancel(job)

    assert statuses(job) == ["IN_QUEUE", "IN_PROGRESS", "CANCELLED"]
    assert bench.jobs.due_stops(worker) == [job.id]
    assert worker.jobs == {}


def test_counters() -> None:
    """Jobs are counted where they are, and by how they ended; retries and lost workers too."""
    bench = Bench()
    done, worker = bench.running()
    bench.jobs.complete(worker, done.id, 1)
    failed, worker = bench.running()
    bench.jobs.fail(worker, failed.id, "sorry")
    bench.running("w2")
    lost, worker = bench.running("w3")
    bench.jobs.lose(worker.id)
    bench.jobs.take(bench.jobs.worker("w2"))
    bench.jobs.retry(failed)
    jobs = bench.jobs

    assert (jobs.completed, jobs.failed, jobs.retried) == (1, 1, 2)
    assert (jobs.in_queue, jobs.in_progress, lost.lost) == (1, 2, 1)


def test_idle() -> None:
    """A worker is idle from its first question for jobs on, and from the end of its last job."""
    bench = Bench()
    worker = bench.jobs.worker("w1")
    assert worker.idle_s is None
    bench.jobs.asks(worker)
    assert worker.idle_s == 1000
    job, _ = bench.running()
    assert worker.idle_s is None
    bench.pass_time(5)
    bench.jobs.complete(worker, job.id, 1)

    assert worker.idle_s == 1005


def test_never_twice_at_one_worker() -> None:
    """A retried job is not given to a worker which may still be running it."""
    bench = Bench(execution_timeout_s=5)
    job, worker = bench.running()
    bench.pass_time(5)
    bench.jobs.retry(job)
    other = bench.jobs.submit("other")

    assert bench.jobs.take(worker, 5) == [other]
    assert bench.jobs.take(bench.jobs.worker("w2"), 5) == [job]


def test_purge() -> None:
    """A purge removes what is queued and leaves what runs."""
    bench = Bench()
    running, _ = bench.running()
    queued = [bench.jobs.submit(n) for n in range(3)]

    assert bench.jobs.purge() == 3
    assert bench.jobs.purge() == 0
    assert running.status is Status.IN_PROGRESS
    assert [bench.jobs.get(job.id) for job in queued] == [None] * 3


def test_drain() -> None:
    """What was streamed is given once."""
    bench = Bench()
    job, worker = bench.running()
    bench.jobs.stream(worker, job.id, ["a"], 1)
    bench.jobs.stream(worker, job.id, [None], 4)

    assert bench.jobs.drain(job) == ["a", None]
    assert bench.jobs.drain(job) == []


def failing_drain(bench: Bench, job: Job, meanwhile=lambda: None) -> None:
    with contextlib.suppress(ConnectionError), bench.jobs.draining(job):
        meanwhile()
        raise ConnectionError


def test_drain_that_fails() -> None:
    """What could not be delivered is there again, in front, and who waits for it is woken."""
    bench = Bench()
    job, worker = bench.running()
    bench.jobs.stream(worker, job.id, ["a"], 1)
    bench.woken.clear()
    failing_drain(bench, job, lambda: bench.jobs.stream(worker, job.id, ["b"], 1))

    assert bench.woken == [job.id, job.id]
    with bench.jobs.draining(job) as chunks:
        assert chunks == ["a", "b"]
    assert bench.jobs.drain(job) == []


def test_drain_that_fails_in_a_new_run() -> None:
    """What could not be delivered is dropped when the job was queued again in the meantime."""
    bench = Bench()
    job, worker = bench.running()
    bench.jobs.stream(worker, job.id, ["a"], 1)
    failing_drain(bench, job, lambda: bench.jobs.lose(worker.id))

    assert (job.weight, bench.jobs.drain(job)) == (0, [])


@pytest.mark.parametrize("drains", ["before the end", "after the end", "across the end"])
def test_drain_that_fails_counts(drains: str) -> None:
    """What could not be delivered counts again among the bytes that are kept."""
    bench = Bench(retain_bytes=1000)
    job, worker = bench.running()
    bench.jobs.stream(worker, job.id, ["a"], 600)

    def end() -> None:
        bench.jobs.complete(worker, job.id)

    if drains == "before the end":
        failing_drain(bench, job)
    if drains == "across the end":
        failing_drain(bench, job, end)
    else:
        end()
    if drains == "after the end":
        failing_drain(bench, job)
    other, worker = bench.running()
    bench.jobs.complete(worker, other.id, "x", size=399)
    assert bench.jobs.get(job.id) is job
    other, worker = bench.running()
    bench.jobs.complete(worker, other.id, "x", size=2)

    assert bench.jobs.get(job.id) is None


def test_progress_and_errors_count() -> None:
    """Progress and errors count among the bytes that are kept."""
    bench = Bench(retain_bytes=1000)
    cancelled, worker = bench.running()
    bench.jobs.progress(worker, cancelled.id, "half", size=600)
    bench.jobs.cancel(cancelled)
    failed, worker = bench.running()
    bench.jobs.fail(worker, failed.id, "x" * 401)

    assert bench.jobs.get(cancelled.id) is None
    assert bench.jobs.get(failed.id) is failed


def test_purged_jobs_take_no_room() -> None:
    """Jobs that are purged, or whose lifetime ends, push no result out."""
    bench = Bench(retain_jobs=2, ttl_s=10)
    done, worker = bench.running(policy=Policy(100, 100))
    bench.jobs.complete(worker, done.id, 1)
    for _ in range(5):
        bench.jobs.submit("in")
    assert bench.jobs.purge() == 5
    for _ in range(5):
        bench.jobs.submit("in")
    bench.pass_time(10)

    assert bench.jobs.in_queue == 0
    assert bench.jobs.get(done.id) is done


def time_to_empty(act: str, length: int) -> float:
    """Return the processor time, in seconds, in which a queue of this length is emptied."""
    bench = Bench()
    jobs = [bench.jobs.submit(n) for n in range(length)]
    started_s = time.thread_time()
    if act == "purge":
        assert bench.jobs.purge() == length
    for job in {"cancel": jobs, "cancel from the end": jobs[::-1]}.get(act, []):
        bench.jobs.cancel(job)
    took_s = time.thread_time() - started_s

    assert bench.jobs.in_queue == 0
    return took_s


@pytest.mark.parametrize("act", ["purge", "cancel", "cancel from the end"])
def test_long_queue(act: str) -> None:
    """A job leaves a long queue as quickly as a short one, wherever it stands in it."""
    short_s = min(time_to_empty(act, 500) for _ in range(5))
    long_s = min(time_to_empty(act, 5000) for _ in range(3))

    assert long_s < 40 * short_s  # 10 times the jobs; with a search for each 100 times the time


def test_retention_by_age() -> None:
    """Results are kept half an hour for /run and a minute for /runsync."""
    bench = Bench()
    kept = {}
    for kind in ("run", "sync"):
        job, worker = bench.running(kind=kind)
        bench.jobs.complete(worker, job.id, 1)
        kept[kind] = job.id
    bench.pass_time(60)
    assert bench.jobs.get(kept["sync"]) is None
    assert bench.jobs.get(kept["run"]) is not None
    bench.pass_time(1740)
    assert bench.jobs.get(kept["run"]) is None


def test_retention_by_number_and_size() -> None:
    """The oldest results go when there are too many, or too many bytes of them."""
    bench = Bench(retain_jobs=3, retain_bytes=1000)
    ids = []
    for size in (10, 10, 10, 10, 995):
        job, worker = bench.running()
        bench.jobs.complete(worker, job.id, "x", size=size)
        ids.append(job.id)
        if len(ids) == 4:
            assert [bench.jobs.get(job_id) is not None for job_id in ids] == [False] + [True] * 3

    assert [bench.jobs.get(job_id) is not None for job_id in ids] == [False] * 4 + [True]
