"""The native dialect through the real SDK and a real engine."""

import json

import pytest

from local_endpoint import Record, Status
from served import Served, text

pytestmark = pytest.mark.timeout(300)


def output(record: Record) -> list[dict[str, object]]:
    return record.done[-1].value["output"]


def failure(record: Record) -> dict[str, object]:
    return json.loads(record.done[-1].value["error"])["error"]


GREEDY = {"temperature": 0, "max_tokens": 20}


def test_the_reply_has_the_old_shape(tiny: Served) -> None:
    """A job without stream gives one yield: one text a choice, and the usage in tokens."""
    (reply,) = output(tiny.run({"prompt": "Hello", "sampling_params": GREEDY}))
    tokens = reply["choices"][0].pop("tokens")

    assert {"choices": [{"finish_reason": "length"}], "usage": {"input": 3, "output": 20}} == reply
    assert (1, str) == (len(tokens), type(tokens[0]))


def test_streaming_gives_the_same_text(tiny: Served) -> None:
    """What a streaming job posts, what its status holds and what a plain job gives is one text."""
    given = {"prompt": "Hello", "sampling_params": GREEDY}
    plain, stream = tiny.run(given), tiny.run(given | {"stream": True})
    posted = [token for post in stream.stream for token in post.value["choices"][0]["tokens"]]

    assert text(plain) == text(stream) == "".join(posted)
    assert [1, 4, 13, 20] == [post.value["usage"]["output"] for post in stream.stream]


def test_several_prompts_and_sequences(tiny: Served) -> None:
    """Choices are in the order prompt by prompt, each with its n; an idle one is an empty list."""
    given = {
        "prompt": ["Hello", [5, 6, 7]],
        "sampling_params": {"n": 2, "max_tokens": 6, "ignore_eos": True},
        "stream": True,
    }
    record = tiny.run(given)
    shapes = {len(post.value["choices"]) for post in record.stream}
    ends = [choice.get("finish_reason") for choice in record.stream[-1].value["choices"]]
    written = [
        sum(len(post.value["choices"][choice]["tokens"]) for post in record.stream)
        for choice in range(4)
    ]

    assert {4} == shapes
    assert "length" in ends
    assert [6, 6, 6, 6] == written
    assert {"input": 6, "output": 24} == record.stream[-1].value["usage"]


def test_several_prompts_without_a_stream_are_one_yield(tiny: Served) -> None:
    """Without stream everything comes in one yield, though the prompts end at different times."""
    prompts = ["Hello", "Hello there, how are you?", [5, 6, 7]]
    params = {"max_tokens": 30, "n": 2, "temperature": 1.0}
    (reply,) = output(tiny.run({"prompt": prompts, "sampling_params": params}))

    assert [1] * 6 == [len(choice["tokens"]) for choice in reply["choices"]]
    assert all("finish_reason" in choice for choice in reply["choices"])


def test_messages_override_the_prompt(tiny: Served) -> None:
    """`messages` win over `prompt`, and `apply_chat_template` makes a prompt one user message."""
    messages = [{"role": "user", "content": "Hello"}]
    texts = {
        text(tiny.run({**given, "sampling_params": GREEDY}))
        for given in (
            {"messages": messages},
            {"messages": messages, "prompt": "something else"},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
            {"prompt": "Hello", "apply_chat_template": True},
            {"prompt": "<|user|>Hello<|end|><|assistant|>"},
        )
    }

    assert 1 == len(texts)


def test_an_adapter_is_named_by_model(tiny: Served) -> None:
    """`model` chooses an adapter on every path, and its greedy text is another than the base's."""
    given = {"prompt": "Hello", "sampling_params": GREEDY}
    base, adapted = (text(tiny.run({**given, "model": name})) for name in ("tiny", "adapter"))
    completion = tiny.client.completions.create(model="adapter", prompt="Hello", **GREEDY)

    assert base == text(tiny.run(given))
    assert base != adapted
    assert adapted == completion.choices[0].text


@pytest.mark.parametrize("given", [None, {}, {"max_tokens": None}])
def test_the_default_length(tiny: Served, given: object) -> None:
    """Without max_tokens an answer has 100 tokens, not vLLM's 16."""
    params = (given or {}) | {"ignore_eos": True}
    (reply,) = output(tiny.run({"prompt": "Hello", "sampling_params": params}))

    assert 100 == reply["usage"]["output"]


def test_the_default_length_is_a_variable_and_ends_with_the_context(unusual: Served) -> None:
    """DEFAULT_MAX_TOKENS sets the default, and no default goes beyond the context."""
    one = output(unusual.run({"prompt": "Hello", "sampling_params": {"ignore_eos": True}}))
    full = output(unusual.run({"prompt": [9] * 60, "sampling_params": {"ignore_eos": True}}))

    assert (7, 4) == (one[0]["usage"]["output"], full[0]["usage"]["output"])


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "words"),
    [(64, 10, "64"), (65, 10, "64"), (500, 10, "64"), (63, 1000, "64")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_too_long(
    unusual: Served, prompt_tokens: int, max_tokens: int, words: str, stream: bool
) -> None:
    """What does not fit the context fails with its numbers, and is never an empty success."""
    given = {
        "prompt": [9] * prompt_tokens,
        "sampling_params": {"max_tokens": max_tokens},
        "stream": stream,
    }
    record = unusual.run(given)

    assert Status.FAILED == record.status
    assert words in failure(record)["message"]


def test_the_last_place_of_the_context(unusual: Served) -> None:
    """One free place is filled with one token, and the reason says that it was the length."""
    params = {"max_tokens": 10, "ignore_eos": True}
    (reply,) = output(unusual.run({"prompt": [9] * 63, "sampling_params": params}))

    assert {"input": 63, "output": 1} == reply["usage"]
    assert "length" == reply["choices"][0]["finish_reason"]


def test_stop_strings(smollm2: Served) -> None:
    """A stop string ends the text before it, though it spans tokens, and never leaks in part."""
    given = {"prompt": "The capital of France is", "sampling_params": GREEDY}
    whole = text(smollm2.run(given))
    stop = whole[10:16]
    for params, expected in (
        ({"stop": stop}, whole[: whole.index(stop)]),
        ({"stop": [stop, "never"]}, whole[: whole.index(stop)]),
        (
            {"stop": stop, "include_stop_str_in_output": True},
            whole[: whole.index(stop)] + stop,
        ),
    ):
        for stream in (False, True):
            record = smollm2.run({**given, "sampling_params": GREEDY | params, "stream": stream})

            assert expected == text(record)
            assert stop == output(record)[-1]["choices"][0]["stop_reason"]


def test_logprobs(smollm2: Served) -> None:
    """Log-probabilities come when asked for, one entry a token, as strict JSON."""
    params = {"max_tokens": 3, "logprobs": 2, "prompt_logprobs": 1, "ignore_eos": True}
    (reply,) = output(smollm2.run({"prompt": "Hello", "sampling_params": params}))
    choice = reply["choices"][0]

    assert 3 == len(choice["logprobs"])
    assert {"token_id", "token", "logprob", "top"} == set(choice["logprobs"][0])
    assert [None] == choice["prompt_logprobs"][:1]


BAD = [
    ({}, "openai_route"),
    ({"message": "x"}, "'messages'"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 123}, "prompt must be"),
    ({"prompt": ""}, "prompt must be"),
    ({"prompt": []}, "prompt must be"),
    ({"messages": []}, "messages must be"),
    ({"messages": "x"}, "messages must be"),
    ({"messages": [[{"role": "user", "content": "x"}]]}, "messages must be"),
    ("a string", "must be an object"),
    ([1], "must be an object"),
    (None, "must be an object"),
    ({"prompt": "x", "sampling_parms": {}}, "'sampling_params'"),
    ({"prompt": "x", "temperature": 0, "sampling_params": {"temperature": 1}}, "contradict"),
    ({"prompt": "x", "sampling_params": "hot"}, "sampling_params must be an object"),
    ({"prompt": "x", "sampling_params": {"max_tokens": "many"}}, "max_tokens"),
    ({"prompt": "x", "sampling_params": {"max_tokens": 0}}, "max_tokens"),
    ({"prompt": "x", "sampling_params": {"temprature": 1}}, "'temperature'"),
    ({"prompt": "x", "sampling_params": {"temperature": -1}}, "temperature"),
    ({"prompt": "x", "sampling_params": {"top_p": 1.5}}, "top_p"),
    ({"prompt": "x", "sampling_params": {"stop": [1]}}, "stop"),
    ({"prompt": "x", "sampling_params": {"stop": ""}}, "stop"),
    ({"prompt": "x", "sampling_params": {"extra_args": {"a": 1}}}, "extra_args"),
    ({"prompt": "x", "sampling_params": {"best_of": 1, "n": 2}}, "best_of"),
    ({"prompt": ["fine", [99999]]}, "vocabulary"),
    ({"prompt": [2**63], "sampling_params": {"num_beams": 2}}, "vocabulary"),
    ({"prompt": "half a pair: \ud83d"}, "surrogate"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": "x", "model": "nope"}, "adapter"),
    ({"prompt": "x", "model": 5}, "model must be"),
    ({"prompt": "x", "stream": "perhaps"}, "stream"),
    ({"prompt": "x", "max_batch_size": 0}, "max_batch_size"),
    ({"prompt": "x", "min_batch_size": 10**400}, "min_batch_size"),
    ({"prompt": "x", "sampling_params": {"seed": 2**64}}, "seed"),
    ({"messages": [{"role": None, "content": "x"}]}, "messages must be"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages must be"),
    (
        {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"messages": 1}},
        '"messages"',
    ),
    (
        {"prompt": "x", "sampling_params": {"structured_outputs": {"grammar": "root ::= root"}}},
        "rammar",
    ),
    ({"prompt": "x", "min_batch_size": 9, "max_batch_size": 3}, "min_batch_size"),
    ({"prompt": "x", "batch_size_growth_factor": 0.5}, "batch_size_growth_factor"),
    ({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": 1}, "object"),
]


@pytest.mark.parametrize(("given", "words"), BAD)
def test_bad_inputs(tiny: Served, given: object, words: str) -> None:
    """A bad input fails its own job with a sentence, as JSON text of the one shape."""
    record = tiny.run(given)
    error = failure(record)

    assert Status.FAILED == record.status
    assert {"message", "type", "param", "code"} == set(error)
    assert words in error["message"]


def test_the_next_job_is_served(tiny: Served) -> None:
    """After a list of bad inputs the worker answers as before."""
    for given, _ in BAD[:5]:
        tiny.run(given)

    assert Status.COMPLETED == tiny.run({"prompt": "Hello"}).status


def test_a_false_that_is_text_does_not_stream(tiny: Served) -> None:
    """`"stream": "false"` is no stream: forms send text."""
    record = tiny.run({"prompt": "Hello", "stream": "false", "sampling_params": GREEDY})

    assert 1 == len(record.stream)
