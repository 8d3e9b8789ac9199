import socket
import time

import pytest
import requests

import local_endpoint
from local_endpoint import Status
from local_endpoint.jobs import Jobs
from local_endpoint.knobs import Knobs
from local_endpoint.recording import Post, Recording


def test_record(house) -> None:
    """The record of a job tells its times in order, and each post with its bytes and value."""
    house.serve()
    before_s = time.monotonic()
    job_id = house.customer().run("in")
    worker = house.worker()
    worker.take()
    worker.stream(job_id, "a")
    worker.stream(job_id, "bü")
    worker.done(job_id, output=["a", "bü"])
    record = house.endpoint.record(job_id)

    times = [record.submitted_s, record.taken_s, record.first_stream_s, record.done_s]
    assert [before_s, *times] == sorted([before_s, *times])
    assert [(post.size, post.value) for post in record.stream] == [(15, "a"), (17, "bü")]
    assert [post.value for post in record.done] == [{"output": ["a", "bü"]}]
    assert [status for _, status in record.states] == ["IN_QUEUE", "IN_PROGRESS", "COMPLETED"]
    assert (record.status, record.input) == (Status.COMPLETED, "in")
    assert [one.job_id for one in house.endpoint.records()] == [job_id]


@pytest.mark.parametrize(
    ("max_jobs", "max_bytes", "kept"), [(3, 10_000, 3), (100, 50, 5), (0, 1, 0)]
)
def test_bounded(max_jobs: int, max_bytes: int, kept: int) -> None:
    """The recording keeps the latest jobs, within a number of jobs and of bytes."""
    recording = Recording(max_jobs, max_bytes)
    jobs = Jobs(Knobs(), time.monotonic)
    submitted = [jobs.submit(n, size=10) for n in range(20)]
    for job in submitted:
        recording.submitted(job)

    assert [one.job_id for one in recording.records()] == [
        job.id for job in submitted[len(submitted) - kept :]
    ]


def test_one_large_job() -> None:
    """Of a job that alone exceeds the bytes, times and sizes are kept but no values."""
    recording = Recording(max_jobs=10, max_bytes=100)
    job = Jobs(Knobs(), time.monotonic).submit("in")
    recording.submitted(job)
    for _ in range(3):
        recording.streamed(job.id, Post(0.0, 60, "x" * 60, "w1"))

    assert [post.value for post in recording.record(job.id).stream] == ["x" * 60, None, None]


def test_fault_status(house) -> None:
    """A fault answers so many requests of its route with its status, and then no more."""
    house.serve()
    worker = house.worker()
    job_id = house.customer().run()
    worker.take()
    house.endpoint.faults.add(route="job-stream", status=500, times=2)
    house.endpoint.faults.add(route="job-stream", status=429)
    statuses = [worker.stream(job_id, n).status_code for n in range(4)]

    assert statuses == [500, 500, 429, 200]
    assert house.customer().stream(job_id)["stream"] == [{"output": 3}]
    assert worker.done(job_id, output=1).status_code == 200


def test_fault_delay_and_drop(house) -> None:
    """A fault can delay a request, for ever until it is cleared, or drop its connection."""
    house.serve()
    worker = house.worker()
    job_id = house.customer().run()
    worker.take()
    house.endpoint.faults.add(route="job-stream", delay_ms=150, times=None)
    for _ in range(2):
        started_s = time.monotonic()
        assert worker.stream(job_id, "x").status_code == 200
        assert time.monotonic() - started_s >= 0.15
    house.endpoint.faults.clear()
    house.endpoint.faults.add(route="job-stream", drop=True)
    with pytest.raises(requests.ConnectionError):
        worker.stream(job_id, "x")
    assert worker.stream(job_id, "x").status_code == 200


def test_busy_port() -> None:
    """Serving on a port in use raises in the caller's thread, and leaves nothing behind."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="in use"),
        local_endpoint.serve(port=taken.getsockname()[1]),
    ):
        pass
