"""Hugging Face's and Ollama's dialects: the same at both doors, and the tokens of the others."""

import json
from typing import Any

import pytest
import requests

from local_endpoint import Record, Status
from served import DOOR_KEY, Door, Served

pytestmark = pytest.mark.timeout(300)

HELLO = [{"role": "user", "content": "Hello"}]
LENGTH = 12
SHORT = {"max_new_tokens": LENGTH}
GREEDY = {"temperature": 0, "num_predict": LENGTH}
JSON = {"type": "object", "properties": {"a": {"const": "b"}}, "required": ["a"]}
BODIES: list[tuple[str, Any]] = [
    ("/", {"inputs": "Hello", "parameters": SHORT | {"details": True}}),
    ("/", {"inputs": ["Hello", "you"], "parameters": {"max_new_tokens": 3}}),
    ("/", {"inputs": HELLO, "parameters": {"max_new_tokens": 3}, "options": {"use_cache": False}}),
    ("/generate", {"inputs": "Hello", "parameters": SHORT | {"stop": ["e"]}}),
    ("/generate", {"inputs": "Hello", "parameters": SHORT | {"return_full_text": True}}),
    (
        "/generate",
        {"inputs": "Hello", "parameters": SHORT | {"grammar": {"type": "json", "value": JSON}}},
    ),
    (
        "/generate",
        {"inputs": "Hello", "parameters": SHORT | {"details": True, "top_n_tokens": 2}},
    ),
    ("/generate_stream", {"inputs": "Hello you", "parameters": SHORT | {"truncate": 1}}),
    (
        "/",
        {"inputs": "Hello", "stream": True, "parameters": SHORT | {"seed": 5, "temperature": 0.9}},
    ),
    ("/api/chat", {"messages": HELLO, "options": GREEDY, "stream": False}),
    ("/api/chat", {"model": "also-tiny", "messages": HELLO, "options": GREEDY}),
    ("/api/chat", {"messages": HELLO, "options": GREEDY, "format": JSON}),
    (
        "/api/chat",
        {"messages": HELLO, "options": GREEDY, "logprobs": True, "stream": False},
    ),
    ("/api/chat", {"messages": HELLO, "options": GREEDY | {"typical_p": 0.5, "num_ctx": 9}}),
    ("/api/generate", {"prompt": "Hello", "options": GREEDY, "stream": False, "system": "x"}),
    ("/api/generate", {"prompt": "Hello", "options": GREEDY, "raw": True}),
    ("/api/generate", {}),
    ("/api/show", {"model": "tiny"}),
    ("/api/version", None),
]
WRONG: list[tuple[str, Any, int, str | None, str]] = [
    ("/", {"inputs": ""}, 400, "validation", "inputs must be"),
    ("/generate", {"inputs": "a", "parametres": {}}, 400, "validation", "'parameters'"),
    ("/generate", {"inputs": "a", "parameters": {"top_kk": 1}}, 400, "validation", "'top_k'"),
    ("/generate", {"inputs": "a", "parameters": {"grammar": 1}}, 400, "validation", "grammar"),
    ("/generate", {"inputs": "a", "parameters": {"adapter_id": "x"}}, 404, None, "'x'"),
    ("/generate_stream", {"inputs": ["a", "b"]}, 400, "validation", "one text"),
    ("/generate", {"inputs": "a " * 999}, 400, "validation", "512"),
    ("/api/chat", {"model": "x", "messages": HELLO}, 404, None, "`x` does not exist"),
    ("/api/chat", {"messages": "x"}, 400, None, "messages"),
    ("/api/chat", {"messages": HELLO, "options": {"top_kk": 1}}, 400, None, "'top_k'"),
    ("/api/chat", {"messages": HELLO, "format": 1}, 400, None, "format=1"),
    ("/api/generate", {"prompt": "a", "suffix": "b"}, 400, None, "suffix"),
    ("/api/pull", {"model": "x"}, 404, None, "/api/chat"),
    ("/api/show", {"model": "x"}, 404, None, "`x` does not exist"),
    ("/api/embed", {"model": "tiny", "input": "x"}, 404, None, "/v1/embeddings"),
]
# What two askings never have in common.
OWN = ("created_at", "modified_at", "total_duration", "prompt_eval_duration", "eval_duration")


def post(door: Door, path: str, body: Any) -> requests.Response:
    method = "GET" if body is None else "POST"
    headers = {"authorization": f"Bearer {DOOR_KEY}"}
    return requests.request(method, door.url + path, json=body, headers=headers, timeout=60)


def output(record: Record) -> Any:
    assert Status.COMPLETED == record.status, record.done[-1].value
    return record.done[-1].value["output"]


def plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return reply
    return {name: value for name, value in reply.items() if name not in OWN}


def told(stream: str) -> tuple[str, Any]:
    """Return what a stream says, however its tokens were joined, and its end."""
    events = [json.loads(line.removeprefix("data:")) for line in stream.splitlines() if line]
    text = ""
    for event in events:
        said = event.get("token") or event.get("message") or {}
        text += said.get("text") or said.get("content") or event.get("response") or ""
    return text, plain(events[-1])


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_the_same_at_both_doors(tiny: Served, door: Door, path: str, body: Any) -> None:
    """A body has the same answer over HTTP and as a `route` job, and a bare job where it may be."""
    reply = post(door, path, body)
    jobs: list[dict[str, Any]] = [{"route": path} | ({} if body is None else {"body": body})]
    if path == "/":
        jobs.append(body)
    outputs = [output(tiny.run(job)) for job in jobs]

    assert 200 == reply.status_code, reply.text
    for one in outputs:
        if "application/json" in reply.headers["content-type"]:
            assert plain(reply.json()) == plain(one[0])
        else:
            assert told(reply.text) == told("".join(one))


@pytest.mark.parametrize("door_kind", ["http", "queue"])
@pytest.mark.parametrize(("path", "body", "code", "kind", "words"), WRONG)
def test_errors_have_their_own_shape(
    tiny: Served,
    door: Door,
    path: str,
    body: Any,
    code: int,
    kind: str | None,
    words: str,
    door_kind: str,
) -> None:
    """An error is told as the dialect tells it, with its status over HTTP, and fails a job."""
    if door_kind == "http":
        reply = post(door, path, body)
        error = reply.json()
        assert code == reply.status_code
    else:
        record = tiny.run({"route": path, "body": body})
        assert Status.FAILED == record.status
        error = json.loads(record.done[-1].value["error"])

    assert ({"error"} | ({"error_type"} if kind else set()), kind) == (
        error.keys(),
        error.get("error_type"),
    )
    assert words in error["error"]


def test_a_stream_that_is_refused(tiny: Served) -> None:
    """A job's stream tells an error as the dialect does before the job fails."""
    hugging_face = tiny.run({"inputs": "a", "parameters": {"top_kk": 1}, "stream": True})
    ollama = tiny.run({"route": "/api/chat", "body": {"messages": "x"}})

    assert json.loads(hugging_face.stream[0].value.removeprefix("data:"))["error_type"]
    assert {"error"} == json.loads(ollama.stream[0].value).keys()


@pytest.mark.parametrize("seed", [None, 11])
def test_the_same_tokens_in_every_dialect(door: Door, seed: int | None) -> None:
    """One conversation with one seed has one answer, whoever asks."""
    drawn = {"temperature": 0.9, "top_p": 0.9, "seed": seed} if seed else {"temperature": 0}
    common = {"max_tokens": LENGTH} | drawn
    chat = post(door, "/v1/chat/completions", {"messages": HELLO, **common}).json()
    native = post(door, "/native", {"messages": HELLO, "sampling_params": common}).json()
    options = {"num_predict": LENGTH} | drawn
    ollama = post(door, "/api/chat", {"messages": HELLO, "options": options, "stream": False})
    parameters = {"max_new_tokens": LENGTH, "return_full_text": False}
    hugging_face = post(
        door, "/", {"inputs": HELLO, "parameters": parameters | (drawn if seed else {})}
    )
    expected = chat["choices"][0]["message"]["content"]
    answers = [
        native["choices"][0]["tokens"][0],
        ollama.json()["message"]["content"],
        hugging_face.json()[0]["generated_text"],
    ]
    if seed is None:  # of which these know nothing
        reply = post(door, "/v1/messages", {"messages": HELLO, **common}).json()
        answers.append(reply["content"][0]["text"])
        body = {"input": "Hello", "temperature": 0, "max_output_tokens": LENGTH}
        reply = post(door, "/v1/responses", body).json()
        answers.append(reply["output"][0]["content"][0]["text"])

    assert [expected] * len(answers) == answers


def test_tools_of_ollama(door: Door) -> None:
    """Calls of tools and their results go into a conversation of Ollama's."""
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sun"},
    ]
    reply = post(door, "/api/chat", {"messages": messages, "options": GREEDY, "stream": False})

    assert reply.json()["eval_count"] == LENGTH, reply.text


def test_vectors_of_ollama(embedding: Served) -> None:
    """/api/embed and the older /api/embeddings have the vectors of OpenAI's route."""
    given = {"model": "embedder", "input": ["Hello", "you"]}
    (ours,) = output(embedding.run({"route": "/api/embed", "body": given}))
    (theirs,) = output(embedding.run({"openai_route": "/v1/embeddings", "openai_input": given}))

    assert [one["embedding"] for one in theirs["data"]] == ours["embeddings"]
    assert theirs["usage"]["prompt_tokens"] == ours["prompt_eval_count"]
    older = {"model": "embedder", "prompt": "Hello"}
    (one,) = output(embedding.run({"route": "/api/embeddings", "body": older}))
    assert {"embedding": ours["embeddings"][0]} == one
