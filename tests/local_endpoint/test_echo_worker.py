"""A worker made with the real SDK, ten lines long, against the endpoint."""

import itertools
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import openai
import pytest
import requests
import runpod
from runpod.endpoint import Endpoint as Client
from workers import ECHO

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint
from waiting import wait_until

SENTENCE = [{"role": "user", "content": "hello big world"}]


@pytest.fixture
def client(echo: LocalEndpoint, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Return the SDK's own client."""
    monkeypatch.setattr(runpod, "endpoint_url_base", echo.url.rsplit("/", 1)[0])
    return Client(echo.id, api_key=echo.api_key)


@pytest.fixture
def chat(echo: LocalEndpoint) -> Iterator[openai.OpenAI]:
    """Return the official OpenAI client."""
    with openai.OpenAI(
        base_url=echo.openai_url, api_key=echo.api_key, timeout=15, max_retries=0
    ) as client:
        yield client


def test_run_and_stream(echo: LocalEndpoint, client: Client) -> None:
    """What a generator yields arrives in order, once, and its aggregate is the output."""
    yields = ["a", "ü", {"b": [1, None]}, [], ""]
    job = client.run({"input": {"yields": yields}})

    assert list(job.stream()) == yields
    assert (job.status(), job.output()) == ("COMPLETED", yields)
    record = echo.record(job.job_id)
    assert [post.value for post in record.stream] == yields


def test_run_and_status(echo: LocalEndpoint, client: Client) -> None:
    """A generator's job ends without anyone reading its stream, and its webhook is called once."""
    calls: list[dict] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            calls.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        server.timeout = 0.5
        echo.set_knobs(webhook_retry_s=0.01)  # a second call would come while this looks for it
        job_input = {"yields": ["a", {"b": 1}], "pause_s": 0.01}
        hook = f"http://127.0.0.1:{server.server_port}/"
        job = client.run({"input": job_input, "webhook": hook})
        wait_until(lambda: job.status() == "COMPLETED")
        status = job._fetch_job()
        for _ in range(2):
            server.handle_request()
    echo.set_knobs(webhook_retry_s=Knobs().webhook_retry_s)

    assert status["output"] == ["a", {"b": 1}]
    assert calls == [{**status, "input": job_input, "webhook": hook}]


@pytest.mark.parametrize(
    ("depth", "status", "error"),
    [(900, "COMPLETED", None), (3000, "FAILED", "executionTimeout exceeded")],
)
def test_deep_job(echo: LocalEndpoint, depth: int, status: str, error: str | None) -> None:
    """The SDK reads a job of the default depth; it loses one much deeper, which ends in time."""
    deep = "[" * (depth - 2) + "]" * (depth - 2)
    body = f'{{"input": {{"deep": {deep}}}, "policy": {{"executionTimeout": 700}}}}'
    echo.set_knobs(max_depth=depth)
    try:
        headers = {"Authorization": echo.api_key}
        answer = requests.post(f"{echo.url}/run", data=body, headers=headers, timeout=15)
    finally:
        echo.set_knobs(max_depth=Knobs().max_depth)
    echo.wait_for_end(answer.json()["id"])
    url = f"{echo.url}/status/{answer.json()['id']}"
    ended = requests.get(url, headers=headers, timeout=15).json()

    assert (ended["status"], ended.get("error")) == (status, error)


def test_runsync(client: Client) -> None:
    """A synchronous run gives the aggregate."""
    assert client.run_sync({"input": {"yields": [1, 2]}}, timeout=15) == [1, 2]


def test_failed(echo: LocalEndpoint, client: Client) -> None:
    """A handler that raises ends its job as FAILED, with a text that names the reason."""
    job = client.run({"input": {"yields": [1], "raise": "out of echoes"}})
    echo.wait_for_end(job.job_id)

    assert job.status() == "FAILED"
    assert "out of echoes" in job._fetch_job()["error"]


def test_cancel(echo: LocalEndpoint, client: Client) -> None:
    """A cancelled job stops in the worker: no more posts, and the heartbeat forgets it."""
    job = client.run({"input": {"yields": list(range(1000)), "pause_s": 0.02}})
    wait_until(lambda: echo.record(job.job_id).stream)
    job.cancel()
    assert job.status() == "CANCELLED"
    wait_until(lambda: echo.record(job.job_id).stops)
    wait_until(lambda: not any(worker.stops_pending for worker in echo.workers()))
    late = len(echo.record(job.job_id).late)
    assert client.run_sync({"input": {"yields": [1]}}, timeout=15) == [1]

    assert len(echo.record(job.job_id).late) == late
    wait_until(lambda: not any(worker.ping_jobs for worker in echo.workers()))


def test_slow_posts_hold_the_generator(echo: LocalEndpoint, client: Client) -> None:
    """A slow answer to a post delays the next yield: that is the platform's back-pressure."""
    echo.faults.add(route="job-stream", delay_ms=100, times=3)
    job = client.run({"input": {"yields": ["a", "b", "c"]}})
    times = [post.at_s for post in echo.wait_for_end(job.job_id).stream]

    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.1


def test_openai(chat: openai.OpenAI) -> None:
    """The official client gets models, a whole answer and a streamed one."""
    assert [model.id for model in chat.models.list()] == ["echo"]
    whole = chat.chat.completions.create(model="echo", messages=SENTENCE)
    stream = chat.chat.completions.create(model="echo", messages=SENTENCE, stream=True)

    assert whole.choices[0].message.content == "hello big world"
    assert [part.choices[0].delta.content for part in stream] == ["hello ", "big ", "world "]


@pytest.mark.parametrize("stream", [False, True])
def test_openai_failed(chat: openai.OpenAI, stream: bool) -> None:
    """The official client raises with the message which the worker gave its failed job."""
    fail = [{"role": "user", "content": "fail"}]
    with pytest.raises(openai.InternalServerError, match="as you wish"):
        chat.chat.completions.create(model="echo", messages=fail, stream=stream)


@pytest.mark.skipif(
    not hasattr(runpod.serverless, "register_prestart_hook"), reason="the SDK 1.12 has no such hook"
)
def test_failed_start() -> None:
    """A worker whose start fails gives the reason to the jobs it takes, and is then replaced."""
    command = ["env", "ECHO_NO_START=no such model", "ECHO_CONCURRENCY=1", *ECHO]
    with local_endpoint.serve(command=command, min_workers=0, max_workers=1) as endpoint:
        first, second = (endpoint.submit({"yields": ["a"]}) for _ in range(2))
        record = endpoint.wait_for_end(first)
        wait_until(
            lambda: (
                any(worker.starts >= 2 for worker in endpoint.workers())
                or endpoint.record(second).done
            )
        )
        # On a busy machine the first worker may have taken both.
        done = [*record.done, *endpoint.record(second).done]
    errors = [json.loads(post.value["error"]) for post in done]

    assert {(error["event"], error["error_message"]) for error in errors} == {
        ("prestart_failed", "no such model")
    }
    assert record.status == "FAILED"


def test_health(client: Client) -> None:
    """The SDK's client can read the health."""
    assert client.health()["workers"]["ready"] == 2
