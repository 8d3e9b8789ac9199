"""Inputs that are too large, malformed or strange, on both paths, beside a running neighbour."""

import concurrent.futures
import json
from collections.abc import Iterator
from typing import Any

import pytest

from local_endpoint import Record, Status
from served import Served, cancel, text
from waiting import wait_until

pytestmark = pytest.mark.timeout(300)

HELLO = [{"role": "user", "content": "Hello"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
INNOCENT = {
    "prompt": "Hello",
    "stream": True,
    "sampling_params": {"temperature": 0, "max_tokens": 400, "ignore_eos": True},
}


def native(**given: Any) -> dict[str, Any]:
    return {"prompt": "Hello", "sampling_params": {"max_tokens": 4} | given}


def chat(**given: Any) -> dict[str, Any]:
    return {"openai_route": CHAT, "openai_input": {"messages": HELLO, "max_tokens": 4} | given}


def completion(**given: Any) -> dict[str, Any]:
    body = {"prompt": "Hello", "max_tokens": 4} | given
    return {"openai_route": COMPLETIONS, "openai_input": body}


def error(record: Record) -> dict[str, Any]:
    assert Status.FAILED == record.status, record.done[-1].value
    return dict(json.loads(record.done[-1].value["error"])["error"])


def prompt_tokens(record: Record) -> int:
    assert Status.COMPLETED == record.status, record.done[-1].value
    usage = record.done[-1].value["output"][-1]["usage"]
    return int(usage.get("input", usage.get("prompt_tokens")))


@pytest.fixture
def neighbour(tiny: Served) -> Iterator[None]:
    """A job that streams meanwhile, and must write what it writes alone."""
    alone = text(tiny.run(INNOCENT))
    job_id = tiny.endpoint.submit(INNOCENT)
    wait_until(lambda: tiny.endpoint.record(job_id).stream)
    yield
    assert alone == text(tiny.endpoint.wait_for_end(job_id, 60))
    assert alone == text(tiny.run(INNOCENT))


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"}
    for _ in range(depth // 2):
        value = {"type": "object", "properties": {"a": value}}
    return value


WORDS = [f"word{i}" for i in range(100_000)]
BIG_SCHEMA = {"enum": WORDS[:10_000]}
LOOSE_SCHEMA = {"type": "object", "properties": {w: {"type": "string"} for w in WORDS[:600]}}
LENGTHS = {"anyOf": [{"type": "string", "maxLength": most} for most in range(1, 34)]}
LARGE: list[tuple[dict[str, Any], str]] = [
    *((make(bad_words=WORDS), "MAX_STOP_STRINGS") for make in (native, chat, completion)),
    *(
        (make(bad_words=["x" * 1_000_000]), "MAX_STOP_CHARACTERS")
        for make in (native, chat, completion)
    ),
    (native(stop=WORDS[:20_000]), "MAX_STOP_STRINGS"),
    (native(stop_strings=["x" * 20_000]), "MAX_STOP_CHARACTERS"),
    (chat(stop=["x" * 20_000]), "MAX_STOP_CHARACTERS"),
    (native(logit_bias={str(i): 1 for i in range(40_000)}), "MAX_TOKEN_IDS"),
    *(
        (make(logit_bias={str(i): 1 for i in range(50_001)}), "MAX_INPUT_VALUES")
        for make in (native, chat)
    ),
    *(
        (make(**{name: list(range(40_000))}), "MAX_TOKEN_IDS")
        for make in (native, chat, completion)
        for name in ("stop_token_ids", "allowed_token_ids")
    ),
    (native(suppress_tokens=[5] * 40_000), "MAX_TOKEN_IDS"),
    (chat(messages=HELLO * 100_000), "MAX_INPUT_VALUES"),
    ({"messages": HELLO * 100_000}, "MAX_INPUT_VALUES"),
    *((make(n=16_384, temperature=1), "MAX_SEQUENCES") for make in (native, chat, completion)),
    (completion(prompt=["x"] * 100_000), "MAX_SEQUENCES"),
    ({"prompt": ["x"] * 100_000}, "MAX_SEQUENCES"),
    ({"route": "/v1/embeddings", "body": {"input": ["x"] * 100_000}}, "MAX_SEQUENCES"),
    *((make(model="m" * 2_000_000), "MAX_NAME_LENGTH") for make in (chat, completion)),
    ({"prompt": "x", "model": "m" * 2_000_000}, "MAX_NAME_LENGTH"),
    (chat(request_id="r" * 1_000_000), "MAX_NAME_LENGTH"),
    (chat(metadata=nested(600)), "MAX_INPUT_DEPTH"),
    *(
        (make(structured_outputs={"json": nested(900)}), "MAX_INPUT_DEPTH")
        for make in (native, chat)
    ),
    *((make(structured_outputs={"json": nested(100)}), "64") for make in (native, chat)),
    *((make(structured_outputs={"choice": WORDS}), "MAX_CHOICES") for make in (native, chat)),
    *(
        (make(structured_outputs={"json": one}), "MAX_GRAMMAR_BYTES")
        for make in (native, chat)
        for one in (BIG_SCHEMA, json.dumps(BIG_SCHEMA))
    ),
    (chat(structured_outputs={"regex": "|".join(WORDS)}), "MAX_GRAMMAR_BYTES"),
    (native(guided_grammar='root ::= "' + "x" * 70_000 + '"'), "MAX_GRAMMAR_BYTES"),
    *(
        (make(structured_outputs={"json": LOOSE_SCHEMA}), "MAX_OPTIONAL_PROPERTIES")
        for make in (native, chat)
    ),
    *(
        (make(structured_outputs={"json": LENGTHS}), "MAX_STRING_LENGTHS")
        for make in (native, chat)
    ),
    (
        chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": LOOSE_SCHEMA},
            }
        ),
        "MAX_OPTIONAL_PROPERTIES",
    ),
    ({f"key{i}": 1 for i in range(20_000)}, "unknown key"),
]


@pytest.mark.usefixtures("neighbour")
def test_what_is_too_large_is_refused_by_name(tiny: Served) -> None:
    """Each is a 400 naming the variable, and the loop never stands still for long."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        records = list(pool.map(tiny.run, [given for given, _ in LARGE]))

    for (given, variable), record in zip(LARGE, records, strict=True):
        told = error(record)
        assert variable in told["message"], str(given)[:200]
        assert 400 == told["code"], told


OUTSIDE: list[dict[str, Any]] = [
    native(stop_token_ids=[999_999], min_tokens=1),
    native(stop_token_ids=[-1]),
    native(eos_token_id=[999_999], min_new_tokens=2),
    native(forced_eos_token_id=999_999),
    native(suppress_tokens=[999_999]),
    native(begin_suppress_tokens=[-5]),
    native(bad_words_ids=[[999_999]]),
    native(sequence_bias=[[[999_999], 1.0]]),
    native(stop_token_ids=[3.5]),
    native(stop_token_ids=[True]),
    native(logit_bias={"999999": 1}),
    native(allowed_token_ids=[999_999]),
    native(logprob_token_ids=[999_999]),
    {"prompt": [999_999]},
    *(
        make(**given)
        for make in (chat, completion)
        for given in (
            {"stop_token_ids": [999_999], "min_tokens": 1},
            {"stop_token_ids": [-1]},
            {"logit_bias": {"999999": 1}},
            {"allowed_token_ids": [999_999]},
            {"generation_parameters": {"suppress_tokens": [999_999]}},
            {"generation_parameters": {"eos_token_id": [999_999], "min_new_tokens": 2}},
        )
    ),
    completion(prompt=[999_999]),
]


@pytest.mark.usefixtures("neighbour")
def test_ids_outside_the_vocabulary_fail_alone(tiny: Served) -> None:
    """On both paths each is a 400 for its own job, and the engine answers the next one."""
    for given in OUTSIDE:
        assert 400 == error(tiny.run(given))["code"], given
        assert Status.COMPLETED == tiny.run(native()).status, given


@pytest.mark.parametrize(
    "arguments", ['{"a": ', "", None, "[1]", "3", {"a": 1}], ids=lambda a: json.dumps(a)
)
def test_malformed_old_tool_calls(tiny: Served, arguments: Any) -> None:
    """An earlier call whose arguments were cut does not poison the conversation, on both paths."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
        {"role": "user", "content": "go on"},
    ]
    records = [tiny.run({"messages": messages} | native(), 60), tiny.run(chat(messages=messages))]

    if Status.FAILED in {record.status for record in records}:
        assert [400, 400] == [error(record)["code"] for record in records]
    else:
        assert 1 == len({prompt_tokens(record) for record in records})


LONG = " ".join(f"number {i}" for i in range(400))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("length", [100, 504, -1])
def test_a_prompt_is_cut_alike_on_both_paths(tiny: Served, length: int, side: str) -> None:
    """truncate_prompt_tokens and truncation_side keep the same tokens natively and on the route."""
    cut = {"truncate_prompt_tokens": length, "truncation_side": side, "max_tokens": 8}
    greedy = {"temperature": 0, "ignore_eos": True}
    own = tiny.run({"prompt": LONG, "sampling_params": cut | greedy})
    theirs = tiny.run(completion(prompt=LONG, **cut, **greedy))

    assert prompt_tokens(own) == prompt_tokens(theirs)
    assert prompt_tokens(own) == (length if length > 0 else 511)  # vLLM leaves room for one
    assert text(own) == theirs.done[-1].value["output"][0]["choices"][0]["text"]


@pytest.mark.parametrize("length", [0, 100_000])
def test_a_length_that_cuts_nothing_is_refused(tiny: Served, length: int) -> None:
    """A length that would leave nothing, or more than the context, is an error on both paths."""
    cut = {"truncate_prompt_tokens": length}
    for given in ({"prompt": LONG, "sampling_params": cut}, completion(prompt=LONG, **cut)):
        assert 400 == error(tiny.run(given))["code"]


@pytest.mark.parametrize(
    "given",
    [
        native(max_tokens=None),
        native(max_new_tokens=None),
        {"prompt": "Hello", "max_tokens": None, "stream": None, "model": None},
        completion(max_tokens=None),
        chat(max_tokens=None),
        chat(max_tokens=None, max_completion_tokens=None),
        chat(max_tokens=5, max_completion_tokens=9),
    ],
)
def test_null_is_not_given(tiny: Served, given: dict[str, Any]) -> None:
    """null means "not given", whatever the field."""
    assert Status.COMPLETED == tiny.run(given).status


def test_the_newer_of_two_lengths_wins(tiny: Served) -> None:
    """Of max_tokens and max_completion_tokens the latter holds, as vLLM reads a chat."""
    record = tiny.run(chat(max_tokens=5, max_completion_tokens=9, ignore_eos=True))

    assert 9 == record.done[-1].value["output"][0]["usage"]["completion_tokens"]


def test_a_conversation_is_continued(tiny: Served) -> None:
    """continue_final_message goes on with the assistant's words as vLLM's route does."""
    messages = [*HELLO, {"role": "assistant", "content": "1, 2,"}]
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    given = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    own = tiny.run({"messages": messages, "sampling_params": given} | goes_on)
    anew = tiny.run({"messages": messages, "sampling_params": given, "add_generation_prompt": True})
    theirs = tiny.run(chat(messages=messages, **given, **goes_on))

    assert text(own) == theirs.done[-1].value["output"][0]["choices"][0]["message"]["content"]
    assert prompt_tokens(own) == prompt_tokens(theirs) < prompt_tokens(anew)
    assert 400 == error(tiny.run({"messages": messages}))["code"]


def test_the_same_request_id_twice(tiny: Served) -> None:
    """Two jobs whose bodies name one request id are answered each with its own text."""
    greedy = {"temperature": 0, "ignore_eos": True, "max_tokens": 60, "request_id": "x"}
    bodies = [chat(**greedy, messages=[{"role": "user", "content": word}]) for word in "ab"]
    alone = [tiny.run(body).done[-1].value["output"][0]["choices"] for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        records = list(pool.map(tiny.run, bodies))
    together = [record.done[-1].value["output"][0]["choices"] for record in records]

    assert alone == together


def test_cancelling_one_of_two_with_one_request_id(tiny: Served) -> None:
    """Stopping a job aborts that job alone, although another names the same request id."""
    long = {"temperature": 0, "ignore_eos": True, "max_tokens": 400, "request_id": "x"}
    first, second = (tiny.endpoint.submit(chat(**long, stream=True)) for _ in range(2))
    wait_until(lambda: all(tiny.endpoint.record(one).stream for one in (first, second)))
    cancel(tiny, first)
    record = tiny.endpoint.wait_for_end(second, 60)

    assert Status.COMPLETED == record.status
    assert '"finish_reason":"length"' in "".join(post.value for post in record.stream)
