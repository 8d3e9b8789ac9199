"""Real, unchanged clients judge the endpoint with our worker behind it.

Each program of programs/ is what a user writes; it prints an object, which is looked at here.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from local_endpoint import Status
from served import Served

pytestmark = pytest.mark.timeout(600)

Said = Callable[[str], dict[str, Any]]  # a program to what it printed
TOKENS = 30  # the max_tokens of every program
CHATS = [
    "openai_sync.py",
    "openai_async.py",
    "openai_node.mjs",
    "ai_sdk.mjs",
    "anthropic_messages.py",
    "langchain_chat.py",
    "litellm_chat.py",
]
JOBS = ["runpod_client.py", "runpod_sdk.mjs"]


@pytest.mark.parametrize("program", CHATS)
def test_chat(at_each_door: Said, answer: Callable[[str], str], program: str) -> None:
    """A chat written for any client works with URL and key changed, whole and as a stream."""
    chat = at_each_door(program)

    assert answer(chat["model"]) == chat["whole"]
    assert answer(chat["model"]) == "".join(chat["pieces"])
    assert len(chat["pieces"]) > 1
    assert (TOKENS, TOKENS) == (chat["whole_tokens"], chat["stream_tokens"])


@pytest.mark.parametrize("program", CHATS)
def test_a_wrong_model(at_each_door: Said, program: str) -> None:
    """A wrong model is an exception of the client's own, with vLLM's sentence, stream or not."""
    chat = at_each_door(program)

    assert "The model `nope` does not exist" in chat["error"]
    assert "The model `nope` does not exist" in chat["stream_error"]


@pytest.mark.parametrize("program", CHATS)
def test_a_wrong_key(at_each_door: Said, program: str) -> None:
    """A wrong key is what the client knows as an authentication error."""
    assert 401 == at_each_door(program)["unauthorized"]


def test_leaving_a_stream_stops_its_job(said: Said, smollm2: Served) -> None:
    """Breaking out of a stream of OpenAI's Node client ends the generation behind it."""
    job_id = said("openai_node.mjs")["left"].removeprefix("chatcmpl-")

    assert_stopped(smollm2, job_id)


@pytest.mark.parametrize("program", JOBS)
def test_jobs(said: Said, answer: Callable[[str], str], program: str) -> None:
    """RunPod's clients give a job's output, waiting for it in one call or in several."""
    jobs = said(program)
    choices = [{"tokens": [answer(jobs["model"])], "finish_reason": "length"}]
    output = [{"choices": choices, "usage": jobs["run_sync"][0]["usage"]}]

    assert output == jobs["run_sync"]
    assert output == jobs["run"]
    assert TOKENS == output[0]["usage"]["output"]
    assert "COMPLETED" == jobs["status"]


@pytest.mark.parametrize("program", JOBS)
def test_every_chunk_once(
    said: Said, smollm2: Served, answer: Callable[[str], str], program: str
) -> None:
    """The stream loop of RunPod's clients, tight or sleeping, gets every chunk once and stops."""
    jobs = said(program)
    record = smollm2.endpoint.record(jobs["streamed"])
    tokens = [token for chunk in jobs["chunks"] for token in chunk["choices"][0]["tokens"]]

    assert [post.value for post in record.stream] == jobs["chunks"]
    assert len(jobs["chunks"]) > 1
    assert answer(jobs["model"]) == "".join(tokens)


@pytest.mark.parametrize("program", JOBS)
def test_cancel(said: Said, smollm2: Served, program: str) -> None:
    """Cancel from RunPod's clients stops the job, at the endpoint and in the worker."""
    jobs = said(program)
    job_id = jobs["cancelled"]

    assert {"id": job_id, "status": "CANCELLED"} == jobs["cancel"]
    assert "CANCELLED" == jobs["cancelled_status"]
    assert_stopped(smollm2, job_id)


def test_a_failed_job_in_node(said: Said) -> None:
    """The error of a failed job is text in RunPod's Node client, and JSON with the sentence."""
    jobs = said("runpod_sdk.mjs")
    error = json.loads(jobs["failed_error"])["error"]

    assert "FAILED" == jobs["failed_status"]
    assert 404 == error["code"]
    assert "The model 'nope' does not exist" in error["message"]


def test_a_failed_job_in_python(said: Said) -> None:
    """A failed job is FAILED in RunPod's Python client, which has no place for its error."""
    jobs = said("runpod_client.py")

    assert ("FAILED", None) == (jobs["failed_status"], jobs["failed_output"])


@pytest.mark.parametrize("program", JOBS)
def test_health(said: Said, program: str) -> None:
    """Health counts one worker, and jobs that ended well and badly."""
    health = said(program)["health"]

    assert 1 == health["workers"]["idle"] + health["workers"]["running"]
    assert health["jobs"]["completed"] >= 3
    assert health["jobs"]["failed"] >= 1


def test_a_wrong_key_of_runpods_clients(said: Said) -> None:
    """A wrong key is the 401 that RunPod's clients look for."""
    assert "401 Unauthorized" in said("runpod_client.py")["unauthorized"]
    assert 401 == said("runpod_sdk.mjs")["unauthorized"]


def assert_stopped(served: Served, job_id: str) -> None:
    """See that a job is CANCELLED, and that its worker heard of it and ended it unfinished."""
    wait_until_idle(served)
    record = served.endpoint.record(job_id)
    # Pieces of a stream may be late; they are text, and results are objects.
    results = [post for post in (*record.done, *record.late) if not isinstance(post.value, str)]

    assert Status.CANCELLED == record.status
    assert record.stops
    assert [] == results


def wait_until_idle(served: Served, timeout_s: float = 20.0) -> None:
    """Wait until no request is in the engine, so that what a job had to post is posted."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        metrics = served.run({"route": "/metrics"}).done[-1].value["output"][0]
        counts = re.findall(r"^vllm:num_requests_running\{.*\} ([\d.]+)$", metrics, re.MULTILINE)
        if counts == ["0.0"]:
            return
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
