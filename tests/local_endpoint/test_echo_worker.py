"""A worker made with the real SDK, ten lines long, against the endpoint."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
import runpod
from runpod.endpoint import Endpoint as Client

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint

WORKER = Path(__file__).with_name("echo_worker.py")
SENTENCE = [{"role": "user", "content": "hello big world"}]


@contextmanager
def running_worker(
    endpoint: LocalEndpoint, worker_id: str, home: Path
) -> Iterator[subprocess.Popen]:
    """Run the echo worker as a process, and end it with its heartbeat process."""
    environ = {**os.environ, **endpoint.worker_environ(worker_id, home)}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, WORKER], env=environ, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, 9)
        process.wait(timeout=5)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEndpoint]:
    home = tmp_path_factory.mktemp("home")
    with local_endpoint.serve(Knobs()) as endpoint, running_worker(endpoint, "echo", home):
        endpoint.wait_ready(timeout_s=30)
        yield endpoint


@pytest.fixture
def client(endpoint: LocalEndpoint, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Give the SDK's own client."""
    monkeypatch.setattr(runpod, "endpoint_url_base", endpoint.url.rsplit("/", 1)[0])
    return Client(endpoint.id, api_key=endpoint.api_key)


@pytest.fixture
def chat(endpoint: LocalEndpoint) -> Iterator[openai.OpenAI]:
    """Give the official OpenAI client."""
    with openai.OpenAI(
        base_url=endpoint.openai_url, api_key=endpoint.api_key, timeout=15, max_retries=0
    ) as client:
        yield client


def test_run_and_stream(endpoint: LocalEndpoint, client: Client) -> None:
    """What a generator yields arrives in order, once, and its aggregate is the output."""
    yields = ["a", "ü", {"b": [1, None]}, [], ""]
    job = client.run({"input": {"yields": yields}})

    assert list(job.stream()) == yields
    assert (job.status(), job.output()) == ("COMPLETED", yields)
    record = endpoint.record(job.job_id)
    assert [post.value for post in record.stream] == yields


def test_runsync(client: Client) -> None:
    """A synchronous run gives the aggregate."""
    assert client.run_sync({"input": {"yields": [1, 2]}}, timeout=15) == [1, 2]


def test_failed(endpoint: LocalEndpoint, client: Client) -> None:
    """A handler that raises ends its job as FAILED, with a text that names the reason."""
    job = client.run({"input": {"yields": [1], "raise": "out of echoes"}})
    endpoint.wait_for_end(job.job_id)

    assert job.status() == "FAILED"
    assert "out of echoes" in job._fetch_job()["error"]


def test_cancel(endpoint: LocalEndpoint, client: Client) -> None:
    """A cancelled job stops in the worker: no more posts, and the heartbeat forgets it."""
    job = client.run({"input": {"yields": list(range(1000)), "pause_s": 0.02}})
    wait_for(lambda: endpoint.record(job.job_id).stream)
    job.cancel()
    assert job.status() == "CANCELLED"
    wait_for(lambda: endpoint.record(job.job_id).stops)
    wait_for(lambda: not endpoint.workers()[0].stops_pending)
    late = len(endpoint.record(job.job_id).late)
    time.sleep(0.2)

    assert len(endpoint.record(job.job_id).late) == late
    assert endpoint.workers()[0].ping_jobs == ()
    assert client.run_sync({"input": {"yields": [1]}}, timeout=15) == [1]


def wait_for(condition, timeout_s: float = 10) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_slow_posts_hold_the_generator(endpoint: LocalEndpoint, client: Client) -> None:
    """A slow answer to a post delays the next yield: that is the platform's back-pressure."""
    endpoint.faults.add(route="job-stream", delay_ms=100, times=3)
    job = client.run({"input": {"yields": ["a", "b", "c"]}})
    times = [post.at_s for post in endpoint.wait_for_end(job.job_id).stream]

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


def test_health(client: Client) -> None:
    """The SDK's client can read the health."""
    assert client.health()["workers"]["ready"] == 1
