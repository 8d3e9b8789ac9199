import json
import re
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import requests

from waiting import wait_until


def test_run_and_status(house) -> None:
    """A job's status has the platform's keys in each state, and no others."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    job_id = customer.run()
    assert re.fullmatch(r"[0-9a-f-]{36}-u1", job_id)
    queued = customer.status(job_id)
    worker.take()
    running = customer.status(job_id)
    worker.done(job_id, output=["a"])
    completed = customer.status(job_id)

    assert queued == {"id": job_id, "status": "IN_QUEUE"}
    assert sorted(running) == ["delayTime", "id", "status", "workerId"]
    assert completed.pop("delayTime") >= 0
    assert completed.pop("executionTime") >= 0
    expected = {"id": job_id, "status": "COMPLETED", "output": ["a"], "workerId": "w1"}
    assert completed == expected
    assert customer.post(f"status/{job_id}").json()["status"] == "COMPLETED"


def test_failed(house) -> None:
    """A failed job shows its error as the string that the worker sent."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    job_id = customer.run()
    worker.take()
    worker.done(job_id, error="sorry")
    status = customer.status(job_id)

    assert sorted(status) == ["delayTime", "error", "executionTime", "id", "status", "workerId"]
    assert (status["status"], status["error"]) == ("FAILED", "sorry")
    assert customer.stream(job_id) == {"status": "FAILED", "stream": [], "error": "sorry"}


def test_runsync(house) -> None:
    """A synchronous run answers with the result as soon as there is one."""
    house.serve()
    asking = house.later(house.customer().post, "runsync", {"input": 1})
    worker = house.worker()
    job = worker.take()
    worker.done(job["id"], output=2)
    answer = asking.result()

    assert answer.status_code == 200
    assert answer.json()["output"] == 2
    assert job["id"].startswith("sync-")


def test_runsync_gives_up(house) -> None:
    """When its wait is over a synchronous run answers 200 with where the job stands."""
    house.serve()
    customer = house.customer()
    job = customer.post("runsync?wait=50", {"input": 1}).json()
    house.worker().take()
    later = customer.get(f"status-sync/{job['id']}?wait=50").json()

    assert job == {"id": job["id"], "status": "IN_QUEUE"}
    assert later == {"id": job["id"], "status": "IN_PROGRESS"}


def test_stream_drains(house) -> None:
    """Each chunk is given once, and the last ones come together with the final status."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    job_id = customer.run()
    worker.take()
    worker.stream(job_id, "a")
    worker.stream(job_id, "b")
    first = customer.stream(job_id)
    worker.stream(job_id, "c")
    worker.done(job_id, output=[])
    second = customer.stream(job_id)
    third = customer.post(f"stream/{job_id}").json()

    assert first == {"status": "IN_PROGRESS", "stream": [{"output": "a"}, {"output": "b"}]}
    assert second == {"status": "COMPLETED", "stream": [{"output": "c"}]}
    assert third == {"status": "COMPLETED", "stream": []}


def test_stream_waits(house) -> None:
    """Without chunks a stream request is held for the hold time, and ends early when one comes."""
    house.serve(stream_hold_s=0.2)
    customer, worker = house.customer(), house.worker()
    job_id = customer.run()
    started_s = time.monotonic()
    assert customer.get(f"stream/{job_id}").json() == {"status": "IN_QUEUE", "stream": []}
    assert time.monotonic() - started_s >= 0.2
    worker.take()
    waiting = house.later(customer.stream, job_id, 10_000)
    worker.stream(job_id, "a")

    assert waiting.result()["stream"] == [{"output": "a"}]


def test_cancel(house) -> None:
    """A cancelled job is CANCELLED at once, and a finished one stays as it is."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    done = customer.run()
    worker.take()
    worker.done(done, output=1)
    queued = customer.run()

    assert customer.post(f"cancel/{queued}").json() == {"id": queued, "status": "CANCELLED"}
    assert customer.post(f"cancel/{done}").json() == {"id": done, "status": "COMPLETED"}


def test_retry(house) -> None:
    """A failed job can be queued again under its id; another cannot."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    job_id = customer.run()
    worker.take()
    assert customer.post(f"retry/{job_id}").status_code == 400
    worker.done(job_id, error="sorry")

    assert customer.post(f"retry/{job_id}").json() == {"id": job_id, "status": "IN_QUEUE"}
    assert worker.take()["id"] == job_id


def test_purge(house) -> None:
    """A purge says how many queued jobs it removed."""
    house.serve()
    customer = house.customer()
    ids = [customer.run() for _ in range(3)]

    assert customer.post("purge-queue").json() == {"removed": 3, "status": "completed"}
    assert customer.get(f"status/{ids[0]}").status_code == 404


def test_health(house) -> None:
    """Health counts jobs and workers in all the platform's fields."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    jobs = [customer.run() for _ in range(4)]
    idle = house.worker("w2")
    idle.take()
    idle.done(jobs[0], output=1)
    worker.take()
    worker.done(jobs[1], error="sorry")
    worker.take()
    house.worker("w3").ping()

    assert customer.get("health").json() == {
        "jobs": {"completed": 1, "failed": 1, "inProgress": 1, "inQueue": 1, "retried": 0},
        "workers": {
            "idle": 1,
            "initializing": 1,
            "ready": 1,
            "running": 1,
            "throttled": 0,
            "unhealthy": 0,
        },
    }


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b'{"prompt": "x"}',
        b'{"input": NaN}',
        b'{"input": 1, "policy": 5}',
        b'{"input": 1, "policy": {"ttl": "soon"}}',
        b'{"input": 1, "policy": {"executionTimeout": -1}}',
    ],
)
@pytest.mark.parametrize("route", ["run", "runsync"])
def test_bad_request(house, route: str, body: bytes) -> None:
    """A request that cannot become a job is answered 400 with a sentence in JSON."""
    house.serve()
    url = f"{house.endpoint.url}/{route}"
    answer = house.customer().session.post(url, data=body, timeout=10)

    assert answer.status_code == 400
    assert isinstance(answer.json()["error"], str)


@pytest.mark.parametrize("status", [400, 413])
def test_large_request(house, status: int) -> None:
    """A request above the limit of its route is refused, with the status of the knob."""
    house.serve(max_body_run=100, max_body_sync=1000, oversize_request_status=status)
    customer = house.customer()

    assert customer.post("run", {"input": "x" * 200}).status_code == status
    assert customer.post("runsync?wait=1", {"input": "x" * 200}).status_code == 200


@pytest.mark.parametrize(
    ("key", "route", "status"),
    [
        ("Bearer local-api-key", "health", 200),
        ("local-api-key", "health", 200),
        ("Bearer wrong", "health", 401),
        ("", "health", 401),
        ("Bearer local-worker-key", "health", 401),
        ("local-api-key", "ping/w1", 401),
        ("local-worker-key", "ping/w1", 200),
        ("Bearer local-worker-key", "ping/w1", 200),
        ("local-api-key", "status/unknown", 404),
        ("local-api-key", "stream/unknown", 404),
        ("local-api-key", "status-sync/unknown", 404),
        ("local-api-key", "nothing", 404),
        ("local-api-key", "../other/health", 404),
        ("local-api-key", "run", 405),
    ],
)
def test_keys_and_paths(house, key: str, route: str, status: int) -> None:
    """Each side has its own key, with or without Bearer, and refusals are JSON with a sentence."""
    house.serve()
    url = f"{house.endpoint.url}/{route}".replace("/local/../", "/")
    answer = requests.get(url, headers={"Authorization": key}, timeout=10)

    assert answer.status_code == status
    if status != 200:
        assert isinstance(answer.json()["error"], str)


@pytest.mark.parametrize("route", ["cancel", "retry"])
def test_unknown_job(house, route: str) -> None:
    """An action on an unknown job is answered 404."""
    house.serve()

    assert house.customer().post(f"{route}/unknown").status_code == 404


def test_policy(house) -> None:
    """A job's own policy ends it in time: it fails when it runs, and is gone at its ttl."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    slow = customer.run(policy={"executionTimeout": 100})
    worker.take()
    assert customer.get(f"status-sync/{slow}").json()["error"] == "executionTimeout exceeded"
    assert worker.get("job-stop").json() == {"jobsToStop": [slow]}
    short = customer.run(policy={"ttl": 100})
    assert customer.get(f"status-sync/{short}").status_code == 404
    shortened = customer.run()
    assert customer.get(f"status/{shortened}?ttl=50").status_code == 200
    assert customer.get(f"status-sync/{shortened}").status_code == 404


def test_webhook(house) -> None:
    """A webhook gets the status of the finished job with its input, and is tried again."""
    house.serve(webhook_retry_s=0.05)
    posts = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if len(posts) == 1 else 200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        server.timeout = 5
        url = f"http://127.0.0.1:{server.server_port}/hook"
        job_id = house.customer().run("in", webhook=url)
        worker = house.worker()
        assert worker.take()["webhook"] == url
        worker.done(job_id, error="sorry")
        server.handle_request()
        server.handle_request()

    assert posts[0] == posts[1]
    assert posts[1] == {**house.customer().status(job_id), "input": "in", "webhook": url}


def test_requests(house) -> None:
    """The latest jobs are listed with their states."""
    house.serve()
    customer = house.customer()
    ids = [customer.run() for _ in range(2)]
    house.worker().take()

    assert customer.get("requests").json() == {
        "requests": [
            {"id": ids[1], "status": "IN_QUEUE"},
            {"id": ids[0], "status": "IN_PROGRESS"},
        ]
    }


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        ({"executionTimeout": 4999}, 400),
        ({"executionTimeout": 5000}, 200),
        ({"executionTimeout": 7 * 86_400_000 + 1}, 400),
        ({"ttl": 9999}, 400),
        ({"ttl": 10_000, "lowPriority": True}, 200),
    ],
)
def test_policy_limits(house, policy, status: int) -> None:
    """With the knob a policy outside the documented limits is refused."""
    house.serve(policy_limits=True)

    assert house.customer().post("run", {"input": 1, "policy": policy}).status_code == status


@pytest.mark.parametrize(("knob", "statuses"), [(False, [401, 401]), (True, [200, 401])])
def test_x_api_key(house, knob: bool, statuses: list[int]) -> None:
    """With the knob the key may be in an x-api-key header, on the public side only."""
    house.serve(x_api_key=knob)
    answers = [
        requests.get(f"{house.endpoint.url}/{route}", headers={"x-api-key": key}, timeout=10)
        for route, key in [
            ("health", house.endpoint.api_key),
            ("ping/w1", house.endpoint.worker_key),
        ]
    ]

    assert [answer.status_code for answer in answers] == statuses


def test_stream_to_nobody(house) -> None:
    """Chunks whose client leaves before it has them are kept for the next one."""
    house.serve()
    job_id = house.customer().run()
    worker = house.worker()
    worker.take()
    for value in ("a", "b"):
        worker.stream(job_id, value)
    house.endpoint.faults.add("stream", answer_delay_ms=5000)
    connection = house.raw_request(f"GET /v2/local/stream/{job_id}", house.endpoint.api_key)
    job = house.endpoint._endpoint.jobs.get(job_id)
    wait_until(lambda: not job.run.chunks)
    waiting = house.later(house.customer().stream, job_id, 10_000)
    connection.close()

    assert waiting.result()["stream"] == [{"output": "a"}, {"output": "b"}]


def test_webhook_gives_up(house) -> None:
    """A webhook that is never answered 200 is tried three times."""
    house.serve(webhook_retry_s=0.02)
    posts = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        server.timeout = 0.3
        job_id = house.customer().run("in", webhook=f"http://127.0.0.1:{server.server_port}/")
        house.customer().post(f"cancel/{job_id}")
        for _ in range(4):
            server.handle_request()

    assert len(posts) == 3
