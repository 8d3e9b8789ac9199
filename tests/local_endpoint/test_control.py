"""The control API, as the page and a curl use it."""

import ipaddress
import json
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from workers import ENGINE, QUICK

import local_endpoint
from local_endpoint import Knobs, figures
from local_endpoint.process import MAX_SHOWN, log_since
from waiting import wait_until


class Control:
    """Calls the control API without any key."""

    def __init__(self, endpoint: local_endpoint.LocalEndpoint) -> None:
        self.origin = endpoint.url.removesuffix("/v2/local")

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        return requests.request(
            method, f"{self.origin}/control/{path}", json=body, headers=headers, timeout=10
        )

    def get(self, path: str) -> Any:
        answer = self("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()


def test_state(house) -> None:
    """The state shows endpoint, health, workers and jobs, the newest first."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    first = customer.run({"openai_route": "/v1/chat/completions"})
    worker.take()
    worker.ping(first)
    worker.stream(first, 'data: {"usage": {"completion_tokens": 7}}\n\n')
    worker.done(first, output=[])
    second = customer.run()
    state = Control(house.endpoint).get("state")

    assert state["endpoint"]["url"] == house.endpoint.url
    assert state["endpoint"]["api_key"] == house.endpoint.api_key
    assert state["health"]["jobs"]["inQueue"] == 1
    (shown,) = state["workers"]
    assert (shown["id"], shown["state"], shown["pid"], shown["starts"]) == ("w1", "idle", None, 1)
    assert 0 <= shown["ping_s_ago"] < 5
    assert [job["id"] for job in state["jobs"]] == [second, first]
    job = state["jobs"][1]
    assert (job["kind"], job["route"]) == ("run", "/v1/chat/completions")
    assert (job["status"], job["tokens"], job["tokens_reported"]) == ("COMPLETED", 7, True)
    assert (job["posts"], job["worker_id"], job["error"]) == (2, "w1", None)
    assert job["bytes"] == 63 + len('{"output": []}')
    assert 0 <= job["queued_s"] <= job["time_to_first_token_s"] <= job["ended_s"]
    assert job["tokens_per_s"] > 0
    assert [job[key] for job in state["jobs"][:1] for key in ("tokens", "worker_id")] == [None] * 2
    assert (state["faults"], state["recording"]) == ([], True)
    assert state["scaling"]["supervised"] is False
    assert state["knobs"]["take_hold_s"] == 5.0


EVENT = 'data: {"choices": []}\n\n'
ERROR = 'data: {"error": {"message": "no"}}\n\n'


@pytest.mark.parametrize(
    ("job_input", "yields", "end", "has_first", "has_rate"),
    [
        ({}, [EVENT], {"output": []}, True, True),
        ({"stream": True}, [{"usage": {"output": 3}}], {"output": []}, True, True),
        ({"openai_input": {"stream": True}}, ["x"], {"output": []}, True, False),
        ({}, [{"usage": {"output": 3}}], {"output": []}, False, True),
        ({}, ["a", "b"], {"output": []}, True, False),
        ("text", ["a"], {"output": []}, False, False),
        ({}, [], {"output": {"usage": {"output": 3}}}, False, True),
        ({"stream": True}, [], {"error": "no"}, False, False),
        ({"stream": True}, [ERROR], {"error": "no"}, False, False),
        ({"stream": True}, [EVENT, EVENT, ERROR], {"error": "no"}, True, False),
    ],
)
def test_numbers(
    house, job_input, yields: list, end: dict, has_first: bool, has_rate: bool
) -> None:
    """A whole answer has no first token, and a failed one no rate."""
    house.serve()
    job_id = house.customer().run(job_input)
    worker = house.worker()
    worker.take()
    for value in yields:
        worker.stream(job_id, value)
    worker.done(job_id, **end)
    (job,) = Control(house.endpoint).get("state")["jobs"]

    shown = [job[key] is not None for key in ("time_to_first_token_s", "tokens_per_s")]
    assert shown == [has_first, has_rate]


def test_job(house) -> None:
    """A job's page shows states, posts with their sizes, stops, late posts and raw requests."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    job_id = customer.run("x" * 1000)
    worker.take()
    worker.stream(job_id, "y" * 1000)
    customer.post(f"cancel/{job_id}")
    worker.get("job-stop")
    worker.done(job_id, output=[])
    job = Control(house.endpoint).get(f"jobs/{job_id}")

    assert [one["status"] for one in job["states"]] == ["IN_QUEUE", "IN_PROGRESS", "CANCELLED"]
    times = [*(one["at_s"] for one in job["states"]), job["now_s"]]
    assert times == sorted(times)
    (post,) = job["stream"]
    assert (post["bytes"], len(post["preview"]), post["worker_id"]) == (1014, 500, "w1")
    assert job["states"][1]["at_s"] <= post["at_s"] <= job["stops"][0] <= job["late"][0]["at_s"]
    assert (job["input"][:3], len(job["input"]), job["output"]) == ("xxx", 500, None)
    routes = [one["path"].split("/")[3] for one in job["requests"]]
    assert routes == ["job-take", "job-stream", "job-stop", "job-done"]


def test_job_without_recording(house) -> None:
    """Without recording a job's page still has its times and sizes."""
    house.serve(record_jobs=10)
    control = Control(house.endpoint)
    assert control("POST", "recording", {"on": False}).json() == {"recording": False}
    worker = house.worker()
    job_id = house.customer().run()
    worker.take()
    worker.stream(job_id, "value")
    job = control.get(f"jobs/{job_id}")

    assert [(post["bytes"], post["preview"]) for post in job["stream"]] == [(19, None)]
    assert job["requests"] == []
    assert control("GET", "jobs/unknown").status_code == 404


def test_faults(house) -> None:
    """Faults are added, listed, used up and cleared."""
    house.serve()
    control, worker = Control(house.endpoint), house.worker()
    fault = {"route": "ping", "status": 500, "times": 2}
    assert control("POST", "faults", fault).json() == {"faults": [fault]}
    assert worker.get("ping").status_code == 500
    assert control.get("faults") == {"faults": [fault | {"times": 1}]}
    assert control("DELETE", "faults").json() == {"faults": []}
    assert worker.get("ping").status_code == 200
    forever = {"route": "job-stop", "duplicate": True, "job_ids": ["a"], "times": None}

    assert control("POST", "faults", forever).json() == {"faults": [forever]}


def test_recording(house) -> None:
    """The recording is downloaded as lines of JSON, without any key, and can be cleared."""
    house.serve()
    control, worker = Control(house.endpoint), house.worker()
    job_id = house.customer().run("in")
    worker.take()
    worker.stream(job_id, "ü")
    worker.done(job_id, output=["ü"])
    worker.ping()
    answer = control("GET", "recording")
    job, ping = map(json.loads, answer.content.splitlines())

    assert "attachment" in answer.headers["Content-Disposition"]
    assert (job["id"], job["input"], job["stream"][0]["value"]) == (job_id, "in", "ü")
    assert [one["body"] for one in job["requests"]][1] == '{"output": "ü"}'
    assert "/ping/" in ping["request"]["path"]
    assert house.endpoint.worker_key not in answer.text
    assert control("DELETE", "recording").json() == {"recording": True}
    assert control("GET", "recording").content == b""


def test_knobs(house) -> None:
    """Knobs are described, and changed while the endpoint runs."""
    house.serve(take_hold_s=1000)
    control = Control(house.endpoint)
    described = {knob["name"]: knob for knob in control.get("knobs")["knobs"]}
    assert described["take_hold_s"]["value"] == 1000.0
    assert described["take_hold_s"]["default"] == 20.0
    assert described["ttl_mode"]["accepts"] == "delete or timed_out"
    changed = control("PUT", "knobs", {"take_hold_s": 0, "late_post_status": 404}).json()
    assert changed["knobs"]["take_hold_s"] == 0

    assert house.worker().get("job-take").status_code == 204
    assert house.worker().done("unknown", output=1).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "sentence"),
    [
        ("POST", "faults", {"route": "nowhere"}, 400, "route='nowhere' is not one of"),
        ("POST", "faults", {}, 400, "route"),
        ("POST", "faults", [], 400, "the body is not an object"),
        ("POST", "recording", {"on": "yes"}, 400, '"on" is neither true nor false'),
        ("PUT", "knobs", {"rtt": 1}, 400, "did you mean rtt_ms"),
        ("PUT", "knobs", {"rtt_ms": "slow"}, 400, "rtt_ms='slow' is not a number"),
        ("POST", "workers", {"action": "start"}, 409, "no workers are started here"),
        ("GET", "nothing", None, 404, "/control/state"),
        ("POST", "state", {}, 405, "takes GET"),
    ],
)
def test_wrong(house, method: str, path: str, body: Any, status: int, sentence: str) -> None:
    """What cannot be done is refused with a sentence in JSON, and changes nothing."""
    house.serve()
    answer = Control(house.endpoint)(method, path, body)

    assert answer.status_code == status
    assert sentence in answer.json()["error"]


def test_workers() -> None:
    """Workers which are run here show their process, and are acted on by name."""
    with local_endpoint.serve(Knobs(), command=QUICK, max_workers=2) as endpoint:
        control = Control(endpoint)
        (worker,) = control.get("state")["workers"]
        assert psutil.Process(worker["pid"]).is_running()
        assert (worker["starts"], Path(worker["log"]).name) == (1, "local-1.log")
        answer = control("POST", "workers", {"action": "start"})
        assert (answer.json()["id"], answer.json()["scaling"]["max"]) == ("local-2", 2)
        wrong = control("POST", "workers", {"action": "kill", "id": "nobody"})
        assert (wrong.status_code, wrong.json()["error"]) == (400, "no worker 'nobody' is run here")
        wrong = control("POST", "workers", {"action": "kill", "id": "local-1", "gently": True})
        assert wrong.status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1234"}, 200),
        ({"Host": "[::1]:1234"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "192.0.2.1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),  # another program's page on this machine
        ({"Host": "localhost:1234", "Origin": "http://localhost:1234"}, 200),
    ],
)
def test_pages_of_others(house, headers: dict[str, str], status: int) -> None:
    """No web page but the endpoint's own can use the control API, whatever name it is under."""
    control = Control(house.serve())

    assert control("GET", "state", **headers).status_code == status
    assert control("POST", "faults", {"route": "ping"}, **headers).status_code == status
    assert bool(house.endpoint.faults.waiting()) == (status == 200)


def test_other_machines() -> None:
    """Other addresses reach the endpoint where it listens to them, but never the control API."""
    addresses = [
        address.address
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family.name == "AF_INET"
        and not ipaddress.ip_address(address.address).is_loopback
    ]
    if not addresses:
        pytest.skip("this machine has no address but loopback")
    with local_endpoint.serve(host="0.0.0.0") as endpoint:
        port = endpoint.url.split(":")[2].split("/")[0]
        for host in ({}, {"Host": f"127.0.0.1:{port}"}):
            answer = requests.get(
                f"http://{addresses[0]}:{port}/control/state", headers=host, timeout=10
            )
            assert (answer.status_code, answer.json()) == (403, {"error": "only for this machine"})
        answer = requests.get(
            f"http://{addresses[0]}:{port}/v2/local/health",
            headers={"Authorization": endpoint.api_key},
            timeout=10,
        )

    assert answer.status_code == 200


def test_from_python(house) -> None:
    """What the control API does is one line from Python."""
    endpoint = house.serve()
    endpoint.set_knobs(rtt_ms=1)
    endpoint.set_recording(False)
    endpoint.faults.add("posts", status=500, times=3)
    state = endpoint.state()

    assert (state["knobs"]["rtt_ms"], state["recording"]) == (1.0, False)
    assert state["faults"] == [{"route": "posts", "status": 500, "times": 3}]
    assert endpoint.knobs.rtt_ms == 1.0
    with pytest.raises(ValueError, match="did you mean rtt_ms"):
        endpoint.set_knobs(rtt=1)


def test_jobs_of_a_status(house) -> None:
    """The latest jobs of one status are there even if 200 others came after them."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    failed = customer.run()
    worker.take()
    worker.done(failed, error="no")
    for _ in range(200):
        house.endpoint.submit("later")
    control = Control(house.endpoint)

    assert failed not in [job["id"] for job in control.get("state")["jobs"]]
    assert [job["id"] for job in control.get("jobs?status=FAILED")["jobs"]] == [failed]
    assert control("GET", "jobs?status=LOST").status_code == 400


def test_log() -> None:
    """A worker's log is read on from where the last answer ended, also when the worker is gone."""
    with local_endpoint.serve(command=ENGINE, min_workers=1) as endpoint:
        control = Control(endpoint)
        first = wait_until(lambda: (answer := control.get("workers/local-1/log"))["end"] and answer)
        endpoint.act("kill", "local-1")
        wait_until(lambda: "local-1" not in [worker.id for worker in endpoint.workers()])
        second = control.get(f"workers/local-1/log?since={first['end']}")
        nothing = control.get(f"workers/local-1/log?since={second['end']}")
        wrong = [
            control("GET", f"workers/{path}").status_code
            for path in ("nobody/log", "..%2Flocal-1/log", "local-1/log?since=x")
        ]
    with local_endpoint.serve() as endpoint:
        wrong.append(Control(endpoint)("GET", "workers/local-1/log").status_code)
    lines = (first["text"] + second["text"]).splitlines()
    steps = [line for line in lines if line.startswith("step ")]

    assert steps == [f"step {count}" for count in range(len(steps))]
    assert (nothing["text"], nothing["start"]) == ("", second["end"])
    assert wrong == [404, 404, 400, 409]


@pytest.mark.parametrize(
    ("since", "start", "end"),
    [(0, 100_000 * 10 - MAX_SHOWN, 999_999), (999_990, 999_990, 999_999), (10**30, 10**6, 10**6)],
)
def test_log_is_bounded(tmp_path: Path, since: int, start: int, end: int) -> None:
    """However much a log holds, only its end is read, and a line that is being written waits."""
    log = tmp_path / "log"
    log.write_bytes(b"123456789\n" * 99_999 + b"12345678\n9")
    shown = log_since(log, since)

    assert (shown["start"], shown["end"]) == (start, end)
    assert len(shown["text"]) == end - start


def test_engines() -> None:
    """Each worker has a port for its metrics, and what its engine tells there is added up."""
    with local_endpoint.serve(command=ENGINE, min_workers=2) as endpoint:
        engines = Control(endpoint).get("engines")["engines"]
        wait_until(
            lambda: (
                Control(endpoint).get("engines")["engines"]["local-1"]["tokens"]
                > engines["local-1"]["tokens"]
            )
        )
    with local_endpoint.serve(command=QUICK) as endpoint:
        others = Control(endpoint).get("engines")["engines"]

    for engine in engines.values():
        del engine["tokens"]
    told = {"model": "tiny", "running": 5, "waiting": 1, "cache_use": 0.5}
    assert engines == {"local-1": told, "local-2": told}
    assert others == {}


@pytest.mark.parametrize("text", ["", "<html>", "vllm:cache 1", "python_info{a="])
def test_no_figures(text: str) -> None:
    """What is not vLLM's has no figures."""
    assert figures.read(text) is None


def test_broken_figures() -> None:
    """What only looks like vLLM's is refused."""
    with pytest.raises(ValueError, match="could not"):
        figures.read('vllm:num_requests_running{model_name="a"} many')
