"""What the official client sees through the real SDK and a real engine."""

import base64
import concurrent.futures
import json

import openai
import pytest

import models
from local_endpoint import Record, Status
from served import FIRST_INPUTS, Served, serve

pytestmark = pytest.mark.timeout(300)

HELLO = [{"role": "user", "content": "Hello"}]


def failure(record: Record) -> dict[str, object]:
    """Read the error of a failed job."""
    return json.loads(record.done[-1].value["error"])["error"]


def test_the_very_first_jobs_succeed(first_jobs: list[Record]) -> None:
    """Twenty jobs at once on every route, as a fresh worker's first traffic, all succeed."""
    actual = [record.status for record in first_jobs]

    assert [Status.COMPLETED] * 20 == actual


@pytest.mark.slow
@pytest.mark.parametrize("first", FIRST_INPUTS, ids=lambda given: str(given.values()))
def test_each_route_as_the_first(first: dict[str, object]) -> None:
    """Twenty jobs of one route at once, as a fresh worker's first traffic, all succeed."""
    with serve({"MODEL_NAME": str(models.path("tiny"))}) as served:
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            records = list(pool.map(served.run, [first] * 20))

        assert [Status.COMPLETED] * 20 == [record.status for record in records]


def test_chat(tiny: Served) -> None:
    """A chat completion comes back as the client's own object, with the served name in it."""
    reply = tiny.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5)

    assert (5, "tiny", "length") == (
        reply.usage.completion_tokens,
        reply.model,
        reply.choices[0].finish_reason,
    )


def test_chat_streams(tiny: Served) -> None:
    """A streamed chat gives the text of the same chat unstreamed, and the usage when asked."""
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 40, "temperature": 0}
    whole = tiny.client.chat.completions.create(**asked)
    chunks = list(
        tiny.client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

    assert whole.choices[0].message.content == text
    assert 40 == chunks[-1].usage.completion_tokens


def test_completions(tiny: Served) -> None:
    """Completions take a text, token ids, and several prompts."""
    for prompt, choices in (("Hello", 1), ([5, 6, 7], 1), (["a", "b"], 2)):
        reply = tiny.client.completions.create(model="tiny", prompt=prompt, max_tokens=4)

        assert choices == len(reply.choices)


def test_models(tiny: Served) -> None:
    """The list of models holds each served name and each adapter, and no path of the disk."""
    cards = tiny.client.models.list().data

    assert {"tiny", "also-tiny", "adapter"} == {card.id for card in cards}


@pytest.mark.parametrize(
    "given",
    [
        {"openai_route": "/v1/models"},
        {"openai_route": "/v1/models", "openai_input": {}},
        {"openai_route": "/v1/models", "openai_input": None},
        {"openai_route": "/v1/models/"},
        {"openai_route": "/models"},
        {"openai_route": "models"},
        {"route": "/models"},
        {"route": "/v1/models", "method": "GET"},
    ],
)
def test_every_way_to_ask_for_models(tiny: Served, given: dict[str, object]) -> None:
    """The models are listed with or without a body, `/v1` and a trailing slash."""
    reply = tiny.run(given).done[-1].value["output"]

    assert ["list"] == [one["object"] for one in reply]


def test_several_served_names(tiny: Served) -> None:
    """Each served name is accepted, and so is none; a reply carries the first, as in vLLM."""
    for name in ("tiny", "also-tiny", None):
        body = {"messages": HELLO, "max_tokens": 2} | ({"model": name} if name else {})
        route = {"openai_route": "/chat/completions", "openai_input": body}
        reply = tiny.run(route).done[-1].value["output"][0]

        assert "tiny" == reply["model"]


def test_responses(tiny: Served) -> None:
    """The Responses route answers and streams through the client."""
    reply = tiny.client.responses.create(model="tiny", input="Hello", max_output_tokens=5)
    kinds = [
        event.type
        for event in tiny.client.responses.create(
            model="tiny", input="Hello", max_output_tokens=5, stream=True
        )
    ]

    assert 5 == reply.usage.output_tokens
    assert ("response.created", True) == (kinds[0], "response.output_text.delta" in kinds)


def test_anthropic_messages(tiny: Served) -> None:
    """Anthropic's route answers and streams in Anthropic's own shapes."""
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 5}
    whole = tiny.run({"openai_route": "/v1/messages", "openai_input": body})
    stream = tiny.run({"openai_route": "/v1/messages", "openai_input": body | {"stream": True}})
    events = "".join(post.value for post in stream.stream).split("\n\n")

    assert "message" == whole.done[-1].value["output"][0]["type"]
    assert "event: message_start" == events[0].split("\n")[0]
    assert "event: message_stop" == events[-2].split("\n")[0]


def test_other_routes(tiny: Served) -> None:
    """Routes outside OpenAI's API answer with JSON, text, or the status of an empty reply."""
    tokens = tiny.run({"route": "/tokenize", "body": {"prompt": "Hello"}})
    ids = tokens.done[-1].value["output"][0]["tokens"]
    back = tiny.run({"route": "/detokenize", "body": {"tokens": ids}})
    health = tiny.run({"route": "/health"})
    metrics = tiny.run({"route": "/metrics"})

    assert "Hello" == back.done[-1].value["output"][0]["prompt"]
    assert [{"status": 200}] == health.done[-1].value["output"]
    assert "vllm:num_requests_running" in metrics.done[-1].value["output"][0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "grammar", [{"regex": r"\p{L}+"}, {"json": {"type": "string", "pattern": r"^\p{L}+$"}}]
)
def test_a_grammar_that_the_engine_refuses(
    tiny: Served, grammar: dict[str, object], stream: bool
) -> None:
    """A grammar that fails in the engine is the caller's error, with the backend's reason.

    vLLM's engine has one backend, which its first grammar chose, and accepts more than it takes.
    """
    wanted = {"structured_outputs": grammar}
    chosen = {"structured_outputs": {"choice": ["a", "b"]}}
    assert "COMPLETED" == tiny.run({"prompt": "x", "sampling_params": chosen}).status.value
    jobs = (
        {"openai_route": "/v1/chat/completions", "openai_input": {"messages": HELLO} | wanted},
        {"openai_route": "/v1/completions", "openai_input": {"prompt": "x"} | wanted},
        {"prompt": "x", "stream": stream, "sampling_params": wanted},
    )
    for job in jobs:
        if "openai_input" in job:
            job["openai_input"] = {**job["openai_input"], "stream": stream}
        record = tiny.run(job)
        error = failure(record)

        assert (400, "structured_outputs") == (error["code"], error["param"])
        assert "Unicode character class" in error["message"]
        if stream and "openai_input" in job:
            assert error["message"] in record.stream[-1].value.replace("\\\\", "\\")


OPEN = {
    "generate": {
        "/detokenize",
        "/health",
        "/metrics",
        "/tokenize",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/derender",
        "/v1/chat/completions/render",
        "/v1/completions",
        "/v1/completions/derender",
        "/v1/completions/render",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/messages/render",
        "/v1/models",
        "/v1/models/{name:path}",
        "/v1/responses",
        "/v1/responses/render",
        "/v1/responses/{response_id}",
        "/v1/responses/{response_id}/cancel",
        "/v1/systemone",
        "/version",
    },
    "embed": {
        "/detokenize",
        "/health",
        "/metrics",
        "/pooling",
        "/tokenize",
        "/v1/embeddings",
        "/v1/models",
        "/v1/models/{name:path}",
        "/v1/systemone",
        "/v2/embed",
        "/version",
    },
}


def listed(served: Served) -> set[str]:
    """Return the open routes, as the refusal of another one names them."""
    error = failure(served.run({"route": "/nowhere"}))
    return set(error["message"].partition("Routes: ")[2].rstrip(".").split(", "))


def test_the_open_routes(tiny: Served) -> None:
    """These routes of the real app are open and no other: what vLLM adds is closed."""
    assert OPEN["generate"] == listed(tiny)


def test_the_open_routes_of_a_model_that_embeds(embedding: Served) -> None:
    # Which of the ways to rank a pooling model has depends on the model.
    ranks = {f"{v}/{what}" for v in ("", "/v1", "/v2") for what in ("rerank", "score", "classify")}
    assert OPEN["embed"] == listed(embedding) - ranks


def test_embeddings(embedding: Served) -> None:
    """A pooling model embeds through the client, as numbers and as bytes."""
    reply = embedding.client.embeddings.create(model="embedder", input=["a", "b"])
    raw = embedding.run(
        {
            "openai_route": "/v1/embeddings",
            "openai_input": {"input": ["a", "b"], "encoding_format": "bytes"},
        }
    )
    binary = raw.done[-1].value["output"][0]

    assert [256, 256] == [len(item.embedding) for item in reply.data]
    assert {"content_type", "base64", "metadata"} == set(binary)
    assert 2 * 4 * 256 == len(base64.b64decode(binary["base64"]))
    assert [0, 1] == [item["index"] for item in binary["metadata"]["data"]]


def test_what_an_embedding_lacks(embedding: Served) -> None:
    """A wrong field is named, and not the fields of another form of the request."""
    body = {"input": "a", "encoding_format": "nope"}
    error = failure(embedding.run({"openai_route": "/v1/embeddings", "openai_input": body}))

    assert (400, "encoding_format") == (error["code"], error["param"])
    assert "messages" not in error["message"]


def test_a_pooling_model_writes_no_text(embedding: Served) -> None:
    """A native job for a pooling model fails with a sentence that names the way to go."""
    error = failure(embedding.run({"prompt": "Hello"}))

    assert "writes no text" in error["message"]
    assert "/v1/embeddings" in error["message"]


def test_a_failed_job_raises_in_the_client(tiny: Served) -> None:
    """An error is an exception of the official client with vLLM's sentence, not a hollow reply."""
    with pytest.raises(openai.APIStatusError, match="does not exist"):
        tiny.client.chat.completions.create(model="nope", messages=HELLO)
    with pytest.raises(openai.APIError, match="does not exist"):
        list(tiny.client.chat.completions.create(model="nope", messages=HELLO, stream=True))


BAD = [
    ("/v1/chat/completions", {"messages": HELLO, "model": "nope"}, 404, "does not exist"),
    ("/v1/chat/completions", {"messages": HELLO, "temperature": 9}, 400, "temperature"),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 9999}, 400, "512"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x " * 999}]}, 400, "512"),
    ("/v1/chat/completions", {}, 400, "messages"),
    ("/v1/chat/completions", None, 400, "JSON object"),
    ("/v1/chat/completions", "text", 400, "JSON object"),
    ("/v1/chat/completions", [1], 400, "JSON object"),
    ("/v1/completions", {"prompt": [99999]}, 400, "vocabulary"),
    ("/v1/completions", {"prompt": "x", "temperature": "hot"}, 400, "temperature"),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 5, "model": "nope"}, 404, "not exist"),
    ("/v1/responses", {"input": "x", "model": "nope"}, 404, "does not exist"),
    ("/v1/nope", {}, 404, "/v1/chat/completions"),
    ("/v1/chat/completions", {"messages": HELLO, "seed": "x", "n": "x"}, 400, "seed: "),
    ("/v1/chat/completions", {"messages": 5}, 400, "form"),
    ("/v1/chat/completions", {"messages": HELLO, "structured_outputs": "x"}, 400, "form"),
    ("/v1/completions", {"prompt": "x", "structured_outputs": [1]}, 400, "form"),
    ("/v1/models/nope", {}, 404, "does not exist"),
    ("/v1/chat/completion", {"messages": HELLO}, 404, "'/v1/chat/completions'"),
    ("/scale_elastic_ep", {}, 404, "EXTRA_ROUTES"),
    ("/invocations", {"messages": HELLO}, 404, "EXTRA_ROUTES"),
    ("http://169.254.169.254/latest", {}, 404, "not a route"),
    ("//host/v1/models", {}, 404, "not a route"),
    ("/v1/../load", {}, 404, "not a route"),
    ("/v1/embeddings", {"input": "x"}, 404, "no route"),
    ("/v1/responses", {"input": "x", "structured_outputs": {"regex": "["}}, 400, "egex"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": ["x"]}]}, 400, "valid dict"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("route", "body", "code", "words"), BAD)
def test_bad_requests(
    tiny: Served, route: str, body: object, code: int, words: str, stream: bool
) -> None:
    """A bad request fails its job with one JSON error in vLLM's or our own words."""
    if stream and isinstance(body, dict):
        body = body | {"stream": True}
    record = tiny.run({"openai_route": route, "openai_input": body})
    error = failure(record)

    assert Status.FAILED == record.status
    assert {"message", "type", "param", "code"} == set(error)
    assert "object is not" not in error["message"]
    assert code == error["code"]
    assert words in error["message"]
    assert "Traceback" not in error["message"]


def test_a_stream_carries_its_error_in_the_dialect_of_its_route(tiny: Served) -> None:
    """Before a streaming job fails, its stream says so: as OpenAI does, or as Anthropic does."""
    body = {"messages": HELLO, "max_tokens": 5, "model": "nope", "stream": True}
    chat = tiny.run({"openai_route": "/v1/chat/completions", "openai_input": body})
    messages = tiny.run({"openai_route": "/v1/messages", "openai_input": body})
    data, done, rest = chat.stream[0].value.split("\n\n")
    kind, body_line = messages.stream[0].value.split("\n\n")[0].split("\n")

    assert failure(chat) == json.loads(data.removeprefix("data: "))["error"]
    assert ("data: [DONE]", "") == (done, rest)
    assert "event: error" == kind
    assert "error" == json.loads(body_line.removeprefix("data: "))["type"]


def test_the_job_id_is_the_request_id(tiny: Served) -> None:
    """The id of the job is in the reply's id, so that RunPod's log and vLLM's can be joined."""
    for route, body in (
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 2}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 2}),
    ):
        record = tiny.run({"openai_route": route, "openai_input": body})

        assert record.done[-1].value["output"][0]["id"].endswith(record.job_id)


def test_the_old_output_of_parsed_events(unusual: Served) -> None:
    """With RAW_OPENAI_OUTPUT=0 each yield is the list of its events' objects, without DONE."""
    body = {"prompt": "Hello", "max_tokens": 20, "stream": True}
    record = unusual.run({"openai_route": "/v1/completions", "openai_input": body})
    chunks = [chunk for post in record.stream for chunk in post.value]

    assert {list} == {type(post.value) for post in record.stream}
    assert {"text_completion"} == {chunk["object"] for chunk in chunks}
    assert "length" == chunks[-1]["choices"][0]["finish_reason"]


def test_errors_as_output(unusual: Served) -> None:
    """With OPENAI_ERRORS_AS_OUTPUT=1 a bad OpenAI job is COMPLETED, and its error its output."""
    body = {"messages": HELLO, "model": "nope"}
    route = "/v1/chat/completions"
    whole = unusual.run({"openai_route": route, "openai_input": body})
    stream = unusual.run({"openai_route": route, "openai_input": body | {"stream": True}})
    native = unusual.run({"prompt": "x", "model": "nope"})

    assert [Status.COMPLETED] * 2 == [whole.status, stream.status]
    assert "NotFoundError" == json.loads(whole.done[-1].value["output"][0])["error"]["type"]
    assert "NotFoundError" == stream.stream[-1].value[-1]["error"]["type"]
    assert Status.FAILED == native.status


def test_one_template_for_both_paths(unusual: Served) -> None:
    """CUSTOM_CHAT_TEMPLATE holds on the native path as on the OpenAI path."""
    asked = {"temperature": 0, "max_tokens": 8}
    chat = unusual.client.chat.completions.create(
        model=unusual.client.models.list().data[0].id, messages=HELLO, **asked
    )
    native = unusual.run({"messages": HELLO, "sampling_params": asked})
    applied = unusual.run(
        {"prompt": "Hello", "apply_chat_template": True, "sampling_params": asked}
    )
    spelled = unusual.run({"prompt": "Hello and so", "sampling_params": asked})
    texts = {
        record.done[-1].value["output"][0]["choices"][0]["tokens"][0]
        for record in (native, applied, spelled)
    }

    assert {chat.choices[0].message.content} == texts


def test_a_variable_opens_more_routes(unusual: Served) -> None:
    """EXTRA_ROUTES opens a route; of its several methods GET is taken without a body."""
    assert [{"status": 200}] == unusual.run({"route": "/ping"}).done[-1].value["output"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_fit_fails_with_both_numbers(unusual: Served, stream: bool) -> None:
    """A result beyond MAX_RESULT_MB ends with an error that says so; RunPod would drop it."""
    body = {"prompt": ["x"] * 64, "max_tokens": 40, "logprobs": 20, "n": 2, "stream": stream}
    record = unusual.run({"openai_route": "/v1/completions", "openai_input": body})
    last = record.done[-1].value["output"][-1]
    error = last[-1]["error"] if stream else json.loads(last)["error"]

    assert 413 == error["code"]
    assert "1,000,000" in error["message"]
    assert sum(post.size for post in record.stream) < 1_100_000
