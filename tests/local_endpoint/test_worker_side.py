import time

import pytest

from local_endpoint import Status


def test_take_holds_until_there_is_a_job(house) -> None:
    """A poll without a job is held, and answered as soon as there is one."""
    house.serve()
    taking = house.later(house.worker().take)
    house.endpoint.wait_ready()
    job_id = house.customer().run({"a": "ü"}, s3Config={"bucketName": "b"}, other="dropped")

    expected = {"id": job_id, "input": {"a": "ü"}, "s3Config": {"bucketName": "b"}}
    assert taking.result() == expected


def test_take_gives_up(house) -> None:
    """A poll without a job ends with 204 after the hold time, not before."""
    house.serve(take_hold_s=0.3)
    started_s = time.monotonic()

    assert house.worker().get("job-take").status_code == 204
    assert time.monotonic() - started_s >= 0.3


def test_take_batch(house) -> None:
    """A batch is an array of what there is, up to its size; it does not wait to be full."""
    house.serve()
    ids = [house.customer().run(n) for n in range(5)]
    worker = house.worker()
    batches = [worker.get("job-take-batch", "&batch_size=3").json() for _ in range(2)]

    assert [[job["id"] for job in batch] for batch in batches] == [ids[:3], ids[3:]]
    assert worker.get("job-take-batch", "&batch_size=x").status_code == 400


def test_dead_poll_gets_no_job(house) -> None:
    """A job is not handed to a poll whose connection is dead, even if that is not yet noticed."""
    house.serve()
    connection = house.raw_request(
        "GET /v2/local/job-take/dead?gpu=LOCAL", house.endpoint.worker_key
    )
    house.endpoint.wait_ready()
    # While the endpoint is busy, the connection dies and then a job comes.
    house.endpoint._loop.call_soon_threadsafe(time.sleep, 0.2)
    connection.close()
    job_id = house.endpoint.submit("in")

    assert house.worker("alive").take()["id"] == job_id
    states = [status for _, status in house.endpoint.record(job_id).states]
    assert states == [Status.IN_QUEUE, Status.IN_PROGRESS]


def test_body_is_json_whatever_its_type(house) -> None:
    """Posts are read as JSON in spite of the SDK's form type, and answered 200."""
    house.serve()
    job_id = house.customer().run()
    worker = house.worker()
    worker.take()

    assert worker.stream(job_id, {"ä": [1, None]}).status_code == 200
    assert worker.done(job_id, output=["ö"]).status_code == 200
    assert house.customer().stream(job_id)["stream"] == [{"output": {"ä": [1, None]}}]
    assert house.customer().status(job_id)["output"] == ["ö"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"output": []}, {"status": "COMPLETED", "output": []}),
        ({"output": None}, {"status": "COMPLETED", "output": None}),
        ({}, {"status": "COMPLETED"}),
        ({"error": "sorry"}, {"status": "FAILED", "error": "sorry"}),
        ({"error": "sorry", "output": 1}, {"status": "FAILED", "error": "sorry"}),
        ({"error": {"message": "lost"}}, {"status": "COMPLETED"}),
        ({"output": 1, "stopPod": True}, {"status": "COMPLETED", "output": 1}),
    ],
)
def test_done(house, message, expected) -> None:
    """A done ends the job as the platform would, which loses an error that is not a string."""
    house.serve()
    job_id = house.customer().run()
    worker = house.worker()
    worker.take()
    worker.done(job_id, **message)

    status = house.customer().status(job_id)
    assert {key: status[key] for key in ("status", "output", "error") if key in status} == expected
    assert house.endpoint.workers()[0].is_retired == ("stopPod" in message)


@pytest.mark.parametrize(
    "body", [b"not json", b'{"output": NaN}', b"\xff", b"[]", b'{"output": "%s"}' % (b"x" * 2000)]
)
def test_done_refused(house, body: bytes) -> None:
    """A result that is no JSON or too large is answered 400, and the job COMPLETED without it."""
    house.serve(max_body_run=1000)
    job_id = house.customer().run()
    worker = house.worker()
    worker.take()

    assert worker.post("job-done", job_id, body).status_code == 400
    status = house.customer().status(job_id)
    assert (status["status"], "output" in status) == ("COMPLETED", False)


def test_sync_results_may_be_larger(house) -> None:
    """The limit of a result is that of the route by which its job came."""
    house.serve(max_body_run=1000, max_body_sync=5000)
    asking = house.later(house.customer().post, "runsync", {"input": 1})
    worker = house.worker()

    assert worker.done(worker.take()["id"], output="x" * 2000).status_code == 200
    assert asking.result().json()["output"] == "x" * 2000


@pytest.mark.parametrize(
    ("mode", "status", "chunks"),
    [
        ("split", 200, ["ü" * 25] * 4),
        ("reject", 400, []),
        ("allow", 200, ["ü" * 100]),
    ],
)
def test_large_chunk(house, mode: str, status: int, chunks: list[str]) -> None:
    """A yield above the limit is split, refused or allowed, as the knob says."""
    house.serve(max_stream_chunk=100, oversize_chunk=mode)
    job_id = house.customer().run()
    worker = house.worker()
    worker.take()

    assert worker.stream(job_id, "ü" * 100).status_code == status
    stream = house.customer().stream(job_id, wait_ms=10)["stream"]
    assert [part["output"] for part in stream] == chunks


def test_late_posts(house) -> None:
    """Posts for a job that is over, or that another worker has, are answered 200 and ignored."""
    house.serve()
    job_id = house.customer().run()
    worker, other = house.worker(), house.worker("w2")
    worker.take()

    assert other.stream(job_id, "x").status_code == 200
    assert other.done(job_id, output="x").status_code == 200
    house.customer().post(f"cancel/{job_id}")
    assert worker.stream(job_id, "x").status_code == 200
    assert worker.done(job_id, output="x").status_code == 200
    assert worker.done("unknown", output="x").status_code == 200
    assert house.customer().stream(job_id) == {"status": "CANCELLED", "stream": []}
    assert "output" not in house.customer().status(job_id)
    assert len(house.endpoint.record(job_id).late) == 4


def test_progress(house) -> None:
    """A progress post shows as output of the running job, and is ignored once it is over."""
    house.serve()
    job_id = house.customer().run()
    worker = house.worker()
    worker.take()
    worker.done(job_id, status="IN_PROGRESS", output="half")
    halfway = house.customer().status(job_id)
    worker.done(job_id, output="all")
    worker.done(job_id, status="IN_PROGRESS", output="late")
    finally_ = house.customer().status(job_id)

    assert (halfway["status"], halfway["output"]) == ("IN_PROGRESS", "half")
    assert (finally_["status"], finally_["output"]) == ("COMPLETED", "all")


def test_stop(house) -> None:
    """A held stop poll is answered when a job is cancelled, and again until the job is gone."""
    house.serve(stop_repeat_s=0.2, stop_hold_s=0.5)
    job_id = house.customer().run()
    worker = house.worker()
    worker.take()
    worker.ping(job_id)
    stopping = house.later(house.worker().get, "job-stop")
    house.customer().post(f"cancel/{job_id}")

    assert stopping.result().json() == {"jobsToStop": [job_id]}
    assert worker.get("job-stop").json() == {"jobsToStop": [job_id]}
    first_s, second_s = house.endpoint.record(job_id).stops
    assert second_s - first_s >= 0.19
    worker.ping()
    assert worker.get("job-stop").status_code == 204


def test_ping(house) -> None:
    """A heartbeat names jobs and version, and can say that the worker is unhealthy."""
    house.serve()
    worker = house.worker()
    worker.ping("a", "b")
    (info,) = house.endpoint.workers()
    worker.get("ping", "&status=unhealthy&check=gpu&reason=broken")

    assert (info.ping_jobs, info.sdk_version) == (("a", "b"), "1.12.0")
    assert house.customer().get("health").json()["workers"]["unhealthy"] == 1


def test_lost_worker(house) -> None:
    """When a worker is silent for too long its job goes to another."""
    house.serve(worker_lost_s=0.2)
    job_id = house.customer().run()
    house.worker().take()

    assert house.worker("w2").take()["id"] == job_id
    assert house.customer().get("health").json()["jobs"]["retried"] == 1


def test_shutdown_answers_polls(house) -> None:
    """When the endpoint closes, open polls are answered at once and new ones are not held."""
    house.serve(take_hold_s=60, stop_hold_s=60)
    polls = [house.later(house.worker().get, route) for route in ("job-take", "job-stop")]
    house.endpoint.wait_ready()
    house.endpoint._loop.call_soon_threadsafe(house.endpoint._endpoint.close)

    assert [poll.result(timeout=5).status_code for poll in polls] == [204, 204]
    assert house.worker().get("job-take").status_code == 204


def test_round_trip_time(house) -> None:
    """The knob for the round trip delays a post by that time."""
    house.serve(rtt_ms=200)
    job_id = house.customer().run()
    worker = house.worker()
    worker.take()
    started_s = time.monotonic()
    worker.stream(job_id, "x")

    assert time.monotonic() - started_s >= 0.2
