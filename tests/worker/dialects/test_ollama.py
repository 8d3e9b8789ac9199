"""Ollama's dialect: its requests become OpenAI's, and OpenAI's chunks its lines."""

import json
from typing import Any

import pytest

from worker.batching import BatchSizes
from worker.dialects.ollama import Ollama, Talk
from worker.errors import RequestError
from worker.facts import Limits
from worker.request import RouteRequest

HELLO = [{"role": "user", "content": "Hello"}]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
STREAMS = {"stream": True, "stream_options": {"include_usage": True}}
CALL = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
WHOLE = {"stream": False}


def talk(path: str, body: Any = None, method: str | None = None) -> Talk:
    return Ollama().read(RouteRequest("job-1", BatchSizes(), path, method, body), Limits())


def asked(path: str, body: Any = None) -> tuple[str, Any]:
    request = talk(path, body).asked
    assert isinstance(request, RouteRequest)
    return request.path, request.body


CHATS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, STREAMS),
    (WHOLE | {"keep_alive": "5m"}, {}),
    (
        WHOLE | {"options": {"num_predict": 5, "repeat_penalty": 1.1, "num_ctx": 9, "seed": None}},
        {"max_tokens": 5, "repetition_penalty": 1.1},
    ),
    (WHOLE | {"options": {"num_predict": -1, "typical_p": 1.0}}, {}),
    (WHOLE | {"options": {"num_predict": 0}}, {}),
    (WHOLE | {"options": {"typical_p": 0.5}}, {"generation_parameters": {"typical_p": 0.5}}),
    (WHOLE | {"format": "json"}, {"response_format": {"type": "json_object"}}),
    (WHOLE | {"format": ""}, {}),
    (WHOLE | {"think": True}, {"chat_template_kwargs": {"enable_thinking": True}}),
    (WHOLE | {"think": "low"}, {"reasoning_effort": "low"}),
    (WHOLE | {"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
    (WHOLE | {"tools": [{"type": "function"}]}, {"tools": [{"type": "function"}]}),
]


@pytest.mark.parametrize(("given", "expected"), CHATS)
def test_a_chat_becomes_openais(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Fields and options have their places in OpenAI's body."""
    path, body = asked("/api/chat", given | {"model": "m:latest", "messages": HELLO})

    assert "/v1/chat/completions" == path
    assert expected | {"model": "m", "messages": HELLO} == body


def test_messages() -> None:
    """Images, thoughts, calls and their results go into a conversation in OpenAI's words."""
    given = [
        {"role": "user", "content": "Hello", "images": ["aGk="]},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_name": "weather", "content": "sun"},
        {"role": "tool", "content": "sun"},
        {"role": "user"},
    ]
    _, body = asked("/api/chat", {"messages": given})
    user, assistant, *results, empty = body["messages"]
    (call,) = assistant["tool_calls"]

    assert "data:image/png;base64,aGk=" == user["content"][1]["image_url"]["url"]
    assert ("hm", "weather") == (assistant["reasoning"], call["function"]["name"])
    assert {"city": "Rome"} == json.loads(call["function"]["arguments"])
    assert {"role": "user", "content": ""} == empty  # as the client sends an empty text
    assert [call["id"]] * 2 == [one["tool_call_id"] for one in results]


def test_other_routes() -> None:
    """A prompt is a user's message or, raw, a completion; the others have routes of their own."""
    system = [{"role": "system", "content": "x"}]
    prompt = {"prompt": "Hello", "stream": False}

    assert ("/v1/chat/completions", {"model": None, "messages": [*system, *HELLO]}) == asked(
        "/api/generate", prompt | {"system": "x"}
    )
    assert ("/v1/completions", {"model": None, "max_tokens": None, "prompt": "Hello"}) == asked(
        "/api/generate", prompt | {"raw": True}
    )
    assert ("/v1/models", None) == asked("/api/generate", {})
    assert ("/v1/models", None) == asked("/api/tags")
    assert ("/v1/models", None) == asked("/api/ps")
    assert ("/v1/models/org/m", None) == asked("/api/show", {"model": "org/m:latest"})
    assert ("/version", None) == asked("/api/version")
    for path, name in (("/api/embed", "input"), ("/api/embeddings", "prompt")):
        assert (
            "/v1/embeddings",
            {"model": "m", "input": "a", "truncate_prompt_tokens": -1},
        ) == asked(path, {"model": "m", name: "a"})


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def lines(body: dict[str, Any], *chunks: dict[str, Any]) -> list[dict[str, Any]]:
    one = talk("/api/chat", {"messages": HELLO, "model": "m"} | body)
    return [line for each in chunks for line in one.events(each)]


def test_a_stream() -> None:
    """Words and thoughts are lines, calls come whole, and the end counts tokens and time."""
    function = {"name": "weather", "arguments": '{"city"'}
    said = lines(
        {},
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": "hm"}),
        chunk({"content": "Hi"}),
        chunk({"tool_calls": [{"index": 0, "function": function}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ': "Rome"}'}}]}),
        chunk({}, "tool_calls"),
        {"choices": [], "usage": USAGE},
    )
    messages = [
        {"role": "assistant", "content": ""} | more
        for more in ({"thinking": "hm"}, {"content": "Hi"}, {"tool_calls": [CALL]}, {})
    ]

    assert messages == [line["message"] for line in said]
    assert [False, False, False, True] == [line["done"] for line in said]
    assert ("stop", 3, 2) == (
        *(said[-1][name] for name in ("done_reason", "prompt_eval_count", "eval_count")),
    )
    assert said[-1]["total_duration"] >= said[-1]["eval_duration"] >= 0


def test_an_answer_that_is_cut() -> None:
    """An answer that ran into its limit says so."""
    *_, last = lines({}, chunk({"content": "a"}, "length"), {"choices": [], "usage": USAGE})

    assert "length" == last["done_reason"]


def test_whole_replies() -> None:
    """What is not streamed is one object with everything."""
    message = {"content": "Hi", "reasoning": "hm"}
    chat = talk("/api/chat", WHOLE | {"messages": HELLO}).whole(
        {"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE}
    )
    scores = {"content": None, "tokens": ["Hi"], "token_logprobs": [-1.0]}
    raw = talk("/api/generate", WHOLE | {"prompt": "a", "raw": True, "logprobs": True}).whole(
        {"choices": [{"text": "Hi", "finish_reason": "stop", "logprobs": scores}], "usage": USAGE}
    )

    assert {"role": "assistant", "content": "Hi", "thinking": "hm"} == chat["message"]
    assert chat["eval_duration"] == chat["total_duration"] > 0  # clients divide by it
    assert (True, "stop", "Hi") == (chat["done"], chat["done_reason"], raw["response"])
    assert [{"token": "Hi", "logprob": -1.0}] == raw["logprobs"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/pull", {}, "no route"),
        ("/api/embeddings", {"prompt": ["x"]}, "prompt must be"),
        ("/api/chat", [], "object"),
        ("/api/chat", {"messages": ["x"]}, "messages"),
        ("/api/chat", {"messages": HELLO, "options": []}, "options"),
        ("/api/chat", {"messages": HELLO, "options": {"top_kk": 1}}, "'top_k'"),
        ("/api/chat", {"messages": HELLO, "format": 5}, "format=5"),
        ("/api/chat", {"messages": HELLO, "model": 5}, "model"),
        ("/api/generate", {"prompt": "a", "context": [1]}, "context"),
        ("/api/show", {}, "model"),
    ],
)
def test_what_is_refused(path: str, body: Any, words: str) -> None:
    """What is of no known form is refused with a sentence."""
    with pytest.raises(RequestError, match=words):
        talk(path, body)


def test_a_wrong_method() -> None:
    """A route takes its one method."""
    with pytest.raises(RequestError, match="takes POST, not GET"):
        talk("/api/chat", method="GET")
