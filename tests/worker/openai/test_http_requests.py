"""The HTTP door: a real uvicorn and real clients before the app that stands in for vLLM's."""

import asyncio
import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from an_app import ANSWER, CHAT, MODEL, OURS, REFUSED, RULES, event, make_app, make_engine

from worker.batching import Outbox
from worker.call import PieceByPiece
from worker.door import Door
from worker.errors import RequestError
from worker.facts import Limits
from worker.native.call import NativeCall
from worker.openai.call import RouteCall
from worker.openai.routes import Routes
from worker.record import Usage
from worker.request import NativeRequest, Request

pytestmark = pytest.mark.timeout(120)

HELLO = {"model": "m", "messages": []}


class Native(PieceByPiece):
    """A native answer of three pieces; the prompt says how it ends."""

    def __init__(self, request: NativeRequest, seen: list[str]) -> None:
        self.request, self.seen = request, seen
        self.usage = Usage()

    frames = NativeCall.frames

    @property
    def asked(self) -> NativeRequest:
        return self.request

    async def answer(self, outbox: Outbox[Any]) -> None:
        for piece in "abc":
            outbox.put(piece, 1, 1)
        if self.request.prompts == ("fail",):
            raise RequestError("It failed.", param="prompt")
        if self.request.prompts == ("wait",):
            self.seen.append("started")
            try:
                await asyncio.Event().wait()
            finally:
                self.seen.append("stopped")

    def join(self, items: list[Any]) -> Any:
        return {"pieces": items}

    told = NativeCall.told


@contextmanager
def served(*, key: str = "", seen: list[str] | None = None) -> Iterator[httpx.Client]:
    """A client of a door behind a real uvicorn, in this process."""
    seen = [] if seen is None else seen
    app = make_app(seen)
    engine = make_engine(app)
    routes = Routes(app, OURS)

    def dialect(request: Request) -> Any:
        if isinstance(request, NativeRequest):
            return Native(request, seen)
        return RouteCall(
            request, engine, routes, *RULES, model=MODEL, raw=True, errors_as_output=False
        )

    door = Door(dialect, Limits(max_input_depth=20), api_key=key, max_body_bytes=1_000_000)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(door, lifespan="off", log_config=None, ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with served() as one:
        yield one


def test_a_stream_is_the_apps_own(client: httpx.Client) -> None:
    """The bytes of a stream are those that vLLM's server would have sent."""
    reply = client.post(CHAT, json=HELLO | {"stream": True})

    assert 200 == reply.status_code
    assert "text/event-stream" in reply.headers["content-type"]
    assert b"".join(ANSWER) == reply.content


def test_a_reply_is_the_apps_own(client: httpx.Client) -> None:
    """A reply comes as it is, the model's name and the request's id added where missing."""
    reply = client.post(CHAT, json={"messages": []}, headers={"x-request-id": "mine"})
    told = client.post("/v1/raw?a=b%20c", json={}, headers={"x-request-id": "mine"}).json()

    assert {"id": "c", "model": MODEL, "extra": {"messages": []}} == reply.json()
    assert "mine" == reply.headers["x-request-id"]
    assert ("POST", "/v1/raw", "a=b%20c", "mine") == (
        *(told[name] for name in ("method", "path", "query", "id")),
    )
    assert client.get("/v1/models").headers["x-request-id"]


def test_routes_are_found_as_for_jobs(client: httpx.Client) -> None:
    """The allow-list, the methods and the path with or without /v1 are those of jobs."""
    assert 200 == client.get("/models").status_code
    closed = client.post("/pause", json={})
    assert (404, True) == (closed.status_code, "EXTRA_ROUTES=/pause" in closed.text)
    assert 404 == client.post("/v1/chat/complations", json={}).status_code
    assert 405 == client.get(CHAT).status_code


def test_a_form_goes_through(client: httpx.Client) -> None:
    """A multipart body, such as a recording, arrives as the client wrote it."""
    told = client.post(
        "/v1/audio/transcriptions",
        data={"model": "whisper", "language": "de"},
        files={"file": ("a.wav", bytes(range(256)), "audio/wav")},
    ).json()

    assert ("whisper", "de", "a.wav") == (told["model"], told["language"], told["filename"])
    assert bytes(range(256)).decode("latin-1") == told["content"]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (CHAT, b"{", 400, "no JSON"),
        (CHAT, b"", 400, "takes a JSON object as its body"),
        (CHAT, b"[1]", 400, "takes a JSON object as its body"),
        (CHAT, b"[" * 50 + b"]" * 50, 400, "MAX_INPUT_DEPTH"),
        (CHAT, b'"' + b"x" * 1_000_001 + b'"', 413, "MAX_BODY_MB"),
        ("/native", b"{}", 400, "prompt"),
        ("/native", b'{"prompt": "fail"}', 400, "It failed."),
    ],
)
def test_bad_requests(
    client: httpx.Client, path: str, body: bytes, status: int, words: str
) -> None:
    """What is wrong has the status that says so, and a sentence."""
    reply = client.post(path, content=body, headers={"content-type": "application/json"})

    assert status == reply.status_code
    assert words in reply.json()["error"]["message"]
    assert status == reply.json()["error"]["code"]


def test_an_error_of_the_apps(client: httpx.Client) -> None:
    """The app's own error keeps its status, and one within a stream ends it in the route's form."""
    refused = {"error": REFUSED}
    reply = client.post(
        "/v1/reply",
        json={
            "status": 404,
            "type": "application/json",
            "base64": base64.b64encode(json.dumps(refused).encode()).decode(),
        },
    )
    stream = client.post("/v1/fails", json=HELLO | {"stream": True})
    broken = client.post("/v1/breaks", json=HELLO | {"stream": True})

    assert (404, refused) == (reply.status_code, reply.json())
    assert b"".join(ANSWER[:2]) + event(refused) + event("[DONE]") == stream.content
    assert broken.content.startswith(b"".join(ANSWER[:2]))
    assert broken.content.endswith(event("[DONE]"))
    assert b'"error"' in broken.content
    unforeseen = client.post("/v1/raises/unhandled", json={})
    assert (500, False) == (unforeseen.status_code, "foresaw" in unforeseen.text)


def test_anthropics_errors(client: httpx.Client) -> None:
    """Anthropic's routes tell an error as their clients read it."""
    reply = client.post("/v1/messages", json={})

    assert ("error", "not_found_error") == (reply.json()["type"], reply.json()["error"]["type"])


def test_native(client: httpx.Client) -> None:
    """The native dialect is one object, or one event for each piece."""
    plain = client.post("/native", json={"prompt": "x"})
    stream = client.post("/native", json={"prompt": "x", "stream": True})
    failed = client.post("/native", json={"prompt": "fail", "stream": True})

    assert {"pieces": ["a", "b", "c"]} == plain.json()
    events = [event(json.dumps({"pieces": [piece]}, separators=(",", ":"))) for piece in "abc"]
    assert b"".join([*events, event("[DONE]")]) == stream.content
    assert failed.content.startswith(events[0])
    assert b"It failed." in failed.content


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/waits", HELLO),
        ("/v1/waits/for-messages", HELLO),
        ("/v1/waits/streaming", HELLO | {"stream": True}),
        ("/native", {"prompt": "wait", "stream": True}),
        ("/native", {"prompt": "wait"}),
    ],
)
def test_a_client_that_leaves(path: str, body: dict[str, Any]) -> None:
    """A client that closes its connection stops its answer."""
    seen: list[str] = []
    with served(seen=seen) as client:
        leaving = client.stream("POST", path, json=body, timeout=3)
        with contextlib.suppress(httpx.TimeoutException), leaving as one:
            next(one.iter_raw())
        until = time.monotonic() + 60
        while "stopped" not in seen and time.monotonic() < until:
            time.sleep(0.05)

    assert "stopped" in seen


def test_the_key() -> None:
    """With a key every request needs it, and hears of it what clients understand."""
    with served(key="sesame") as client:
        for header in ({}, {"authorization": "Bearer open"}, {"authorization": "Basic sesame"}):
            reply = client.get("/v1/models", headers=header)
            assert (401, "Bearer") == (reply.status_code, reply.headers["www-authenticate"])
            assert "AuthenticationError" == reply.json()["error"]["type"]
        right = {"authorization": "bearer sesame"}
        assert 200 == client.get("/v1/models", headers=right).status_code
