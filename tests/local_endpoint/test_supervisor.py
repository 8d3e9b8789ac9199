"""Workers that are started here, with a worker that starts at once."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from workers import QUICK

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint, WorkerError, supervisor
from local_endpoint.job import Policy
from local_endpoint.jobs import Jobs
from local_endpoint.supervisor import wanted_workers
from waiting import wait_until


@pytest.fixture(autouse=True)
def _short_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill soon what ignores SIGTERM at the end of a block."""
    monkeypatch.setattr(supervisor, "TERM_S", 0.1)


@contextmanager
def running(*words: str, least: int = 1, most: int = 1, **knobs: Any) -> Iterator[LocalEndpoint]:
    options = {"min_workers": least, "max_workers": most}
    with local_endpoint.serve(Knobs(**knobs), command=[*QUICK, *words], **options) as endpoint:
        yield endpoint


def state(endpoint: LocalEndpoint, worker_id: str) -> dict[str, Any] | None:
    workers = {worker["id"]: worker for worker in endpoint.state()["workers"]}
    return workers.get(worker_id)


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def names(endpoint: LocalEndpoint) -> list[str]:
    return [worker.id for worker in endpoint.workers() if not worker.is_retired]


def test_scale_from_zero_and_back() -> None:
    """Without a job there is no worker; a job starts one, and some idleness ends it by SIGTERM."""
    with running(least=0, most=3, idle_timeout_s=0.3) as endpoint:
        assert endpoint.workers() == []
        record = endpoint.wait_for_end(endpoint.submit({}))
        wait_until(lambda: not names(endpoint))
        idle_s = time.monotonic() - record.states[-1][0]
        wait_until(lambda: not endpoint.workers())
        other = endpoint.wait_for_end(endpoint.submit({}))

    assert record.done[-1].value == {"output": "local-1"}
    assert idle_s >= 0.3
    assert other.done[-1].value == {"output": "local-2"}


def test_scale_by_delay() -> None:
    """Jobs which wait longer than the delay start more workers, up to the most there may be."""
    with running(least=1, most=3, scaler_value=0.2) as endpoint:
        started_s = time.monotonic()
        for _ in range(6):
            endpoint.submit({"seconds": 60})
        wait_until(lambda: len(names(endpoint)) > 1)
        waited_s = time.monotonic() - started_s
        wait_until(lambda: sum(len(worker.jobs) for worker in endpoint.workers()) == 3)

        assert waited_s >= 0.2
        assert names(endpoint) == ["local-1", "local-2", "local-3"]


def test_busy_worker_stays() -> None:
    """A worker with a job is not idle, however long the job runs."""
    with running(least=0, most=1, idle_timeout_s=0.1, sigterm_grace_s=0) as endpoint:
        record = endpoint.wait_for_end(endpoint.submit({"seconds": 0.5}))

    assert [str(status) for _, status in record.states] == ["IN_QUEUE", "IN_PROGRESS", "COMPLETED"]


@pytest.mark.parametrize(
    ("scaler", "value", "waits", "running", "count", "starting", "expected"),
    [
        ("QUEUE_DELAY", 4, [], 0, 0, 0, 0),
        ("QUEUE_DELAY", 4, [0], 0, 0, 0, 1),  # from zero at once
        ("QUEUE_DELAY", 4, [1], 1, 1, 0, 1),
        ("QUEUE_DELAY", 4, [5, 5], 1, 1, 0, 3),
        ("QUEUE_DELAY", 4, [5, 5], 1, 3, 2, 3),  # two are on their way
        ("QUEUE_DELAY", 4, [5], 1, 3, 2, 3),
        ("REQUEST_COUNT", 4, [], 0, 2, 0, 0),
        ("REQUEST_COUNT", 4, [0] * 4, 0, 0, 0, 1),
        ("REQUEST_COUNT", 4, [0] * 4, 1, 1, 0, 2),
    ],
)
def test_wanted_workers(scaler, value, waits, running, count, starting, expected) -> None:
    """The number of workers follows from the wait of the jobs, or from their number."""
    knobs = Knobs(scaler=scaler, scaler_value=value)
    now_s = [0.0]
    jobs = Jobs(knobs, lambda: now_s[0])
    for wait_s in sorted(waits, reverse=True):
        now_s[0] = 100.0 - wait_s
        jobs.submit("in")
    for _ in range(running):
        job = jobs.submit("in")
        taken = jobs.take(jobs.worker("w"), len(waits) + 1)
        jobs.give_back(taken[:-1])
        assert taken[-1] is job
    now_s[0] = 100.0

    assert wanted_workers(jobs, count, starting) == expected


def test_low_priority() -> None:
    """Jobs of low priority start no worker, under either scaler."""
    for scaler in ("QUEUE_DELAY", "REQUEST_COUNT"):
        jobs = Jobs(Knobs(scaler=scaler), lambda: 0.0)
        jobs.submit("in", policy=Policy(1, 1, is_low_priority=True))
        assert wanted_workers(jobs, 0, 0) == 0


def test_dead_worker() -> None:
    """A worker that dies in a job is replaced; the job goes on elsewhere, and fails in the end.

    The first replacement comes at once, the next one after a pause.
    """
    with running(least=1, worker_lost_retries=1) as endpoint:
        record = endpoint.wait_for_end(endpoint.submit({"exit": 3}))
        endpoint.wait_ready()
        pause_s = time.monotonic() - record.states[-1][0]
        (worker,) = endpoint.state()["workers"]

    states = ["IN_QUEUE", "IN_PROGRESS", "IN_QUEUE", "IN_PROGRESS", "FAILED"]
    assert [str(status) for _, status in record.states] == states
    assert (worker["id"], worker["starts"]) == ("local-3", 3)
    assert pause_s >= 1


def test_broken_worker() -> None:
    """If a worker ends before it is ready, that is raised with its code and its last words."""
    with (
        pytest.raises(WorkerError, match=r"exit code 7 before it was ready(.|\n)*no such model"),
        running("broken"),
    ):
        pass


def test_stop_and_start() -> None:
    """Workers are started and stopped by hand, and the supervisor leaves it at that."""
    with running(least=2, most=2) as endpoint:
        assert endpoint.act("stop", "local-1") == "local-1"
        wait_until(lambda: [worker.id for worker in endpoint.workers()] == ["local-2"])
        assert endpoint.act("start") == "local-3"
        endpoint.wait_ready(2)
        assert names(endpoint) == ["local-2", "local-3"]
        assert endpoint.act("restart", "local-2") == "local-2"
        wait_until(lambda: [worker.id for worker in endpoint.workers()] == ["local-3", "local-4"])
        endpoint.act("scale", min=0, max=1)
        wait_until(lambda: len(names(endpoint)) == 1)

        assert endpoint.state()["scaling"]["max"] == 1


def test_stop_lets_the_job_end() -> None:
    """A worker that is told to stop ends its job first, gets no other, and then ends."""
    with running(least=1) as endpoint:
        job = endpoint.submit({"seconds": 0.3})
        wait_until(lambda: endpoint.workers()[0].jobs)
        endpoint.act("stop", "local-1")
        other = endpoint.submit({})
        records = [endpoint.wait_for_end(one) for one in (job, other)]

    workers = [record.done[-1].value["output"] for record in records]
    assert workers == ["local-1", "local-2"]
    assert [len(record.states) for record in records] == [3, 3]


def test_grace() -> None:
    """A worker that ignores SIGTERM is killed after the grace, and its job queued again."""
    with running("stubborn", least=1, sigterm_grace_s=0.2) as endpoint:
        job = endpoint.submit({"seconds": 60})
        wait_until(lambda: endpoint.workers()[0].jobs)
        endpoint.act("stop", "local-1")
        wait_until(lambda: len(endpoint.record(job).states) >= 3)

        assert endpoint.record(job).states[2][1] == "IN_QUEUE"


def test_bare_sigterm() -> None:
    """After nothing but SIGTERM a worker finishes its job, ends by itself, and is replaced."""
    with running(least=1) as endpoint:
        job = endpoint.submit({"seconds": 0.3})
        wait_until(lambda: endpoint.workers()[0].jobs)
        endpoint.act("sigterm", "local-1")
        assert endpoint.wait_for_end(job).status == "COMPLETED"
        wait_until(lambda: names(endpoint) == ["local-2"])


def test_kill() -> None:
    """A killed worker's job goes to the one that takes its place, and its children are gone."""
    with running("heart", least=1) as endpoint:
        job = endpoint.submit({"seconds": 0.3})
        wait_until(lambda: endpoint.workers()[0].jobs)
        (heart,) = psutil.Process(state(endpoint, "local-1")["pid"]).children()
        endpoint.act("kill", "local-1")
        record = endpoint.wait_for_end(job)

        assert record.done[-1].value == {"output": "local-2"}
        assert not is_alive(heart)


def test_orphaned_heartbeat() -> None:
    """A worker killed in secret seems to live while its heartbeat goes on, and keeps its job."""
    with running("heart", least=1, worker_lost_s=1, execution_timeout_s=1.6) as endpoint:
        job = endpoint.submit({"seconds": 60})
        wait_until(lambda: endpoint.workers()[0].jobs)
        endpoint.act("kill", "local-1", orphan=True)
        record = endpoint.wait_for_end(job)
        assert names(endpoint) == ["local-1"]
        endpoint.act("stop", "local-1")
        wait_until(lambda: not endpoint.workers())

    assert [str(status) for _, status in record.states] == ["IN_QUEUE", "IN_PROGRESS", "FAILED"]


@pytest.mark.parametrize(
    ("action", "worker_id", "options", "sentence"),
    [
        ("dance", None, {}, "action='dance' is not start, stop, "),
        ("kill", "nobody", {}, "no worker 'nobody' is run here"),
        ("scale", None, {"min": 3, "max": 1}, "min=3 and max=1 are not a range"),
    ],
)
def test_wrong_action(action, worker_id, options, sentence) -> None:
    """What cannot be done is refused with a sentence."""
    with running(least=0, most=1) as endpoint, pytest.raises(WorkerError, match=sentence):
        endpoint.act(action, worker_id, **options)


def test_no_supervisor() -> None:
    """Where no workers are started, none can be started by hand."""
    with local_endpoint.serve() as endpoint, pytest.raises(WorkerError, match="no workers"):
        endpoint.act("start")


def test_own_directories() -> None:
    """Each worker has a home of its own, and where asked also a working directory."""
    with ExitStack() as stack:
        same, own = (
            stack.enter_context(local_endpoint.serve(command=QUICK, min_workers=2, own_cwd=is_own))
            for is_own in (False, True)
        )
        cwds = [
            [
                wait_until(lambda w=w: Path(w["log"]).read_text()).strip()
                for w in one.state()["workers"]
            ]
            for one in (same, own)
        ]

    assert cwds[0] == [os.getcwd()] * 2
    assert [Path(cwd).parts[-2:] for cwd in cwds[1]] == [("local-1", "work"), ("local-2", "work")]


def test_nothing_is_left() -> None:
    """At the end of the block every process is gone, also one that ignores SIGTERM."""
    with running("stubborn", "heart", least=2, most=2) as endpoint:
        mains = [psutil.Process(worker["pid"]) for worker in endpoint.state()["workers"]]
        processes = mains + [child for main in mains for child in main.children()]
        assert len(processes) == 4

    wait_until(lambda: not any(map(is_alive, processes)))
