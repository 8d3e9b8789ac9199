"""Load-balancing endpoints: real workers with HTTP servers of their own, asked from outside."""

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests
from workers import HTTP

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint
from waiting import wait_until

TIMEOUT_S = 60
AFFINITY = "X-Runpod-Worker-Id"


class Client:
    """Asks an endpoint with its key, each request on a connection of its own."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._pool = stack.enter_context(ThreadPoolExecutor())
        self.endpoint: LocalEndpoint

    def serve(
        self,
        *words: str,
        workers: int = 1,
        least: int | None = None,
        command: Sequence[str] = HTTP,
        **knobs: Any,
    ) -> None:
        self.endpoint = self._stack.enter_context(
            local_endpoint.serve(
                Knobs(**{"health_check_s": 0.05, **knobs}),
                command=[*command, *words],
                min_workers=workers if least is None else least,
                max_workers=workers,
                endpoint_type="load_balancer",
            )
        )

    def ask(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.endpoint.api_key}", **options.pop("headers", {})}
        url = self.endpoint.url + path
        return requests.request(method, url, headers=headers, timeout=TIMEOUT_S, **options)

    def get(self, path: str, affinity: str = "", **options: Any) -> requests.Response:
        return self.ask("GET", path, headers={AFFINITY: affinity}, **options)

    def post(self, path: str, affinity: str = "", **options: Any) -> requests.Response:
        return self.ask("POST", path, headers={AFFINITY: affinity}, **options)

    def later(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        return self._pool.submit(function, *arguments)

    def connect(self, head: str) -> socket.socket:
        """Open a connection by hand, and send a request's first line and some headers."""
        host, port = self.endpoint.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._stack.enter_context(connection)
        key = f"Authorization: Bearer {self.endpoint.api_key}"
        connection.sendall(f"{head}\r\nHost: x\r\n{key}\r\n\r\n".encode())
        return connection

    def rows(self) -> list[dict[str, Any]]:
        """Return the requests as the page shows them, the latest first."""
        return self.endpoint.state()["jobs"]

    def running(self) -> list[str]:
        return sorted(row["worker_id"] for row in self.rows() if row["status"] == "IN_PROGRESS")

    def states(self) -> dict[str, str]:
        return {worker.id: worker.state for worker in self.endpoint.workers()}

    def left(self, worker_id: str = "local-1") -> int:
        return self.get("/seen", affinity=worker_id).json()["left"]


@pytest.fixture
def client() -> Iterator[Client]:
    with ExitStack() as stack:
        yield Client(stack)


@pytest.fixture(scope="module")
def shared() -> Iterator[Client]:
    """One worker, for tests that leave it as it was."""
    with ExitStack() as stack:
        client = Client(stack)
        client.serve()
        yield client


def read_until(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data


def test_health(client: Client) -> None:
    """A worker gets requests once its health is 200, and none while it is anything else."""
    client.serve("loading", least=0, worker_wait_s=60)
    waiting = client.later(client.get, "/answer/200")
    wait_until(client.endpoint.workers)
    wait_until(lambda: client.endpoint.workers()[0].ping_s_ago is not None)
    (worker,) = client.endpoint.workers()
    assert client.states() == {"local-1": "initializing"}
    assert not waiting.done()
    ready = Path(worker.log).parent / worker.id / "ready"
    ready.touch()
    assert waiting.result(TIMEOUT_S).status_code == 200

    ready.unlink()
    wait_until(lambda: client.states() == {"local-1": "initializing"})
    ready.touch()
    wait_until(lambda: client.states() == {"local-1": "idle"})
    client.post("/health/503")
    wait_until(lambda: client.states() == {"local-1": "unhealthy"})
    client.endpoint.set_knobs(worker_wait_s=0.05)
    assert client.get("/answer/200").json() == {"error": "no workers available"}


def test_environment(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has a port of its own, and nothing that would make RunPod's SDK ask for jobs."""
    monkeypatch.delenv("PORT_HEALTH", raising=False)
    client.serve(workers=2)
    environs = [client.get("/seen", name).json()["environ"] for name in ("local-1", "local-2")]

    assert [one["RUNPOD_POD_ID"] for one in environs] == ["local-1", "local-2"]
    assert {one["WORKER_MODE"] for one in environs} == {"load_balancer"}
    assert len({one["PORT"] for one in environs}) == 2
    assert [one["PORT_HEALTH"] for one in environs] == [one["PORT"] for one in environs]
    assert not [name for one in environs for name in one if name.startswith("RUNPOD_WEBHOOK_")]


def test_passed_on_unchanged(client: Client) -> None:
    """A worker's status, headers and body reach the client as they are, and so do the request's."""
    client.serve()
    path = "/answer/307?x=%2F&y=%C3%A9"
    answer = client.get(path, allow_redirects=False)
    headers = {"X-Mine": "1", "Content-Encoding": "gzip", "Connection": "X-Hop", "X-Hop": "1"}
    body = b"\x1f\x8b not really gzip"
    echo = client.ask("POST", "/seen", headers=headers, data=body)
    seen = client.ask("GET", "/seen", headers=headers).json()["headers"]

    assert (answer.status_code, answer.text) == (307, path)
    assert answer.raw.headers.getlist("Set-Cookie") == ["a=1", "b=2"]
    assert answer.headers["Location"] == "/elsewhere"
    assert (echo.status_code, echo.headers[AFFINITY]) == (405, "local-1")
    assert (seen["X-Mine"], seen["Authorization"]) == ("1", f"Bearer {client.endpoint.api_key}")
    assert not {"X-Hop", "Accept-Language"} & seen.keys()
    assert client.get("/answer/404").status_code == 404
    client.endpoint.set_knobs(forward_authorization=False)
    assert "Authorization" not in client.get("/seen").json()["headers"]


def test_answer_comes_piece_by_piece(shared: Client) -> None:
    """Each piece of an answer is there before the worker makes the next one."""
    stream = shared.get("/events", stream=True)
    pieces = stream.iter_content(None)
    for number in range(3):
        assert next(pieces) == b'data: {"number": %d}\n\n' % number
        assert shared.running() == ["local-1"]
        shared.post("/release")
    assert list(pieces) == []

    row = next(row for row in shared.rows() if row["route"] == "GET /events")
    assert (row["status"], row["kind"], row["posts"], row["tokens"]) == ("COMPLETED", "http", 3, 3)
    posts = shared.endpoint.record(row["id"]).stream
    assert [post.value for post in posts][-1] == 'data: {"number": 2}\n\n'


def test_request_goes_piece_by_piece(shared: Client) -> None:
    """The worker has the first piece of a body before the client sends the second."""
    connection = shared.connect("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked")
    for word in (b"first", b"second"):
        connection.sendall(b"%x\r\n%s\r\n" % (len(word), word))
        assert word in read_until(connection, word)
    connection.sendall(b"0\r\n\r\n")
    read_until(connection, b"0\r\n\r\n")


@pytest.mark.parametrize("path", ["/hold", "/events"])
def test_client_leaves(shared: Client, path: str) -> None:
    """When a client leaves, the worker is told, before its answer began or in the middle of it."""
    connection = shared.connect(f"GET {path} HTTP/1.1")
    if path == "/events":
        read_until(connection, b'{"number": 0}')
    wait_until(lambda: shared.running() == ["local-1"])
    before = shared.left()
    connection.close()
    wait_until(lambda: shared.left() == before + 1)
    row = next(row for row in shared.rows() if row["route"] == f"GET {path}")

    assert row["status"] == "CANCELLED"


def test_client_leaves_after_the_last_event(client: Client) -> None:
    """A client that leaves after [DONE], as OpenAI's does, has cancelled nothing."""
    client.serve()
    with client.get("/done", stream=True) as stream:
        next(stream.iter_content(None))
    client.get("/answer/200")

    assert client.rows()[-1]["status"] == "COMPLETED"


def test_least_busy(client: Client) -> None:
    """A request goes to the worker with the fewest running ones."""
    client.serve(workers=2)
    held = []
    for count in range(1, 5):
        held.append(client.later(client.get, "/hold"))
        wait_until(lambda count=count: len(client.running()) == count)
    assert client.running() == ["local-1", "local-1", "local-2", "local-2"]
    assert client.endpoint.state()["health"]["workers"]["running"] == 2
    for worker in ("local-1", "local-2") * 2:
        client.post("/release", worker)
    answers = [one.result(TIMEOUT_S) for one in held]

    assert sorted(answer.headers[AFFINITY] for answer in answers) == sorted(
        answer.text for answer in answers
    )


def test_affinity(client: Client) -> None:
    """A request goes to the worker it names, busy or not; only a strict one to no other."""
    client.serve(workers=2, strict_wait_s=0.05)
    held = client.later(client.get, "/hold", "local-2")
    wait_until(lambda: client.running() == ["local-2"])

    def at(affinity: str) -> str:
        return client.get("/answer/200", affinity).headers[AFFINITY]

    assert [at("local-2"), at("strict local-2"), at("gone"), at("")] == [
        "local-2",
        "local-2",
        "local-1",
        "local-1",
    ]
    for mode in ("strict", "strict-resume"):
        refused = client.get("/answer/200", f"{mode} gone")
        assert (refused.status_code, refused.json()) == (404, {"error": "affinity_worker_gone"})
    client.post("/release", "local-2")
    held.result(TIMEOUT_S)
    client.post("/health/500", "local-2")
    wait_until(lambda: client.states()["local-2"] == "unhealthy")
    late = client.get("/answer/200", "strict local-2")
    assert (late.status_code, late.json()) == (400, {"error": "worker_timeout"})
    assert at("local-2") == "local-1"


def test_waiting_ends_early(client: Client) -> None:
    """A request that waits for a worker ends when its client leaves, or this one worker is gone."""
    client.serve("loading", least=0)
    with client.connect("GET /answer/200 HTTP/1.1"):
        wait_until(client.endpoint.workers)
        assert client.rows()[0]["status"] == "IN_QUEUE"
    wait_until(lambda: client.rows()[0]["status"] == "CANCELLED")
    waiting = client.later(client.get, "/answer/200", "strict local-1")
    wait_until(lambda: client.rows()[0]["status"] == "IN_QUEUE")
    client.endpoint.act("kill", "local-1")

    assert waiting.result(TIMEOUT_S).json() == {"error": "affinity_worker_gone"}


def test_dead_worker(client: Client) -> None:
    """A dead worker's requests fail with 502, begun ones are cut, and another takes its place."""
    client.serve()
    begun = client.get("/events", stream=True)
    pieces = begun.iter_content(None)
    next(pieces)
    held = client.later(client.get, "/hold")
    wait_until(lambda: len(client.running()) == 2)

    assert client.post("/exit").status_code == 502
    assert held.result(TIMEOUT_S).status_code == 502
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        list(pieces)
    wait_until(lambda: client.states() == {"local-2": "idle"})
    assert client.get("/answer/200").headers[AFFINITY] == "local-2"
    assert client.endpoint.state()["workers"][0]["starts"] == 2
    assert client.endpoint.state()["health"]["jobs"]["retried"] == 0


def test_closed_port(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is healthy on one port and deaf on the other costs its requests a 502."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    monkeypatch.setenv("PORT_HEALTH", port)
    monkeypatch.setenv("HEALTH_CHECK_PATH", "/answer/200")
    script = f"PORT={port} exec {shlex.join(HTTP)}"
    client.serve(command=["sh", "-c", script])

    assert client.states() == {"local-1": "idle"}
    refused = client.get("/answer/200")
    assert (refused.status_code, refused.headers[AFFINITY]) == (502, "local-1")


def test_no_worker(client: Client) -> None:
    """A request that finds no ready worker in time is answered 400, as RunPod says."""
    client.serve("loading", least=0, worker_wait_s=0.2)
    refused = client.get("/answer/200")

    assert (refused.status_code, refused.json()) == (400, {"error": "no workers available"})
    assert AFFINITY not in refused.headers
    assert client.rows()[0]["error"] == "no workers available"
    assert list(client.states()) == ["local-1"]  # the request has started it


def test_slow_worker(client: Client) -> None:
    """An answer that takes too long is 524, or cut if it has begun; the worker is told."""
    client.serve(request_timeout_s=0.5)
    assert client.get("/hold").status_code == 524
    answers = (client.get("/events", stream=True) for _ in range(100))  # it may not begin in time
    begun = next(answer for answer in answers if answer.status_code == 200)
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        list(begun.iter_content(None))
    client.endpoint.set_knobs(request_timeout_s=60)
    wait_until(lambda: client.left() >= 2)

    assert client.rows()[-1]["error"] == "the worker did not answer in time"


def test_scaling(client: Client) -> None:
    """Running requests start workers, so many for each; idle workers are stopped."""
    client.serve(workers=3, least=0, scaler_value=2, idle_timeout_s=0.2)
    held = [client.later(client.get, "/hold") for _ in range(5)]
    wait_until(lambda: len(client.states()) == 3)
    wait_until(lambda: len(client.running()) == 5)
    for worker in client.running():
        client.post("/release", f"strict {worker}")

    assert [one.result(TIMEOUT_S).status_code for one in held] == [200] * 5
    wait_until(lambda: client.states() == {})


def test_too_large(client: Client) -> None:
    """Neither a request nor an answer may be larger than the limit, announced or not."""
    client.serve(max_body_http=1000)

    assert client.post("/echo", data=b"x" * 1000).content == b"x" * 1000
    assert client.post("/echo", data=b"x" * 1001).status_code == 413
    assert client.post("/read", data=iter([b"x" * 600] * 2)).status_code == 413
    assert client.post("/read", data=iter([b"x" * 500] * 2)).text == "1000"
    assert client.get("/large/1000").content == b"x" * 1000
    assert client.get("/large/1001?declared").status_code == 502
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        client.get("/large/1001")


def test_default_limit() -> None:
    """The limit is the documented one."""
    assert Knobs().max_body_http == 30_000_000


def test_key(shared: Client) -> None:
    """Without the endpoint's key nothing reaches a worker, whatever the address looks like."""
    before = shared.rows()
    for path in ("/answer/200", "/a/b/ping/c", "/v2/local/run", "/page"):
        for key in ("", "wrong", shared.endpoint.worker_key):
            answer = shared.ask("GET", path, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 401

    assert len(shared.rows()) == len(before)
    assert shared.get("/answer/200").status_code == 200


def test_no_jobs(shared: Client) -> None:
    """What belongs to queues is not there, with a sentence that says where to go."""
    before = shared.rows()
    for path in ("run", "runsync", "health", "openai/v1/models"):
        answer = shared.post(f"/v2/local/{path}", json={"input": {}})
        assert answer.status_code == 404
        assert shared.endpoint.url in json.dumps(answer.json())
    assert "a load-balancing endpoint has no jobs" in shared.post("/v2/local/run").text
    assert len(shared.rows()) == len(before)


def test_documented(client: Client, tmp_path: Path) -> None:
    """The server in the documentation is a worker, and the curl below it gets its answer."""
    text = Path(__file__).parents[2].joinpath("docs", "local-endpoint.md").read_text()
    (server,) = re.findall(r"```python\n(import os\n.*?)```", text, re.DOTALL)
    (curl,) = re.findall(r"^curl .*/double.*$", text, re.MULTILINE)
    (tmp_path / "my_server.py").write_text(server)
    client.serve(command=[sys.executable, str(tmp_path / "my_server.py")])
    order = shlex.split(curl.replace("http://127.0.0.1:8000", client.endpoint.url))
    answer = subprocess.run(order, capture_output=True, timeout=TIMEOUT_S, check=True)

    assert answer.stdout == b"42"


def test_page_and_control_stay(shared: Client) -> None:
    """The page and the control API are the endpoint's own, and nothing under them is forwarded."""
    before = shared.rows()
    about = shared.endpoint.state()["endpoint"]

    assert (about["type"], about["url"]) == ("load_balancer", shared.endpoint.url)
    assert about["openai_url"] == f"{shared.endpoint.url}/v1"
    assert shared.endpoint.state()["scaling"]["scaler"] == "REQUEST_COUNT"
    assert "<!doctype html>" in shared.get("/").text
    assert [shared.post(path).status_code for path in ("/", "/control/x", "/page/x")] == [
        405,
        404,
        405,
    ]
    assert len(shared.rows()) == len(before)
