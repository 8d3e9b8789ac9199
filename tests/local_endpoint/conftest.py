"""An endpoint, and both kinds of clients for it, each with a time limit on every request."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import requests
from workers import ECHO

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint

TIMEOUT_S = 15


class Customer:
    """Calls the public side."""

    def __init__(self, endpoint: LocalEndpoint) -> None:
        self.url = endpoint.url
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {endpoint.api_key}"

    def post(self, path: str, body: Any = None, **options: Any) -> requests.Response:
        return self.session.post(f"{self.url}/{path}", json=body, timeout=TIMEOUT_S, **options)

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.session.get(f"{self.url}/{path}", timeout=TIMEOUT_S, **options)

    def run(self, job_input: Any = "question", **message: Any) -> str:
        answer = self.post("run", {"input": job_input, **message})
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    def status(self, job_id: str) -> dict[str, Any]:
        return self.get(f"status/{job_id}").json()

    def stream(self, job_id: str, wait_ms: int = 1000) -> dict[str, Any]:
        return self.get(f"stream/{job_id}?wait={wait_ms}").json()


class WorkerDouble:
    """Calls the worker side as the SDK does, one step at a time."""

    def __init__(self, endpoint: LocalEndpoint, worker_id: str) -> None:
        self.endpoint = endpoint
        self.id = worker_id
        self.session = requests.Session()
        self.session.headers["Authorization"] = endpoint.worker_key

    def get(self, route: str, query: str = "") -> requests.Response:
        url = f"{self.endpoint.url}/{route}/{self.id}?gpu=LOCAL{query}"
        return self.session.get(url, timeout=TIMEOUT_S)

    def post(self, route: str, job_id: str, body: bytes) -> requests.Response:
        url = f"{self.endpoint.url}/{route}/{self.id}/{job_id}?gpu=LOCAL&isStream=false"
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.session.post(url, data=body, headers=headers, timeout=TIMEOUT_S)

    def take(self) -> dict[str, Any]:
        answer = self.get("job-take")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, job_id: str, value: Any) -> requests.Response:
        return self.post("job-stream", job_id, _json({"output": value}))

    def done(self, job_id: str, **message: Any) -> requests.Response:
        return self.post("job-done", job_id, _json(message))

    def ping(self, *job_ids: str) -> None:
        listed = f"&job_id={','.join(job_ids)}" if job_ids else ""
        assert self.get("ping", f"{listed}&runpod_version=1.12.0").status_code == 200


def _json(value: Any) -> bytes:
    return requests.models.complexjson.dumps(value, ensure_ascii=False).encode()


class House:
    """Makes endpoints and clients, and closes them at the end of the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._pool = stack.enter_context(ThreadPoolExecutor())
        self.endpoint: LocalEndpoint

    def serve(self, **knobs: Any) -> LocalEndpoint:
        short = {"take_hold_s": 5.0, "stop_hold_s": 5.0, "stream_hold_s": 0.3}
        self.endpoint = self._stack.enter_context(local_endpoint.serve(Knobs(**short | knobs)))
        return self.endpoint

    def customer(self) -> Customer:
        customer = Customer(self.endpoint)
        self._stack.enter_context(customer.session)
        return customer

    def worker(self, worker_id: str = "w1") -> WorkerDouble:
        worker = WorkerDouble(self.endpoint, worker_id)
        self._stack.enter_context(worker.session)
        return worker

    def later(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run something that waits, while the test goes on."""
        return self._pool.submit(function, *arguments)

    def raw_request(self, line: str, key: str, body: str = "") -> socket.socket:
        """Open a connection by hand and send a request, such as `GET /path`."""
        host, port = self.endpoint.url.split("/")[2].split(":")
        connection = self._stack.enter_context(socket.create_connection((host, int(port))))
        head = f"Host: x\r\nAuthorization: {key}\r\nContent-Length: {len(body)}"
        connection.sendall(f"{line} HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
        return connection


@pytest.fixture(scope="session")
def echo() -> Iterator[LocalEndpoint]:
    """Two workers made with the real SDK, for tests that leave them as they were."""
    with local_endpoint.serve(command=ECHO, min_workers=2) as endpoint:
        yield endpoint


@pytest.fixture
def house() -> Iterator[House]:
    with ExitStack() as stack:
        yield House(stack)
