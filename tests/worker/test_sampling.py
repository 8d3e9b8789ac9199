"""A job's sampling parameters become vLLM's own value, or one sentence that names the parameter."""

import copy
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from vllm.sampling_params import RequestOutputKind, SamplingParams

from worker.errors import RequestError
from worker.sampling import names, read

INTERNAL = {
    "extra_args",
    "output_kind",
    "output_text_buffer_length",
    "routed_experts_prompt_start",
    "skip_clone",
    "trace_decode_token_ids",
}
# A legal value, different from vLLM's default, for each parameter there is.
VALUES: dict[str, Any] = {
    "allowed_token_ids": [1, 2],
    "bad_words": ["damn"],
    "detokenize": False,
    "flat_logprobs": True,
    "frequency_penalty": 0.5,
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "logit_bias": {"5": -1.5},
    "logprob_token_ids": [3, 4],
    "logprobs": 2,
    "max_tokens": 7,
    "min_p": 0.1,
    "min_tokens": 3,
    "n": 2,
    "presence_penalty": -0.5,
    "prompt_logprob_start": 1,
    "prompt_logprob_token_ids": [[1, 2]],
    "prompt_logprobs": 1,
    "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
    "repetition_penalty": 1.3,
    "seed": 42,
    "skip_reading_prefix_cache": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "stop": ["END"],
    "stop_token_ids": [9],
    "stream_interval": 4,
    "structured_outputs": {"regex": "[a-z]+"},
    "temperature": 0.7,
    "thinking_token_budget": 64,
    "top_k": 20,
    "top_p": 0.8,
    "watermarking": False,
}


def sample(
    given: dict[str, Any],
    defaults: dict[str, Any] | None = None,
    *,
    default_max_tokens: int = 100,
    stream: bool = False,
) -> SamplingParams:
    return read(
        given, defaults=defaults or {}, default_max_tokens=default_max_tokens, stream=stream
    )


def plain(value: Any) -> Any:
    """Turn a field of SamplingParams back into what a job would say."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if hasattr(value, "__dataclass_fields__"):
        return {k: v for k, v in vars(value).items() if v and not k.startswith("_")}
    if isinstance(value, dict):
        return {str(k): v for k, v in value.items()}
    return value


def test_every_field_has_a_value_here() -> None:
    """A job may use every field of vLLM's but the internal ones: a new vLLM cannot hide one."""
    fields = {f.name for f in msgspec.structs.fields(SamplingParams) if f.name[0] != "_"}

    assert set(VALUES) == names()
    assert names() == fields - INTERNAL


@pytest.mark.parametrize("name", VALUES)
def test_every_field_arrives(name: str) -> None:
    """Each parameter reaches vLLM with the value that the job gave."""
    params = sample({name: VALUES[name]})

    assert VALUES[name] == plain(getattr(params, name))


@pytest.mark.parametrize("name", VALUES)
def test_null_is_left_out(name: str) -> None:
    """A parameter given as null is as if it were not given at all."""
    assert sample({}) == sample({name: None})


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"stop": "END"}, "stop", ["END"]),
        ({"max_tokens": "5"}, "max_tokens", 5),
        ({"max_tokens": 5.0}, "max_tokens", 5),
        ({"temperature": "0.5"}, "temperature", 0.5),
        ({"temperature": 0}, "temperature", 0.0),
        ({"ignore_eos": "true"}, "ignore_eos", True),
        ({"ignore_eos": 0}, "ignore_eos", False),
        ({"ignore_eos": "false"}, "ignore_eos", False),
        ({"seed": -1}, "seed", None),
        ({"top_k": -1}, "top_k", -1),
        ({"logprobs": True}, "logprobs", 1),
        ({"logprobs": 0}, "logprobs", 0),
    ],
)
def test_spellings(given: dict[str, Any], field: str, value: Any) -> None:
    """Numbers and booleans that a form sent as text, and vLLM's own short forms, mean the same."""
    assert value == getattr(sample(given), field)


@pytest.mark.parametrize(
    ("given", "fragment"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0."),
        ({"max_tokens": -1}, "max_tokens must be at least 1, got -1."),
        ({"max_tokens": 5.5}, "sampling_params.max_tokens=5.5: Input should be a valid integer"),
        ({"max_tokens": "many"}, 'sampling_params.max_tokens="many": Input should be'),
        ({"max_tokens": []}, "sampling_params.max_tokens=[]: Input should be a valid integer"),
        ({"temperature": -1}, "temperature must be non-negative"),
        ({"temperature": 2.1}, "temperature must be in [0, 2], got 2.1."),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"temperature": "hot"}, 'sampling_params.temperature="hot": Input should be a valid num'),
        ({"top_p": 0}, "top_p must be in (0, 1]"),
        ({"top_p": 1.1}, "top_p must be in (0, 1]"),
        ({"top_k": -2}, "top_k must be 0 (disable), or at least 1, got -2."),
        ({"min_p": 1.5}, "min_p must be in [0, 1]"),
        ({"n": 0}, "n must be at least 1, got 0."),
        ({"n": 10**6}, "n must be at most 16384"),
        ({"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2."),
        ({"repetition_penalty": 0}, "repetition_penalty must be greater than zero"),
        ({"presence_penalty": 3}, "presence_penalty must be in [-2, 2]"),
        ({"frequency_penalty": -3}, "frequency_penalty must be in [-2, 2]"),
        ({"min_tokens": -1}, "min_tokens must be greater than or equal to 0"),
        ({"min_tokens": 5, "max_tokens": 3}, "min_tokens must be less than or equal to max_tokens"),
        ({"logprobs": -2}, "logprobs must be non-negative or -1"),
        ({"prompt_logprobs": -5}, "prompt_logprobs must be non-negative or -1"),
        ({"stop": ""}, "stop cannot contain an empty string."),
        ({"stop": [1]}, "sampling_params.stop=[1]: Input should be a valid string."),
        ({"stop": "a", "detokenize": False}, "stop strings are only supported when detokenize"),
        ({"stop_token_ids": "7"}, 'sampling_params.stop_token_ids="7": Input should be a valid li'),
        ({"bad_words": ["", "a"]}, "bad_words cannot contain an empty string."),
        ({"logit_bias": {"x": 1}}, 'sampling_params.logit_bias={"x": 1}: Input should be a valid'),
        ({"logit_bias": [1]}, "sampling_params.logit_bias=[1]: Input should be a valid dict"),
        ({"ignore_eos": "maybe"}, 'sampling_params.ignore_eos="maybe": Input should be a valid bo'),
        ({"stream_interval": 0}, "stream_interval must be at least 1"),
        ({"thinking_token_budget": -5}, "thinking_token_budget` must be a non-negative integer"),
        ({"prompt_logprob_token_ids": [1]}, "sampling_params.prompt_logprob_token_ids=[1]: Input"),
        ({"structured_outputs": "x"}, 'sampling_params.structured_outputs="x": Input should be'),
        ({"structured_outputs": {}}, "constraint but none are specified."),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "but multiple are specified."),
        ({"structured_outputs": {"regexp": "a"}}, "no field \"regexp\". Did you mean 'regex'?"),
        ({"structured_outputs": {"_backend": "x"}}, 'has no field "_backend". Known: json, regex'),
        ({"structured_outputs": {"regex": "a", "x": 1}}, 'structured_outputs has no field "x".'),
        ({"repetition_detection": {"max_pattern_size": 3}}, "min_count must be >= 2"),
        ({"repetition_detection": {"count": 3}}, 'repetition_detection has no field "count".'),
        ({"temprature": 1}, "no parameter \"temprature\". Did you mean 'temperature'?"),
        ({"Temperature": 1}, "no parameter \"Temperature\". Did you mean 'temperature'?"),
        ({"temprature": None}, "no parameter \"temprature\". Did you mean 'temperature'?"),
        ({"max_new_tokens": 5}, "no parameter \"max_new_tokens\". Did you mean 'max_tokens'?"),
        ({"foo": 1}, 'sampling_params has no parameter "foo". Known: allowed_token_ids, bad_words'),
        ({"": 1}, 'sampling_params has no parameter "". Known: '),
        ({"extra_args": {"kv_transfer_params": {}}}, 'no parameter "extra_args". Known: '),
        ({"output_kind": 1}, 'no parameter "output_kind". Known: '),
        ({"skip_clone": True}, 'no parameter "skip_clone". Known: '),
        ({"_eos_token_id": 3}, 'no parameter "_eos_token_id".'),
        ({"logits_processors": ["x"]}, 'no parameter "logits_processors". Known: '),
        ({"best_of": 2}, "best_of=2 differs from n=1"),
        ({"best_of": 3, "n": 2}, "best_of=3 differs from n=2"),
        ({"best_of": 2, "n": None}, "best_of=2 differs from n=1"),
        ({"best_of": "1"}, 'best_of="1" differs from n=1'),
    ],
)
def test_wrong_parameters(given: dict[str, Any], fragment: str) -> None:
    """A wrong parameter is refused with one sentence that quotes it, and is named as `param`."""
    with pytest.raises(RequestError) as refused:
        sample(given)

    message = refused.value.message
    assert fragment in message
    assert (400, True) == (refused.value.code, message[-1] in ".?")
    assert "\n" not in message
    assert "{'" not in message
    assert len(message) < 800


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"min_p": 5}, "min_p"),
        ({"thinking_token_budget": -5}, "thinking_token_budget"),
        ({"temprature": 1}, "temprature"),
        ({"best_of": 2}, "best_of"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs"),
    ],
)
def test_param(given: dict[str, Any], param: str) -> None:
    """The error's `param` is the parameter that is wrong, as OpenAI's clients expect."""
    with pytest.raises(RequestError) as refused:
        sample(given)

    assert param == refused.value.param


def test_a_long_value_is_quoted_short() -> None:
    """A value of a megabyte does not make an error of a megabyte."""
    with pytest.raises(RequestError) as refused:
        sample({"bad_words": "x" * 1_000_000})

    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    "given", [{"best_of": 1}, {"best_of": None}, {"best_of": 1, "n": None}, {"best_of": 1, "n": 1}]
)
def test_best_of_that_ranks_nothing(given: dict[str, Any]) -> None:
    """`best_of` is accepted where it asks for nothing beyond `n`, as many old clients send it."""
    assert sample({}) == sample(given)


def test_best_of_equal_to_n() -> None:
    """As many as are asked for is no choice among more."""
    assert sample({"n": 3}) == sample({"n": 3, "best_of": 3})


@pytest.mark.parametrize(
    ("given", "defaults", "max_tokens"),
    [
        ({}, {}, 100),
        ({"max_tokens": None}, {}, 100),
        ({"max_tokens": 5}, {}, 5),
        ({}, {"max_tokens": 7}, 7),
        ({"max_tokens": None}, {"max_tokens": 7}, 7),
        ({"max_tokens": 5}, {"max_tokens": 7}, 5),
        ({"max_tokens": 5000}, {"max_tokens": 7}, 5000),
        ({"min_tokens": 200}, {}, 200),
        ({"min_tokens": "200"}, {}, 200),
        ({"min_tokens": 20}, {}, 100),
    ],
)
def test_length(given: dict[str, Any], defaults: dict[str, Any], max_tokens: int) -> None:
    """The length is the job's, else the model's, else ours, and ours never below min_tokens."""
    assert max_tokens == sample(given, defaults).max_tokens


@pytest.mark.parametrize(
    ("given", "defaults", "expected"),
    [
        ({}, {}, (1.0, 0, 1.0)),
        ({}, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}, (0.6, 20, 0.95)),
        ({"temperature": 0.2}, {"temperature": 0.6, "top_k": 20}, (0.2, 20, 1.0)),
        ({"temperature": None, "top_k": 0}, {"temperature": 0.6, "top_k": 20}, (0.6, 0, 1.0)),
    ],
)
def test_defaults(
    given: dict[str, Any], defaults: dict[str, Any], expected: tuple[float, int, float]
) -> None:
    """What the job leaves out comes from the model's generation config, then from vLLM."""
    params = sample(given, defaults)

    assert expected == (params.temperature, params.top_k, params.top_p)


@pytest.mark.parametrize(
    ("stream", "kind"), [(True, RequestOutputKind.DELTA), (False, RequestOutputKind.FINAL_ONLY)]
)
def test_output_kind(stream: bool, kind: RequestOutputKind) -> None:
    """A stream asks vLLM for what is new, anything else for the whole, once."""
    assert kind == sample({}, stream=stream).output_kind


@pytest.mark.parametrize("given", [VALUES | {"detokenize": True}, {"best_of": 1}, {"foo": 1}, {}])
def test_nothing_given_is_changed(given: dict[str, Any]) -> None:
    """Neither the job's parameters nor the model's defaults are ever written to."""
    defaults = {"temperature": 0.6, "structured_outputs": {"regex": "a"}, "stop": ["x"]}
    before = copy.deepcopy((given, defaults))
    try:
        params = sample(given, defaults)
        params.stop.append("later")  # as vLLM does with what it was given
    except RequestError:
        pass

    assert before == (given, defaults)


def test_values_arrive_from_json() -> None:
    """All parameters together survive the way a job travels, as JSON."""
    given = json.loads(json.dumps(VALUES | {"detokenize": True}))

    params = sample(given)

    assert given == {name: plain(getattr(params, name)) for name in VALUES}
