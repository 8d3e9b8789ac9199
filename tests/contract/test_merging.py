"""Events that tell of several tokens say together what one event a token would have said."""

from typing import Any

import pytest

from served import Served

pytestmark = pytest.mark.timeout(300)

TOKENS = 48  # the `unusual` worker's context has 64
GREEDY = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "Hello"}]
COMPLETION = GREEDY | {"prompt": [9, 10]}
CHAT = GREEDY | {"messages": MESSAGES}


def events(served: Served, route: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream; this worker posts them as lists of objects."""
    record = served.run({"openai_route": route, "openai_input": body | {"stream": True}})
    return [event for post in record.stream for event in post.value]


def whole(served: Served, route: str, body: dict[str, Any]) -> dict[str, Any]:
    record = served.run({"openai_route": route, "openai_input": body})
    (output,) = record.done[-1].value["output"]
    assert isinstance(output, dict)
    return output


def joined(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the pieces of one answer say together."""
    deltas = [choice.get("delta", choice) for choice in choices]
    logprobs = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    return {
        "text": "".join(delta.get("text") or delta.get("content") or "" for delta in deltas),
        "token_ids": [one for choice in choices for one in choice.get("token_ids") or []],
        "content": [one for each in logprobs for one in each.get("content") or []],
        "tokens": [one for each in logprobs for one in each.get("tokens") or []],
        "token_logprobs": [one for each in logprobs for one in each.get("token_logprobs") or []],
        "text_offset": [one for each in logprobs for one in each.get("text_offset") or []],
        "finish_reason": choices[-1]["finish_reason"],
        "stop_reason": choices[-1].get("stop_reason"),
    }


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", COMPLETION),
    ("/v1/completions", COMPLETION | {"logprobs": 3, "return_token_ids": True}),
    ("/v1/completions", COMPLETION | {"n": 3, "temperature": 1.0, "seed": 5, "logprobs": 1}),
    ("/v1/completions", COMPLETION | {"prompt": [[9, 10], [11, 12]], "logprobs": 1}),
    ("/v1/completions", COMPLETION | {"echo": True, "logprobs": 1, "max_tokens": 40}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", CHAT | {"n": 2, "temperature": 1.0, "seed": 5}),
]


@pytest.mark.parametrize(("route", "body"), BODIES)
def test_together_they_say_the_same(unusual: Served, route: str, body: dict[str, Any]) -> None:
    """Text, log-probabilities, token ids and reasons of a stream are those of the whole reply."""
    reply = whole(unusual, route, body)
    usage = {"stream_options": {"include_usage": True}}
    streamed = events(unusual, route, body | usage)
    pieces = [choice for event in streamed for choice in event["choices"]]

    for choice in reply["choices"]:
        expected = joined([choice | {"delta": choice.get("message", choice)}])
        assert expected == joined([one for one in pieces if one["index"] == choice["index"]])
    assert reply["usage"]["completion_tokens"] == streamed[-1]["usage"]["completion_tokens"]


@pytest.mark.parametrize("length", range(1, 12))
def test_a_stop_text_across_events(unusual: Served, length: int) -> None:
    """A stop text ends the stream where it ends the whole reply, wherever it begins and ends."""
    text = whole(unusual, "/v1/completions", COMPLETION)["choices"][0]["text"]
    body = COMPLETION | {"stop": [text[12 : 12 + length]]}
    (reply,) = whole(unusual, "/v1/completions", body)["choices"]
    streamed = events(unusual, "/v1/completions", body)

    assert reply["text"] == "".join(event["choices"][0]["text"] for event in streamed)
    assert reply["stop_reason"] == streamed[-1]["choices"][0]["stop_reason"]


def test_other_dialects(unusual: Served) -> None:
    """Anthropic's and the Responses route's streams have the text of their whole replies too."""
    body = {"messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0.0}
    message = whole(unusual, "/v1/messages", body)
    streamed = events(unusual, "/v1/messages", body)
    deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    assert message["content"][0]["text"] == "".join(delta["text"] for delta in deltas)

    body = {"input": "Hello", "max_output_tokens": TOKENS, "temperature": 0.0}
    reply = whole(unusual, "/v1/responses", body)
    streamed = events(unusual, "/v1/responses", body)
    deltas = [event["delta"] for event in streamed if event["type"].endswith("text.delta")]
    assert reply["output"][0]["content"][0]["text"] == "".join(deltas)


@pytest.mark.parametrize("more", [{}, {"n": 3, "seed": 5, "temperature": 1.0}, {"logprobs": 2}])
def test_native(unusual: Served, more: dict[str, Any]) -> None:
    """A native stream says together what the whole reply says."""
    given = {"prompt": [9, 10], "sampling_params": GREEDY | {"return_token_ids": True} | more}
    (output,) = unusual.run(given).done[-1].value["output"]
    posts = [post.value for post in unusual.run(given | {"stream": True}).stream]

    for index, choice in enumerate(output["choices"]):
        pieces = [post["choices"][index] for post in posts]
        texts = [text for piece in pieces for text in piece["tokens"]]
        assert "".join(choice["tokens"]) == "".join(texts)
        for name in ("logprobs", "token_ids"):
            assert choice.get(name, []) == [one for p in pieces for one in p.get(name, [])]
    assert output["usage"] == posts[-1]["usage"]


def test_fewer_events_than_tokens(unusual: Served, tiny: Served) -> None:
    """By default tokens that leave together share an event; with exact sizes each has its own."""
    body = COMPLETION | {"stream": True, "return_token_ids": True}
    merged = [event["choices"][0] for event in events(unusual, "/v1/completions", body)]
    posts = unusual.run({"openai_route": "/v1/completions", "openai_input": body}).stream
    exact = tiny.run({"openai_route": "/v1/completions", "openai_input": body}).stream

    assert TOKENS == sum(len(one["token_ids"] or []) for one in merged)
    assert len(merged) < TOKENS / 2
    assert len(posts) + 1 >= sum(len(post.value) for post in posts)
    assert sum(post.value.count('"text":') for post in exact) > TOKENS / 2
