"""Hugging Face's dialect: its parameters become the native path's, and native yields its events."""

from typing import Any

import pytest

from worker.batching import BatchSizes
from worker.dialects.huggingface import Generation, HuggingFace
from worker.errors import RequestError
from worker.facts import Limits
from worker.request import NativeRequest, RouteRequest, read

SIZES = BatchSizes()
SCHEMA = {"type": "object"}


def talk(body: Any, path: str = "/") -> Generation:
    return HuggingFace().read(RouteRequest("job-1", SIZES, path, None, body), Limits())


def asked(body: Any, path: str = "/") -> NativeRequest:
    request = talk(body, path).asked
    assert isinstance(request, NativeRequest)
    return request


def said(*tokens: tuple[int, str], text: str, **more: Any) -> dict[str, Any]:
    """Return a native yield of one choice with the scores of its tokens."""
    scores = [
        {"token_id": one, "token": token, "logprob": -1.0, "top": []} for one, token in tokens
    ]
    ids = [one for one, _ in tokens]
    choice = {"tokens": [text], "token_ids": ids, "logprobs": scores, **more}
    return {"choices": [choice], "usage": {"input": 3, "output": len(ids)}}


PARAMETERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"do_sample": False}),
    ({"temperature": None, "stop": []}, {"do_sample": False}),
    ({"do_sample": True}, {"do_sample": True}),
    # As in text-generation-inference: whoever warps draws.
    ({"do_sample": False, "temperature": 0.5}, {"do_sample": True, "temperature": 0.5}),
    ({"temperature": 1.0, "top_p": 1.0}, {"do_sample": False, "temperature": 1.0, "top_p": 1.0}),
    ({"stop": ["a"]}, {"do_sample": False, "stop_strings": ["a"]}),
    ({"stop_sequences": ["a"]}, {"do_sample": False, "stop_strings": ["a"]}),
    (
        {"truncate": 5},
        {"do_sample": False, "truncate_prompt_tokens": 5, "truncation_side": "left"},
    ),
    ({"watermark": False}, {"do_sample": False}),
    ({"watermark": True}, {"do_sample": False, "watermarking_config": {}}),
    (
        {"grammar": {"type": "json", "value": SCHEMA}},
        {"do_sample": False, "guided_json": SCHEMA},
    ),
    ({"grammar": {"type": "regex", "value": "a+"}}, {"do_sample": False, "guided_regex": "a+"}),
    (
        {"grammar": {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}},
        {"do_sample": False, "guided_json": SCHEMA},
    ),
    (
        {"details": True, "top_n_tokens": 2},
        {"do_sample": False, "return_token_ids": True, "logprobs": 2},
    ),
    (
        {"details": True, "decoder_input_details": True, "num_beams": 2},
        {"do_sample": False, "return_token_ids": True, "prompt_logprobs": 0, "num_beams": 2},
    ),
    ({"best_of": 2, "do_sample": True}, {"do_sample": True, "best_of": 2}),
    (
        {"best_of": 2, "do_sample": True, "details": True},
        {"do_sample": True, "return_token_ids": True, "logprobs": 0, "n": 2},
    ),
    (
        {"best_of": 3, "n": 2, "do_sample": True, "details": True},
        {"do_sample": True, "return_token_ids": True, "logprobs": 0, "n": 2, "best_of": 3},
    ),
    ({"no_repeat_ngram_size": 3}, {"do_sample": False, "no_repeat_ngram_size": 3}),
]


@pytest.mark.parametrize(("given", "expected"), PARAMETERS)
def test_parameters(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each parameter has its place among the native ones."""
    assert expected == asked({"inputs": "a", "parameters": given}).sampling_params


def test_inputs() -> None:
    """A text, texts and a conversation are prompts and messages, and an adapter is the model."""
    messages = [{"role": "user", "content": "a"}]

    assert ("a",) == asked({"inputs": "a", "options": {"wait_for_model": True}}).prompts
    assert ("a", "b") == asked({"inputs": ["a", "b"]}).prompts
    assert messages == asked({"inputs": messages}).messages
    assert "x" == asked({"inputs": "a", "parameters": {"adapter_id": "x"}}).model


def test_a_bare_job() -> None:
    """A job with inputs is what a client posts to the root."""
    bare = read({"id": "job-1", "input": {"inputs": "a", "stream": True}}, SIZES)
    route = read({"id": "job-1", "input": {"route": "/generate_stream", "body": {}}}, SIZES)

    assert isinstance(bare, RouteRequest)
    assert ("/", True, "huggingface") == (bare.path, bare.stream, bare.dialect)
    assert (True, "huggingface") == (route.stream, route.dialect)


def test_a_stream() -> None:
    """Every token is an event, however many come at once; the last holds the whole text."""
    one = talk({"inputs": "a"}, "/generate_stream")
    events = [
        *one.events(said((5, "x"), text="x")),
        *one.events(said((6, "y"), (7, "z"), text="yz")),
        *one.events(said((8, "\ufffd"), (9, "\ufffd"), text="é")),
        *one.events(said((2, "</s>"), text="", finish_reason="stop")),
    ]
    tokens = [event["token"] for event in events]

    assert ["x", "y", "z", "", "é", "</s>"] == [token["text"] for token in tokens]
    assert [False] * 5 + [True] == [token["special"] for token in tokens]
    assert [1, 2, 3, 4, 5, 6] == [event["index"] for event in events]
    assert [None] * 5 + ["xyzé"] == [event["generated_text"] for event in events]
    assert {
        "finish_reason": "eos_token",
        "generated_tokens": 6,
        "seed": None,
        "input_length": 3,
    } == events[-1]["details"]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ({"finish_reason": "length"}, "length"),
        ({"finish_reason": "stop"}, "eos_token"),
        ({"finish_reason": "stop", "stop_reason": "x"}, "stop_sequence"),
        ({"finish_reason": "max_time"}, "length"),
    ],
)
def test_why_it_ended(end: dict[str, Any], reason: str) -> None:
    """vLLM's reasons have Hugging Face's names."""
    one = talk({"inputs": "a", "parameters": {"details": True}})
    (reply,) = one.whole(said((5, "x"), text="x", **end))

    assert reason == reply["details"]["finish_reason"]


def test_replies() -> None:
    """A reply is a list at the root and an object at /generate; texts have a list each."""
    answers = {"choices": [{"tokens": [one]} for one in "wxyz"], "usage": {}}
    two = {"return_full_text": True, "num_return_sequences": 2, "do_sample": True}
    messages = [{"role": "user", "content": "a"}]
    only = {"choices": answers["choices"][:1], "usage": {}}

    assert [{"generated_text": "w"}] == talk({"inputs": "a"}).whole(only)
    assert {"generated_text": "w"} == talk({"inputs": "a"}, "/generate").whole(only)
    assert [["aw", "ax"], ["by", "bz"]] == [
        [one["generated_text"] for one in each]
        for each in talk({"inputs": ["a", "b"], "parameters": two}).whole(answers)
    ]
    assert [{"generated_text": [*messages, {"role": "assistant", "content": "w"}]}] == talk(
        {"inputs": messages}
    ).whole(only)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, "object"),
        ({"inputs": ""}, "inputs must be"),
        ({"inputs": {"source_sentence": "a"}}, "inputs must be"),
        ({"inputs": "a", "parameters": []}, None),
        ({"inputs": "a", "parameters": [1]}, "parameters must be an object"),
        ({"inputs": "a", "paramters": {}}, "'parameters'"),
        ({"inputs": "a", "parameters": {"grammar": {"type": "x"}}}, "grammar must be"),
        ({"inputs": ["a", "b"], "stream": True}, "one text"),
    ],
)
def test_what_is_refused(body: Any, words: str | None) -> None:
    """What is of no known form is refused with a sentence; an empty list of nothing is nothing."""
    if words is None:
        talk(body)
        return
    with pytest.raises(RequestError, match=words):
        talk(body)


def test_the_best_of_several() -> None:
    """The likeliest answer is the reply, and the others are told in its details."""
    params = {"best_of": 2, "temperature": 0.5, "details": True}
    one = talk({"inputs": ["a", "b"], "parameters": params})
    answers = [said((5, text), text=text)["choices"][0] for text in "wxyz"]
    for answer, logprob in zip(answers, (-2.0, -1.0, -1.0, -2.0), strict=True):
        answer["logprobs"][0]["logprob"] = logprob
    replies = one.whole({"choices": answers, "usage": {}})

    assert [["x"], ["y"]] == [[best["generated_text"] for best in each] for each in replies]
    assert [["w"], ["z"]] == [
        [other["generated_text"] for other in best["details"]["best_of_sequences"]]
        for (best,) in replies
    ]


def test_a_stream_of_several() -> None:
    """A stream has one answer, as in text-generation-inference."""
    one = talk({"inputs": "a", "stream": True})
    answer = said((5, "x"), text="x")
    with pytest.raises(RequestError, match="one answer"):
        one.events(answer | {"choices": answer["choices"] * 2})


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, "validation"), (404, None), (401, None), (503, "overloaded"), (500, "generation")],
)
def test_errors(code: int, kind: str | None) -> None:
    """An error has its type where text-generation-inference knows one."""
    error = HuggingFace().error(RequestError("No.", code=code))

    assert {"error": "No."} | ({"error_type": kind} if kind else {}) == error.body()
    assert code == error.code
