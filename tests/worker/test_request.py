"""What users send as a job's input: read into one frozen value, or refused with one sentence."""

import copy
import dataclasses
import json
import time
from typing import Any

import pytest

from worker.batching import BatchSizes
from worker.errors import RequestError
from worker.facts import Limits
from worker.request import NativeRequest, Request, RouteRequest, outline, read

SIZES = BatchSizes(min=1, max=50, growth=3.0, max_delay_s=0.1)
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
SHAPES = "The input must be an object of one of these shapes: "
MESSAGES = "messages must be one conversation: a list of at least one message, each an object"
PROMPT = "prompt must be a text, a list of token ids, or a list of either, and none of them empty."


def ask(given: Any, sizes: BatchSizes = SIZES) -> Request:
    return read({"id": "job-1", "input": given}, sizes)


def native(given: dict[str, Any], sizes: BatchSizes = SIZES) -> NativeRequest:
    request = ask(given, sizes)
    assert isinstance(request, NativeRequest)
    return request


def route(given: dict[str, Any]) -> RouteRequest:
    request = ask(given)
    assert isinstance(request, RouteRequest)
    return request


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"prompt": "Hi"}, {"prompts": ("Hi",)}),
        ({"prompt": ["a", "b"]}, {"prompts": ("a", "b")}),
        ({"prompt": [5, 6, 0]}, {"prompts": ([5, 6, 0],)}),
        ({"prompt": [[5, 6], [7]]}, {"prompts": ([5, 6], [7])}),
        ({"prompt": ["a", [7]]}, {"prompts": ("a", [7])}),
        ({"messages": HELLO}, {"messages": HELLO}),
        ({"messages": HELLO, "prompt": "Hi"}, {"messages": HELLO}),
        ({"messages": HELLO, "prompt": 123}, {"messages": HELLO}),
        ({"messages": None, "prompt": "Hi"}, {"prompts": ("Hi",)}),
        ({"messages": HELLO, "prompt": None}, {"messages": HELLO}),
        ({"messages": HELLO, "apply_chat_template": False}, {"messages": HELLO}),
        ({"prompt": "Hello", "apply_chat_template": True}, {"messages": HELLO}),
        ({"prompt": ["Hello"], "apply_chat_template": "true"}, {"messages": HELLO}),
        ({"prompt": "Hi", "apply_chat_template": "false"}, {"prompts": ("Hi",)}),
        ({"prompt": "Hi", "model": "adapter"}, {"prompts": ("Hi",), "model": "adapter"}),
        ({"prompt": "Hi", "model": ""}, {"prompts": ("Hi",)}),
        ({"prompt": "Hi", "model": None}, {"prompts": ("Hi",)}),
        (
            {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}},
            {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}},
        ),
        (
            {"prompt": "Hi", "sampling_params": {"max_tokens": 5}},
            {"prompts": ("Hi",), "sampling_params": {"max_tokens": 5}},
        ),
        ({"prompt": "Hi", "sampling_params": None}, {"prompts": ("Hi",)}),
        ({"prompt": "Hi", "sampling_params": {}}, {"prompts": ("Hi",)}),
        ({"prompt": "😀 \x00 \u2028"}, {"prompts": ("😀 \x00 \u2028",)}),
    ],
)
def test_native_input(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """A prompt, several, or a conversation is read; messages go before a prompt."""
    wanted = NativeRequest("job-1", SIZES, stream=False, model=None)

    assert dataclasses.replace(wanted, **expected) == ask(given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"openai_route": CHAT, "openai_input": {"a": 1}}, (CHAT, None, {"a": 1})),
        ({"openai_route": "/v1/models"}, ("/v1/models", None, None)),
        ({"openai_route": "/v1/models", "openai_input": None}, ("/v1/models", None, None)),
        ({"openai_route": "/v1/models", "openai_input": {}}, ("/v1/models", None, {})),
        ({"openai_route": "v1/models"}, ("/v1/models", None, None)),
        ({"openai_route": "models"}, ("/models", None, None)),
        ({"openai_route": "/v1/models/"}, ("/v1/models/", None, None)),
        ({"openai_route": "/v1/responses/a?stream=1"}, ("/v1/responses/a?stream=1", None, None)),
        ({"route": "/tokenize", "body": {"prompt": "x"}}, ("/tokenize", None, {"prompt": "x"})),
        ({"route": "/health", "method": "get"}, ("/health", "GET", None)),
        ({"route": "/health", "method": None}, ("/health", None, None)),
        ({"route": "/x", "body": [1]}, ("/x", None, [1])),
    ],
)
def test_route_input(given: dict[str, Any], expected: tuple[str, str | None, Any]) -> None:
    """A route is read with its method and its body as they are, whatever the body is."""
    request = route(given)

    assert expected == (request.path, request.method, request.body)
    assert ("job-1", SIZES) == (request.job_id, request.sizes)


@pytest.mark.parametrize(
    ("value", "truth"),
    [
        *[(v, True) for v in (True, 1, "true", "True", "TRUE", "1", "yes", "on", "On", 1.0)],
        *[(v, False) for v in (False, 0, "false", "False", "0", "no", "off", "", None, 0.0)],
    ],
)
def test_booleans(value: Any, truth: bool) -> None:
    """A boolean of the job may be spelled as text, as forms do: "false" does not stream."""
    assert truth == native({"prompt": "x", "stream": value}).stream
    assert truth == bool(native({"prompt": "x", "apply_chat_template": value}).messages)
    assert truth == route({"openai_route": CHAT, "openai_input": {"stream": value}}).stream


@pytest.mark.parametrize("body", [None, {}, [], "stream", {"stream": "maybe"}, {"stream": [1]}])
def test_a_body_that_does_not_stream(body: Any) -> None:
    """A route's own body is vLLM's to judge: what is no boolean is no stream, and no error here."""
    assert not route({"openai_route": CHAT, "openai_input": body}).stream


@pytest.mark.parametrize(
    ("given", "fragment"),
    [
        ({}, SHAPES),
        (None, SHAPES),
        ("a string", SHAPES),
        ([], SHAPES),
        (5, SHAPES),
        ({"prompt": None}, SHAPES),
        ({"prompt": None, "messages": None, "stream": True}, SHAPES),
        ({"method": "GET"}, SHAPES),
        ({"message": "x"}, "unknown key \"message\". Did you mean 'messages'?"),
        ({"Prompt": "x"}, "unknown key \"Prompt\". Did you mean 'prompt'?"),
        ({"text": "x"}, 'unknown key "text".'),
        ({"openai_input": {"model": "x"}}, "openai_input needs openai_route beside it"),
        ({"openai_input": {}, "prompt": "x"}, "openai_input needs openai_route beside it"),
        ({"prompt": 123}, PROMPT),
        ({"prompt": ""}, PROMPT),
        ({"prompt": []}, PROMPT),
        ({"prompt": [""]}, PROMPT),
        ({"prompt": [[]]}, PROMPT),
        ({"prompt": ["a", None]}, PROMPT),
        ({"prompt": ["a", ""]}, PROMPT),
        ({"prompt": ["a", 5]}, PROMPT),
        ({"prompt": [True]}, PROMPT),
        ({"prompt": [1.5]}, PROMPT),
        ({"prompt": [-1]}, PROMPT),
        ({"prompt": [[1], [-1]]}, PROMPT),
        ({"prompt": [[["a"]]]}, PROMPT),
        ({"prompt": {"text": "a"}}, PROMPT),
        ({"prompt": False}, PROMPT),
        ({"messages": []}, MESSAGES),
        ({"messages": [], "prompt": "x"}, MESSAGES),
        ({"messages": "x"}, MESSAGES),
        ({"messages": ["x"]}, MESSAGES),
        ({"messages": HELLO[0]}, MESSAGES),
        ({"messages": [HELLO, HELLO]}, MESSAGES),
        ({"messages": [{"content": "no role"}]}, MESSAGES),
        ({"prompt": ["a", "b"], "apply_chat_template": True}, "so the prompt must be one text."),
        ({"prompt": [1], "apply_chat_template": True}, "so the prompt must be one text."),
        ({"prompt": "x", "stream": "maybe"}, 'stream="maybe" is neither true nor false.'),
        ({"prompt": "x", "stream": 2}, "stream=2 is neither true nor false."),
        ({"prompt": "x", "stream": []}, "stream=[] is neither true nor false."),
        ({"prompt": "x", "apply_chat_template": {}}, "apply_chat_template={} is neither true"),
        ({"prompt": "x", "sampling_params": []}, "sampling_params must be an object."),
        ({"prompt": "x", "sampling_params": "{}"}, "sampling_params must be an object."),
        ({"prompt": "x", "chat_template_kwargs": []}, "chat_template_kwargs must be an object."),
        ({"prompt": "x", "model": 5}, "model must be the name of a served model."),
        (
            {"prompt": "x", "temperature": 1, "sampling_params": {"temperature": 0}},
            "sampling_params.temperature=0 and temperature=1 contradict each other",
        ),
        ({"prompt": "x", "temprature": 1}, "Did you mean 'temperature'?"),
        ({"prompt": "x", "tempratur": 1}, 'anything else belongs in "sampling_params".'),
        ({"prompt": "x", "sampling_param": {}}, "Did you mean 'sampling_params'? Known: prompt"),
        ({"prompt": "x", "openai_route": CHAT}, 'anything else belongs in "openai_input".'),
        ({"prompt": "x", "route": "/x"}, 'unknown key "prompt". Known: route, method, body'),
        ({"openai_route": CHAT, "temperature": 1}, 'anything else belongs in "openai_input".'),
        ({"openai_route": CHAT, "openai_inptu": {}}, "Did you mean 'openai_input'?"),
        ({"route": "/x", "Body": {}}, "Did you mean 'body'?"),
        ({"route": "/x", "method": "PO ST"}, 'method="PO ST" is not an HTTP method'),
        ({"route": "/x", "method": ""}, 'method="" is not an HTTP method'),
        ({"route": "/x", "method": 5}, "method=5 is not an HTTP method"),
        ({"prompt": "\ud83d"}, "half of a surrogate pair"),
        ({"messages": [{"role": "user", "content": "\ude00"}]}, "half of a surrogate pair"),
        ({"openai_route": CHAT, "openai_input": {"\udc00": 1}}, "half of a surrogate pair"),
        ({"prompt": "x", "chat_template_kwargs": {"a": nested(5000)}}, "(MAX_INPUT_DEPTH)"),
    ],
)
def test_wrong_inputs(given: Any, fragment: str) -> None:
    """An input that is not understood fails with a sentence that says what would be."""
    with pytest.raises(RequestError) as refused:
        ask(given)

    assert fragment in refused.value.message
    assert "\n" not in refused.value.message
    json.loads(refused.value.text())


def test_no_input() -> None:
    """A job without an input is told the shapes that there are."""
    with pytest.raises(RequestError, match=SHAPES):
        read({"id": "job-1"}, SIZES)


@pytest.mark.parametrize(
    "path",
    [
        "http://elsewhere/v1/models",
        "https://elsewhere",
        "//elsewhere/v1/models",
        "/v1/../metrics",
        "..",
        "/v1/..",
        "\\\\elsewhere\\x",
        "/v1\\models",
        "/v1/mo dels",
        "/v1/models\nHost: elsewhere",
        "/v1/models\r\n\r\nGET /",
        "/v1/\x00",
        "",
        None,
        5,
        [],
        {"path": "/v1/models"},
    ],
)
@pytest.mark.parametrize("key", ["openai_route", "route"])
def test_a_route_is_a_path(key: str, path: Any) -> None:
    """A host, a way out of the path, or what is no text is refused as an unknown route is."""
    with pytest.raises(RequestError) as refused:
        ask({key: path})

    assert (404, key) == (refused.value.code, refused.value.param)
    assert 'is not a route: a route is a path, such as "/v1/models".' in refused.value.message


@pytest.mark.parametrize(
    ("given", "default", "expected"),
    [
        ({}, (1, 50, 3.0), (1, 50, 3.0)),
        ({"min_batch_size": None}, (1, 50, 3.0), (1, 50, 3.0)),
        ({"min_batch_size": 5}, (1, 50, 3.0), (5, 50, 3.0)),
        ({"max_batch_size": 7}, (1, 50, 3.0), (1, 7, 3.0)),
        ({"max_batch_size": 1}, (1, 50, 3.0), (1, 1, 3.0)),
        ({"max_batch_size": 4}, (10, 50, 3.0), (4, 4, 3.0)),
        ({"min_batch_size": 60}, (1, 50, 3.0), (60, 60, 3.0)),
        ({"min_batch_size": 60, "max_batch_size": 80}, (1, 50, 3.0), (60, 80, 3.0)),
        ({"batch_size_growth_factor": 1}, (1, 50, 3.0), (1, 50, 1)),
        ({"batch_size_growth_factor": 1.5}, (1, 50, 3.0), (1, 50, 1.5)),
        (
            {"min_batch_size": 2, "max_batch_size": 9, "batch_size_growth_factor": 2},
            (1, 50, 3.0),
            (2, 9, 2),
        ),
    ],
)
@pytest.mark.parametrize(
    "shape", [{"prompt": "x"}, {"messages": HELLO}, {"openai_route": CHAT}, {"route": "/x"}]
)
def test_batch_sizes(
    shape: dict[str, Any],
    given: dict[str, Any],
    default: tuple[int, int, float],
    expected: tuple[int, int, float],
) -> None:
    """Each shape of job may name batch sizes; where it names one bound, the other gives way."""
    sizes = ask(shape | given, BatchSizes(*default, max_delay_s=0.7)).sizes

    assert (*expected, 0.7) == (sizes.min, sizes.max, sizes.growth, sizes.max_delay_s)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"min_batch_size": 0}, "min_batch_size=0 is not a whole number from 1 to 1,000,000,000."),
        (
            {"max_batch_size": -1},
            "max_batch_size=-1 is not a whole number from 1 to 1,000,000,000.",
        ),
        (
            {"min_batch_size": "3"},
            'min_batch_size="3" is not a whole number from 1 to 1,000,000,000.',
        ),
        (
            {"min_batch_size": True},
            "min_batch_size=true is not a whole number from 1 to 1,000,000,000.",
        ),
        (
            {"max_batch_size": 2.0},
            "max_batch_size=2.0 is not a whole number from 1 to 1,000,000,000.",
        ),
        (
            {"max_batch_size": []},
            "max_batch_size=[] is not a whole number from 1 to 1,000,000,000.",
        ),
        (
            {"min_batch_size": 5, "max_batch_size": 2},
            "min_batch_size=5 is larger than max_batch_size=2.",
        ),
        (
            {"batch_size_growth_factor": 0.5},
            "batch_size_growth_factor=0.5 is not a number of at least 1.",
        ),
        (
            {"batch_size_growth_factor": 0},
            "batch_size_growth_factor=0 is not a number of at least 1.",
        ),
        (
            {"batch_size_growth_factor": "x"},
            'batch_size_growth_factor="x" is not a number of at least 1.',
        ),
        (
            {"batch_size_growth_factor": True},
            "batch_size_growth_factor=true is not a number of at least 1.",
        ),
        (
            {"batch_size_growth_factor": float("nan")},
            "batch_size_growth_factor=NaN is not a number of at least 1.",
        ),
    ],
)
def test_wrong_batch_sizes(given: dict[str, Any], sentence: str) -> None:
    """A batch size that makes no sense is refused, and never ends in a loop or a default."""
    with pytest.raises(RequestError) as refused:
        ask({"prompt": "x"} | given)

    assert sentence == refused.value.message
    assert refused.value.param in given


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": "x", "apply_chat_template": True, "sampling_params": {"max_tokens": None}},
        {"messages": HELLO, "stream": "true", "max_batch_size": 1},
        {"openai_route": "v1/chat/completions", "openai_input": {"messages": HELLO}},
        {"route": "/tokenize", "method": "post", "body": {"prompt": "x"}},
        {"prompt": ["a", [1]], "unknown": 1},
    ],
)
def test_the_job_is_not_changed(given: dict[str, Any]) -> None:
    """The caller's job is never written to, also where reading it fails."""
    job = {"id": "job-1", "input": copy.deepcopy(given), "webhook": "x"}
    try:
        request = read(job, SIZES)
        if isinstance(request, NativeRequest):
            request.sampling_params["max_tokens"] = 5
    except RequestError:
        pass

    assert {"id": "job-1", "input": given, "webhook": "x"} == job


def test_a_request_is_frozen() -> None:
    """A request is a value: no room can change it for the next."""
    request = ask({"prompt": "x"})

    with pytest.raises(dataclasses.FrozenInstanceError):
        request.job_id = "other"  # type: ignore[misc]


SMALL = Limits(
    max_input_depth=8, max_input_values=100, max_name_length=20, max_sequences=6, max_token_ids=9
)
CHAT_OF_20 = {"messages": [{"role": "user", "content": "x"}] * 34}


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        ({"prompt": "x", "chat_template_kwargs": {"a": nested(8)}}, "MAX_INPUT_DEPTH"),
        ({"openai_route": CHAT, "openai_input": {"a": nested(8)}}, "MAX_INPUT_DEPTH"),
        ({"route": "/x", "body": nested(9)}, "MAX_INPUT_DEPTH"),
        ({f"key{i}": 1 for i in range(101)}, "MAX_INPUT_VALUES"),
        (CHAT_OF_20, "MAX_INPUT_VALUES"),
        ({"openai_route": CHAT, "openai_input": CHAT_OF_20}, "MAX_INPUT_VALUES"),
        ({"prompt": [[1]] * 101}, "MAX_INPUT_VALUES"),
        ({"prompt": "x", "model": "m" * 21}, "MAX_NAME_LENGTH"),
        ({"openai_route": CHAT, "openai_input": {"model": "m" * 21}}, "MAX_NAME_LENGTH"),
        ({"route": "/x", "body": {"request_id": "m" * 21}}, "MAX_NAME_LENGTH"),
        ({"openai_route": "/v1/" + "x" * 20}, "MAX_NAME_LENGTH"),
        ({"openai_route": CHAT, "openai_input": {"n": 7}}, "MAX_SEQUENCES"),
        ({"openai_route": CHAT, "openai_input": {"n": "7"}}, "MAX_SEQUENCES"),
        ({"openai_route": CHAT, "openai_input": {"n": 7.0, "best_of": 1}}, "MAX_SEQUENCES"),
        ({"route": "/v1/completions", "body": {"prompt": ["x"] * 4, "n": 2}}, "MAX_SEQUENCES"),
        ({"route": "/v1/embeddings", "body": {"input": [[1]] * 7}}, "MAX_SEQUENCES"),
        ({"route": "/rerank", "body": {"query": "x", "documents": ["x"] * 7}}, "MAX_SEQUENCES"),
        ({"route": "/score", "body": {"text_1": "x", "text_2": ["x"] * 7}}, "MAX_SEQUENCES"),
    ],
)
def test_an_input_beyond_a_limit_names_it(given: dict[str, Any], variable: str) -> None:
    """What is too large is refused before anything is done for it, with the variable's name."""
    with pytest.raises(RequestError) as refused:
        read({"id": "1", "input": given}, SIZES, SMALL)

    assert f"({variable})" in refused.value.message


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": [1] * 5000},
        {"prompt": "x", "chat_template_kwargs": {"a": nested(5)}},
        {"messages": [{"role": "user", "content": "x"}] * 30},
        {"openai_route": CHAT, "openai_input": {"n": 6}},
        {"openai_route": CHAT, "openai_input": {"n": [7]}},
        {"openai_route": "/v1/responses", "openai_input": {"input": [{"role": "user"}] * 20}},
        {"route": "/v1/completions", "body": {"prompt": [5] * 500, "n": 6}},
        {"route": "/v1/embeddings", "body": {"input": ["x"] * 6}},
    ],
)
def test_an_input_within_the_limits_passes(given: dict[str, Any]) -> None:
    """The items of flat lists are no fields, and token ids no prompts."""
    read({"id": "1", "input": given}, SIZES, SMALL)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"openai_route": CHAT, "openai_input": CHAT_OF_20}, (CHAT, False)),
        ({"openai_route": CHAT, "openai_input": CHAT_OF_20 | {"stream": True}}, (CHAT, True)),
        ({"route": CHAT, "body": CHAT_OF_20 | {"stream": "true"}}, (CHAT, True)),
        ({"route": [[]] * 101}, ("", False)),
        (CHAT_OF_20 | {"stream": True}, (None, False)),
    ],
)
def test_what_is_too_large_is_told_so_in_its_dialect(
    given: dict[str, Any], expected: tuple[str | None, bool]
) -> None:
    """Of a job refused for its size the route is known, and whether its stream is told."""
    job = {"id": "job-1", "input": given}
    with pytest.raises(RequestError, match=r"\(MAX_INPUT_VALUES\)"):
        read(job, SIZES, SMALL)
    told = outline(job, SIZES)

    assert expected == (getattr(told, "path", None), told.stream)
    assert ("job-1", SIZES) == (told.job_id, told.sizes)


@pytest.mark.parametrize("path", [5, "", None, [], {}])
@pytest.mark.parametrize("key", ["route", "openai_route"])
def test_what_is_no_route_is_told_so_in_openais_dialect(key: str, path: Any) -> None:
    """Hugging Face's dialect is that of its own routes alone."""
    assert "openai" == outline({"id": "1", "input": {key: path}}, SIZES).dialect


def test_a_long_job_id_is_refused() -> None:
    """The engine carries a request's id in every output, so its length is bounded."""
    with pytest.raises(RequestError, match=r"\(MAX_NAME_LENGTH\)"):
        read({"id": "j" * 1025, "input": {"prompt": "x"}}, SIZES)


def test_thousands_of_unknown_keys_cost_no_more_than_one() -> None:
    """Only the first unknown key is looked up, and none that is too long to be a misspelling."""
    many = {f"prompt{i}": 1 for i in range(20_000)}
    took = {}
    asked = {"many": many, "beside": {"prompt": "x"} | many, "long": {"x" * 1_000_000: 1}}
    for name, given in (asked | {"one": {"promptt": 1}}).items():
        begun = time.process_time()
        for _ in range(5):
            with pytest.raises(RequestError) as refused:
                read({"id": "1", "input": given}, SIZES)
        took[name] = time.process_time() - begun
        assert len(refused.value.message) < 2000

    assert all(took[name] < 100 * took["one"] for name in asked), took


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"prompt": "hi \ud83e"}, "prompt"),
        ({"messages": [{"role": "user", "content": "\ud83e"}]}, "messages.0.content"),
        ({"prompt": "x", "sampling_params": {"stop": ["a", "\ud83e"]}}, "sampling_params.stop.1"),
        ({"openai_route": CHAT, "openai_input": {"user": "\ud83e"}}, "user"),
        ({"route": "/x", "body": {"model": "\ud83e"}}, "model"),
    ],
)
def test_half_a_character_is_named(given: dict[str, Any], param: str) -> None:
    """Half of a surrogate pair is refused naming its field, and is not in the sentence itself."""
    with pytest.raises(RequestError, match="half of a surrogate pair") as refused:
        read({"id": "1", "input": given}, SIZES)

    assert param == refused.value.param
    refused.value.text().encode()


def test_parameters_may_stand_beside_the_prompt() -> None:
    """Generation parameters beside the prompt count as sampling_params, null as not given."""
    given = {"prompt": "x", "temperature": 0.5, "max_tokens": None, "top_p": 0.9}
    asked = native(given | {"sampling_params": {"temperature": 0.5, "n": 2}})

    assert {"temperature": 0.5, "top_p": 0.9, "n": 2} == asked.sampling_params


PREFILLED = [*HELLO, {"role": "assistant", "content": "1, 2,"}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"messages": HELLO}, (False, True)),
        ({"messages": HELLO, "add_generation_prompt": False}, (False, False)),
        ({"messages": PREFILLED, "continue_final_message": True}, (True, False)),
        ({"messages": PREFILLED, "add_generation_prompt": True}, (False, True)),
        ({"messages": PREFILLED}, "continue_final_message: true"),
        ({"messages": PREFILLED, "continue_final_message": False}, "continue_final_message: true"),
        ({"messages": HELLO, "continue_final_message": True}, "assistant's words"),
        (
            {
                "messages": PREFILLED,
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "contradict",
        ),
    ],
)
def test_a_conversation_that_ends_with_the_assistant(given: dict[str, Any], expected: Any) -> None:
    """It is continued, or answered anew, as the job says; where it says nothing it is refused."""
    if isinstance(expected, str):
        with pytest.raises(RequestError, match=expected):
            ask(given)
        return
    asked = native(given)

    assert expected == (asked.continues, asked.add_generation_prompt)
