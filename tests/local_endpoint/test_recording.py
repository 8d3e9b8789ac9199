import socket
import time

import pytest

import local_endpoint
from local_endpoint import Status
from local_endpoint.jobs import Jobs
from local_endpoint.knobs import Knobs
from local_endpoint.recording import POST_BYTES, Post, Recording, Request


def test_record(house) -> None:
    """The record of a job has its times in order, and each post with its bytes and value."""
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
    ("max_jobs", "max_bytes", "kept"), [(3, 10_000, 3), (100, 5 * (POST_BYTES + 10), 5), (0, 1, 0)]
)
def test_bounded(max_jobs: int, max_bytes: int, kept: int) -> None:
    """The recording keeps the latest jobs, within a number of jobs and of bytes."""
    recording = Recording(max_jobs, max_bytes, is_on=True)
    jobs = Jobs(Knobs(), time.monotonic)
    submitted = [jobs.submit(n, size=10) for n in range(20)]
    for job in submitted:
        recording.submitted(job)

    assert [one.job_id for one in recording.records()] == [
        job.id for job in submitted[len(submitted) - kept :]
    ]


def test_one_large_job() -> None:
    """Of a job that alone exceeds the bytes, times and sizes are kept but no values."""
    recording = Recording(max_jobs=10, max_bytes=4 * POST_BYTES, is_on=True)
    job = Jobs(Knobs(), time.monotonic).submit("in")
    recording.submitted(job)
    for _ in range(3):
        recording.posted("stream", job.id, Post(0.0, POST_BYTES, "x" * POST_BYTES, "w1"))

    assert [post.value for post in recording.record(job.id).stream] == ["x" * 200, None, None]


def test_request_of_jobs_that_do_not_fit() -> None:
    """A request about several jobs may push one of them out, and the bytes are still right."""
    recording = Recording(max_jobs=10, max_bytes=4 * POST_BYTES, is_on=True)
    jobs = Jobs(Knobs(), time.monotonic)
    request = Request(0.0, 0.0, "GET", "/", (), b"", 200)
    for _ in range(5):
        old, *others = [jobs.submit("in") for _ in range(4)]
        for job in (old, *others):
            recording.submitted(job)
        recording.requested(request, [others[0].id, old.id])  # as when the old one is retried
    kept = [jobs.submit("in") for _ in range(4)]
    for job in kept:
        recording.submitted(job)

    assert [one.job_id for one in recording.records()] == [job.id for job in kept]


def test_requests(house) -> None:
    """The worker's requests about a job are kept as they came, those that failed included."""
    house.serve()
    job_id = house.customer().run()
    worker = house.worker()
    worker.take()
    house.endpoint.faults.add("job-stream", status=500)
    for _ in range(2):
        worker.stream(job_id, "ü")
    worker.done(job_id, output=["ü"])
    worker.ping()
    requests = house.endpoint.record(job_id).requests

    assert [(one.method, one.path.split("/")[3], one.status) for one in requests] == [
        ("GET", "job-take", 200),
        ("POST", "job-stream", 500),
        ("POST", "job-stream", 200),
        ("POST", "job-done", 200),
    ]
    assert requests[1].body == requests[2].body == '{"output": "ü"}'.encode()
    assert dict(requests[2].headers)["Content-Type"] == "application/x-www-form-urlencoded"
    assert "local-worker-key" not in repr(requests)


def test_off(house) -> None:
    """While it is off, times and sizes are kept, and no input, value or request."""
    house.serve()
    house.endpoint.set_recording(False)
    job_id = house.customer().run("secret")
    worker = house.worker()
    worker.take()
    worker.stream(job_id, "secret")
    worker.done(job_id, output=["secret"])
    record = house.endpoint.record(job_id)

    assert [len(record.states), len(record.stream), len(record.done)] == [3, 1, 1]
    assert record.stream[0].size == len('{"output": "secret"}')
    assert "secret" not in repr(record)
    assert record.requests == ()


def test_busy_port() -> None:
    """Serving on a port in use raises in the caller's thread, and leaves nothing behind."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="in use"),
        local_endpoint.serve(port=taken.getsockname()[1]),
    ):
        pass
