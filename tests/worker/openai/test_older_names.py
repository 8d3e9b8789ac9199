"""Older names on OpenAI's routes become today's, and come back to whoever used them."""

import asyncio
import json
from typing import Any

import pytest
from an_app import CHAT, DONE, chunk

from worker.errors import RequestError
from worker.openai.older_names import OlderNames, renaming

WEATHER = {"name": "weather", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": WEATHER}
CALL = {"name": "weather", "arguments": "{}"}
TOOLS = {"tools": [TOOL]}
TODAYS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"guided_json": {"type": "object"}}, {"structured_outputs": {"json": {"type": "object"}}}),
    ({"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}),
    ({"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}),
    ({"guided_grammar": "root ::= x"}, {"structured_outputs": {"grammar": "root ::= x"}}),
    (
        {"guided_json": "{}", "guided_whitespace_pattern": " "},
        {"structured_outputs": {"json": "{}", "whitespace_pattern": " "}},
    ),
    ({"guided_json": None}, {}),
    ({"guided_json_object": False}, {}),
    (
        {"guided_regex": "a", "structured_outputs": {"regex": "a"}},
        {"structured_outputs": {"regex": "a"}},
    ),
    ({"model": "dummy"}, {}),
    ({"model": "tgi"}, {}),
    (
        {"response_format": {"type": "json_object", "value": {"type": "object"}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "value", "schema": {"type": "object"}},
            }
        },
    ),
    (
        {"response_format": {"type": "regex", "value": "a"}},
        {"response_format": None, "structured_outputs": {"regex": "a"}},
    ),
    (
        {"tools": [TOOL], "tool_choice": "weather"},
        TOOLS | {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ),
    (
        {"messages": [{"role": "user", "content": None, "name": None, "tool_calls": None}, 5]},
        {"messages": [{"role": "user", "content": None}, 5]},
    ),
    ({"functions": [WEATHER]}, TOOLS),
    ({"functions": [WEATHER], "function_call": "none"}, TOOLS | {"tool_choice": "none"}),
    (
        {"functions": [WEATHER], "function_call": {"name": "weather"}},
        TOOLS | {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ),
    (
        {
            "messages": [
                {"role": "assistant", "content": None, "function_call": CALL},
                {"role": "function", "name": "weather", "content": "sun"},
            ]
        },
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "call_0", "type": "function", "function": CALL}],
                },
                {
                    "role": "tool",
                    "name": "weather",
                    "tool_call_id": "call_0",
                    "content": "sun",
                },
            ]
        },
    ),
]
# What is of no use, or of another form: vLLM says what it thinks of it.
KEPT: list[dict[str, Any]] = [
    {"tools": [TOOL], "tool_choice": "auto"},
    {"functions": [WEATHER], "tools": [TOOL]},
    {"functions": "weather"},
    {"model": ["tgi"]},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "regex"}},
    {"messages": "Hello"},
    {"messages": ["Hello"]},
    {"messages": [{"role": "assistant", "function_call": None}]},
]


@pytest.mark.parametrize(("given", "expected"), TODAYS)
def test_todays_names(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """A body in older names becomes the one that vLLM takes; what was given is not changed."""
    before = json.dumps(given)
    body, _ = OlderNames().read(CHAT, given | {"model": "m"})

    assert expected | {"model": "m"} == body
    assert before == json.dumps(given)


@pytest.mark.parametrize("given", KEPT)
def test_what_is_kept(given: dict[str, Any]) -> None:
    """A body without older names, or with one of no known form, goes on as it is."""
    assert (given, None) == OlderNames().read(CHAT, given)


def test_strict_openai() -> None:
    """STRICT_OPENAI leaves older names to vLLM."""
    for given, _ in TODAYS:
        assert (given, None) == OlderNames(is_strict=True).read(CHAT, given)


def test_other_routes_have_no_older_names() -> None:
    """Completions know the guided ones alone, and no other route any."""
    functions = {"functions": [WEATHER]}
    guided, rename = OlderNames().read("/v1/completions", functions | {"guided_regex": "a"})

    assert functions | {"structured_outputs": {"regex": "a"}} == guided
    assert rename is None
    assert (functions, None) == OlderNames().read("/v1/responses", functions)


def test_both_names_with_two_values() -> None:
    """Both names of one thing with different values are refused, and the sentence quotes both."""
    given = {"guided_regex": "a", "structured_outputs": {"regex": "b"}}
    with pytest.raises(RequestError, match="guided_regex") as refused:
        OlderNames().read(CHAT, given)

    assert "structured_outputs.regex" in refused.value.message


def test_each_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log names each older name once, and what it is called today."""
    caplog.set_level("INFO", "worker")
    older = OlderNames()
    for _ in range(3):
        older.read(CHAT, {"guided_regex": "a", "functions": [WEATHER]})
        older.read(CHAT, {"messages": [{"role": "user", "reasoning_content": "hm"}]})
    said = [record.message for record in caplog.records]

    assert 3 == len(said)
    assert "guided_regex, the older name of structured_outputs.regex" in said[0]


def passed(given: dict[str, Any], *messages: dict[str, Any], **options: Any) -> list[Any]:
    """Return what an app's reply to a chat becomes on its way."""
    _, rename = OlderNames(**options).read(CHAT, given)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        assert rename is not None
        renamed = renaming(send, rename)
        for message in messages:
            await renamed(message)

    asyncio.run(main())
    return sent


def start(kind: bytes) -> dict[str, Any]:
    headers = [(b"content-type", kind), (b"content-length", b"2")]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def body(content: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


def test_a_whole_reply() -> None:
    """A reply to older names has them beside today's, and is as long as it says."""
    message = {"reasoning": "hm", "tool_calls": [{"id": "1", "function": CALL}]}
    reply = json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode()
    sent = passed(
        {"functions": [WEATHER]},
        start(b"application/json"),
        body(reply[:30], more=True),
        body(reply[30:]),
    )
    (choice,) = json.loads(sent[-1]["body"])["choices"]

    assert message | {"reasoning_content": "hm", "function_call": CALL} == choice["message"]
    assert "function_call" == choice["finish_reason"]
    assert [(b"content-type", b"application/json")] == sent[0]["headers"]
    assert 2 == len(sent)


@pytest.mark.parametrize("length", [1, 7, 1000])
def test_a_stream(length: int) -> None:
    """However a stream's bytes are cut, only the events with another name are changed."""
    same = [chunk({"role": "assistant"}), chunk({"content": '"reasoning"'}), DONE]
    stream = same[0] + chunk({"reasoning": "hm"}) + same[1] + same[2]
    cuts = [stream[at : at + length] for at in range(0, len(stream), length)]
    messages = [body(one, more=True) for one in cuts]
    sent = passed({}, start(b"text/event-stream"), *messages, body(b""), always=True)
    events = b"".join(one["body"] for one in sent[1:]).split(b"\n\n")
    changed = json.loads(events[1].removeprefix(b"data: "))

    assert same[0] == events[0] + b"\n\n"
    assert {"reasoning": "hm", "reasoning_content": "hm"} == changed["choices"][0]["delta"]
    assert same[1] + same[2] == b"\n\n".join(events[2:])
    assert not sent[-1]["more_body"]
