"""Faults, seen by a double that calls the worker side, and by a worker with the real SDK."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from workers import ECHO

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint
from waiting import wait_until

LONG = {"yields": list(range(1000)), "pause_s": 0.02}


def test_status(house) -> None:
    """A fault answers a number of requests of its route with its status, and then no more."""
    house.serve()
    worker = house.worker()
    job_id = house.customer().run()
    worker.take()
    house.endpoint.faults.add("job-stream", status=500, times=2)
    house.endpoint.faults.add("job-stream", status=429)
    statuses = [worker.stream(job_id, n).status_code for n in range(4)]

    assert statuses == [500, 500, 429, 200]
    assert house.customer().stream(job_id)["stream"] == [{"output": 3}]
    assert worker.done(job_id, output=1).status_code == 200


def test_posts(house) -> None:
    """The next three posts fail with 500, be they streamed values or results."""
    house.serve()
    worker = house.worker()
    job_id = house.customer().run()
    worker.take()
    house.endpoint.faults.add("posts", status=500, times=3)
    statuses = [worker.stream(job_id, 1).status_code, worker.done(job_id, output=1).status_code]
    statuses += [worker.stream(job_id, 1).status_code, worker.done(job_id, output=1).status_code]

    assert statuses == [500, 500, 500, 200]


def test_only_one_worker(house) -> None:
    """A fault may be for one worker's requests."""
    house.serve()
    house.endpoint.faults.add("ping", status=500, worker_id="w2")

    assert house.worker("w1").get("ping").status_code == 200
    assert house.worker("w2").get("ping").status_code == 500
    assert house.worker("w2").get("ping").status_code == 200


def test_public_side(house) -> None:
    """The public side can fail too."""
    house.serve()
    house.endpoint.faults.add("health", status=503)

    assert [house.customer().get("health").status_code for _ in range(2)] == [503, 200]


@pytest.mark.parametrize("delay", ["delay_ms", "answer_delay_ms"])
def test_delay(house, delay: str) -> None:
    """A post can be late on its way to the endpoint, or its answer on the way back."""
    house.serve()
    worker = house.worker()
    job_id = house.customer().run({"stream": True})
    worker.take()
    house.endpoint.faults.add("job-stream", **{delay: 200})
    worker.stream(job_id, "x")
    record = house.endpoint.record(job_id)
    request = record.requests[-1]
    handled_s = record.submitted_s + house.endpoint.state()["jobs"][0]["time_to_first_token_s"]
    before_s = handled_s - request.at_s
    after_s = request.duration_s - before_s

    assert (before_s if delay == "delay_ms" else after_s) >= 0.199
    assert (after_s if delay == "delay_ms" else before_s) < request.duration_s - 0.199


def test_drop(house) -> None:
    """A connection can be dropped before the post is treated, or after."""
    house.serve()
    worker = house.worker()
    job_id = house.customer().run()
    worker.take()
    for value, fault in (("before", "drop"), ("after", "drop_answer")):
        house.endpoint.faults.add("job-stream", **{fault: True})
        with pytest.raises(requests.ConnectionError):
            worker.stream(job_id, value)
    assert worker.stream(job_id, "none").status_code == 200

    stream = house.customer().stream(job_id)["stream"]
    assert [part["output"] for part in stream] == ["after", "none"]


@pytest.mark.parametrize(
    ("route", "status"),
    [("job-take", 204), ("job-take", 400), ("job-take-batch", 204), ("job-take-batch", 429)],
)
def test_take_refused(house, route: str, status: int) -> None:
    """Polls for jobs can be refused, single or in batches; not so fast that a worker spins."""
    house.serve()
    house.customer().run()
    house.endpoint.faults.add("job-take", status=status, times=4)
    worker = house.worker()
    started_s = time.monotonic()
    statuses = [worker.get(route, "&batch_size=2").status_code for _ in range(5)]

    assert statuses == [status] * 4 + [200]
    assert time.monotonic() - started_s >= 0.2


def test_job_lost_on_its_way(house) -> None:
    """A job handed out when its worker has just given up is the worker's, and nobody runs it."""
    house.serve(execution_timeout_s=0.5)
    job_id = house.customer().run()
    house.endpoint.faults.add("job-take", drop_answer=True)
    with pytest.raises(requests.ConnectionError):
        house.worker().take()
    running = house.customer().status(job_id)
    record = house.endpoint.wait_for_end(job_id)

    assert (running["status"], running["workerId"]) == ("IN_PROGRESS", "w1")
    assert record.status == "FAILED"


def test_job_given_late(house) -> None:
    """A job can be handed out after a delay in which its worker gives up: it is not lost then."""
    house.serve()
    job_id = house.customer().run()
    house.endpoint.faults.add("job-take", answer_delay_ms=300)
    connection = house.raw_request("GET /v2/local/job-take/w1?gpu=X", house.endpoint.worker_key)
    wait_until(lambda: house.customer().status(job_id)["status"] == "IN_PROGRESS")
    connection.close()

    assert house.worker("w2").take()["id"] == job_id


def test_stop_delayed_doubled_unknown(house) -> None:
    """Stop signals can be late, twice in one answer, or for jobs which nobody knows."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    job_id = customer.run()
    worker.take()
    customer.post(f"cancel/{job_id}")
    house.endpoint.faults.add("job-stop", answer_delay_ms=200, duplicate=True)
    started_s = time.monotonic()
    late = worker.get("job-stop").json()
    took_s = time.monotonic() - started_s
    worker.ping()
    house.endpoint.faults.add("job-stop", job_ids=["nobody"])

    assert late == {"jobsToStop": [job_id, job_id]}
    assert took_s >= 0.2
    assert worker.get("job-stop").json() == {"jobsToStop": ["nobody"]}


def test_stop_before_the_job_starts(house) -> None:
    """A job can be stopped while it is handed out: the signal arrives before the job."""
    house.serve()
    stopping = house.later(house.worker().get, "job-stop")
    house.endpoint.faults.add("job-take", stop=True)
    job_id = house.customer().run()
    taking = house.later(house.worker().take)

    assert stopping.result().json() == {"jobsToStop": [job_id]}
    assert not taking.done()
    assert taking.result()["id"] == job_id
    assert house.customer().status(job_id)["status"] == "CANCELLED"


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"route": "jobs"}, "route='jobs' is not one of job-take, "),
        ({"route": "posts", "state": 500}, "unknown field `state`"),
        ({"route": "posts", "status": 5}, "status=5 is not an HTTP status"),
        ({"route": "posts", "times": 0}, "times=0 is less than 1"),
        ({"route": "ping", "stop": True}, "stop is for job-take and job-stream"),
        ({"route": "ping", "job_ids": ["a"]}, "duplicate and job_ids are for job-stop"),
    ],
)
def test_wrong(house, fault, sentence: str) -> None:
    """A fault that cannot be is refused in a sentence."""
    with pytest.raises(ValueError, match=sentence):
        house.serve().faults.add(**fault)


def test_documented(house) -> None:
    """Every fault that the documentation shows can be added as it stands there."""
    text = Path(__file__).parents[2].joinpath("docs", "local-endpoint.md").read_text()
    shown = re.findall(r"^\| `(faults\.add\(.*?\))` \|", text, re.MULTILINE)
    faults = house.serve().faults
    for line in shown:
        eval(line, {"faults": faults})

    assert len(faults.waiting()) == len(shown) > 10


@pytest.fixture(scope="module")
def endpoint() -> Iterator[LocalEndpoint]:
    """One worker made with the real SDK; a test that ends it stands last."""
    knobs = Knobs(take_hold_s=2, stop_hold_s=0.5, stop_repeat_s=0.5)
    with local_endpoint.serve(knobs, command=ECHO) as endpoint:
        endpoint.wait_ready()
        yield endpoint


@pytest.fixture(autouse=True)
def _no_fault_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "endpoint" in request.fixturenames:
        request.getfixturevalue("endpoint").faults.clear()


@pytest.mark.parametrize(
    "fault", [{"status": 400}, {"status": 429}, {"drop": True}], ids=["400", "429", "drop"]
)
def test_sdk_loses_a_refused_post(endpoint: LocalEndpoint, fault: dict[str, Any]) -> None:
    """The SDK drops a stream post that is answered 4xx or not at all; the result has it still."""
    endpoint.faults.add("job-stream", **fault)
    record = endpoint.wait_for_end(endpoint.submit({"yields": ["a", "b"]}))

    assert [post.value for post in record.stream] == ["b"]
    assert record.done[-1].value == {"output": ["a", "b"]}


def test_sdk_repeats_a_failed_post(endpoint: LocalEndpoint) -> None:
    """The SDK repeats a post that is answered 500, be it a value or a result: nothing is lost."""
    endpoint.faults.add("job-stream", status=500)
    endpoint.faults.add("job-done", status=500)
    value, result = (endpoint.submit({"yields": yields}) for yields in (["a", "b"], []))
    records = [endpoint.wait_for_end(job) for job in (value, result)]

    assert [post.value for post in records[0].stream] == ["a", "b"]
    assert [one.status for one in records[0].requests[1:]] == [500, 200, 200, 200]
    assert [one.status for one in records[1].requests[1:]] == [500, 200]
    assert records[1].status == "COMPLETED"


@pytest.mark.parametrize("status", [204, 400, 500])
def test_sdk_asks_again(endpoint: LocalEndpoint, status: int) -> None:
    """The SDK asks again when a poll for jobs is refused, and gets its job."""
    endpoint.faults.add("job-take", status=status, times=5)
    endpoint.wait_for_end(endpoint.submit({"yields": []}))  # ends the poll that was open
    wait_until(lambda: not endpoint.faults.waiting())
    record = endpoint.wait_for_end(endpoint.submit({"yields": ["a"]}))

    assert record.status == "COMPLETED"


def test_sdk_stopped_during_a_post(endpoint: LocalEndpoint) -> None:
    """A job stopped while the SDK waits for the answer to its post ends there, without a result."""
    endpoint.faults.add("job-stream", stop=True)
    job_id = endpoint.submit(LONG)
    wait_until(lambda: endpoint.record(job_id).status == "CANCELLED")
    wait_until(lambda: not endpoint.workers()[0].stops_pending)  # its heartbeat names no job
    endpoint.wait_for_end(endpoint.submit({"yields": ["a"]}))
    record = endpoint.record(job_id)

    assert [len(record.stream), len(record.done), len(record.late)] == [1, 0, 0]
    assert record.stops


def test_sdk_ignores_unknown_stops(endpoint: LocalEndpoint) -> None:
    """Stop signals for unknown jobs, and doubled ones, harm no other job."""
    neighbour, job_id = endpoint.submit(LONG), endpoint.submit(LONG)
    wait_until(lambda: endpoint.record(job_id).stream)
    endpoint.faults.add("job-stop", duplicate=True, job_ids=["nobody"])
    wait_until(lambda: not endpoint.faults.waiting())
    cancel(endpoint, job_id)
    wait_until(lambda: endpoint.record(job_id).stops)
    posts = len(endpoint.record(neighbour).stream)
    wait_until(lambda: len(endpoint.record(neighbour).stream) > posts + 5)

    assert endpoint.record(neighbour).status == "IN_PROGRESS"
    cancel(endpoint, neighbour)


def cancel(endpoint: LocalEndpoint, job_id: str) -> None:
    key = {"Authorization": endpoint.api_key}
    requests.post(f"{endpoint.url}/cancel/{job_id}", headers=key, timeout=10)


def test_sdk_after_sigterm(endpoint: LocalEndpoint) -> None:
    """After SIGTERM a job that runs is finished; one that is handed out then is never run.

    The endpoint queues it again when the worker is gone.
    """
    endpoint.wait_ready()
    (worker,) = endpoint.workers()
    endpoint.faults.add("job-take", answer_delay_ms=1000, times=None)
    running = endpoint.submit({"yields": list(range(20)), "pause_s": 0.05})
    wait_until(lambda: endpoint.record(running).stream)
    late = endpoint.submit({"yields": ["a"]})
    wait_until(lambda: endpoint.record(late).taken_s)
    endpoint.act("sigterm", worker.id)
    record = endpoint.wait_for_end(running)
    wait_until(lambda: len(endpoint.record(late).states) >= 3)

    assert [str(status) for _, status in record.states] == ["IN_QUEUE", "IN_PROGRESS", "COMPLETED"]
    assert record.done[-1].value == {"output": list(range(20))}
    states = [str(status) for _, status in endpoint.record(late).states[:3]]
    assert states == ["IN_QUEUE", "IN_PROGRESS", "IN_QUEUE"]
    assert endpoint.record(late).stream == endpoint.record(late).done == ()
    assert worker.id not in [known.id for known in endpoint.workers()]
