"""Hugging Face's and Ollama's dialects: the same at both doors, and the tokens of the others."""

import json
from typing import Any

import pytest
import requests

from local_endpoint import Record, Status
from served import DOOR_KEY, Door, Served

pytestmark = pytest.mark.timeout(300)

LONG = "a " * 999
HELLO = [{"role": "user", "content": "Hello"}]
CHAT_TEXT = ("choices", 0, "message", "content")
NATIVE_TEXT = ("choices", 0, "tokens", 0)
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
    ("/generate", {"inputs": LONG}, 400, "validation", "512"),
    ("/api/chat", {"model": "x", "messages": HELLO}, 404, None, "`x` does not exist"),
    ("/api/chat", {"messages": "x"}, 400, None, "messages"),
    ("/api/chat", {"messages": HELLO, "options": {"top_kk": 1}}, 400, None, "'top_k'"),
    ("/api/chat", {"messages": HELLO, "format": 1}, 400, None, "format=1"),
    ("/api/generate", {"prompt": "a", "suffix": "b"}, 400, None, "suffix"),
    ("/api/chat", {"messages": [{"role": "user", "content": LONG}]}, 400, None, "512"),
    ("/api/generate", {"model": "x", "prompt": "a"}, 404, None, "`x` does not exist"),
    ("/api/generate", {"prompt": "a", "options": {"temperature": -1}}, 400, None, "temperature"),
    ("/api/generate", {"prompt": LONG}, 400, None, "512"),
    ("/api/pull", {"model": "x"}, 404, None, "/api/chat"),
    ("/api/show", {"model": "x"}, 404, None, "`x` does not exist"),
    ("/api/embed", {"model": "tiny", "input": "x"}, 404, None, "/v1/embeddings"),
]
# The other dialects at the HTTP door: what their errors hold beside a sentence.
OPENAI, ANTHROPIC = {"error"}, {"type", "error"}
ANSWER: dict[str, Any] = {"messages": HELLO, "max_tokens": 5}
CONVERSATION = [{"role": "user", "content": LONG}]
WRONG_ELSEWHERE: list[tuple[str, Any, int, set[str], str]] = [
    ("/native", {"prompt": "a", "model": "x"}, 404, OPENAI, "x"),
    ("/native", {"prompt": "a", "sampling_params": {"temperature": -1}}, 400, OPENAI, "temper"),
    ("/native", {"prompt": LONG}, 400, OPENAI, "512"),
    ("/v1/chat/completions", ANSWER | {"model": "x"}, 404, OPENAI, "`x` does not exist"),
    ("/v1/chat/completions", ANSWER | {"temperature": -1}, 400, OPENAI, "temperature"),
    ("/v1/chat/completions", ANSWER | {"messages": CONVERSATION}, 400, OPENAI, "512"),
    ("/v1/chat/nope", ANSWER, 404, OPENAI, "/v1/chat/completions"),
    ("/v1/completions", {"prompt": LONG}, 400, OPENAI, "512"),
    ("/v1/responses", {"input": "a", "model": "x"}, 404, OPENAI, "`x` does not exist"),
    ("/v1/responses", {"input": "a", "temperature": -1}, 400, OPENAI, "temperature"),
    ("/v1/responses", {"input": LONG}, 400, OPENAI, "512"),
    ("/v1/responses/x/nope", {}, 404, OPENAI, "no route"),
    ("/v1/messages", ANSWER | {"model": "x"}, 404, ANTHROPIC, "`x` does not exist"),
    ("/v1/messages", ANSWER | {"temperature": -1}, 400, ANTHROPIC, "temperature"),
    ("/v1/messages", ANSWER | {"messages": CONVERSATION}, 400, ANTHROPIC, "512"),
    ("/v1/messages/nope", ANSWER, 404, ANTHROPIC, "no route"),
    ("/nope", {}, 404, OPENAI, "no route"),
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


@pytest.mark.parametrize(("path", "body", "code", "keys", "words"), WRONG_ELSEWHERE)
def test_errors_of_the_other_dialects(
    door: Door, path: str, body: Any, code: int, keys: set[str], words: str
) -> None:
    """OpenAI's, Anthropic's and the native dialect have errors of their own shape too."""
    reply = post(door, path, body)
    told = reply.json()

    assert (code, keys) == (reply.status_code, told.keys())
    assert {"message", "type", "param", "code"} == told["error"].keys()
    assert code == told["error"]["code"]
    assert words in told["error"]["message"]


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
    ollama = {"options": {"num_predict": LENGTH} | drawn, "stream": False}
    parameters = SHORT | (drawn if seed else {})
    ids = post(door, "/tokenize", {"messages": HELLO, "model": "tiny"}).json()["tokens"]
    asked: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("/v1/chat/completions", {"messages": HELLO, **common}, CHAT_TEXT),
        ("/v1/completions", {"prompt": ids, **common}, ("choices", 0, "text")),
        (
            "/v1/responses",
            {"input": HELLO, "max_output_tokens": LENGTH, **drawn},
            ("output", 0, "content", 0, "text"),
        ),
        ("/native", {"messages": HELLO, "sampling_params": common}, NATIVE_TEXT),
        ("/native", {"prompt": ids, "sampling_params": common}, NATIVE_TEXT),
        ("/api/chat", {"messages": HELLO, **ollama}, ("message", "content")),
        ("/api/generate", {"prompt": HELLO[0]["content"], **ollama}, ("response",)),
        (
            "/",
            {"inputs": HELLO, "parameters": parameters | {"return_full_text": False}},
            (0, "generated_text"),
        ),
    ]
    if seed is None:  # Anthropic's dialect has none
        asked.append(("/v1/messages", {"messages": HELLO, **common}, ("content", 0, "text")))
    answers = {}
    for path, body, place in asked:
        answer = post(door, path, body).json()
        for key in place:
            answer = answer[key]
        answers[f"{path} {[*body]}"] = answer

    assert dict.fromkeys(answers, next(iter(answers.values()))) == answers


def test_anthropics_dialect_has_no_seed(door: Door) -> None:
    """A seed on /v1/messages is none, as docs/clients.md says."""
    body = {"messages": HELLO, "max_tokens": 40, "temperature": 2.0, "seed": 5}
    texts = {post(door, "/v1/messages", body).json()["content"][0]["text"] for _ in range(5)}

    assert len(texts) > 1


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
    older = {"model": "embedder", "prompt": "Hello"}
    (one,) = output(embedding.run({"route": "/api/embeddings", "body": older}))
    (theirs,) = output(embedding.run({"openai_route": "/v1/embeddings", "openai_input": given}))

    assert [one["embedding"] for one in theirs["data"]] == ours["embeddings"]
    assert {"embedding": ours["embeddings"][0]} == one
    assert theirs["usage"]["prompt_tokens"] == ours["prompt_eval_count"]
