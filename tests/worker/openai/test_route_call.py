"""The hand-over to an ASGI app: a real FastAPI app, called in-process as vLLM's own app is."""

import asyncio
import base64
import contextlib
import itertools
import json
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from an_app import (
    ANSWER,
    CHAT,
    DONE,
    FINISH,
    KEEP_ALIVE,
    MODEL,
    OURS,
    REFUSED,
    ROLE,
    RULES,
    USAGE,
    chunk,
    event,
    make_app,
    make_engine,
)
from fastapi import FastAPI, Response
from openai.types.chat import ChatCompletion
from pydantic import ValidationError
from starlette.types import Message, Receive, Scope, Send

from worker.batching import BatchSizes, Outbox
from worker.errors import EngineDied, RequestError
from worker.openai.call import RouteCall
from worker.openai.events import EventSplitter, usage_in, weigh
from worker.openai.routes import Routes
from worker.record import Usage
from worker.request import RouteRequest

TIMEOUT_S = 60


def ask(path: str, body: Any = None, method: str | None = None) -> RouteRequest:
    return RouteRequest("job-1", BatchSizes(), path, method, body)


@dataclass
class Outcome:
    yields: list[Any]
    error: RequestError | None
    frame: Any = None

    @property
    def only(self) -> Any:
        assert self.error is None, self.error.message
        assert len(self.yields) == 1
        return self.yields[0]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            return await main

    return asyncio.run(limited())


def answer(
    request: RouteRequest,
    *,
    app: Any = None,
    raw: bool = True,
    extra: tuple[str, ...] = (),
    errored: bool = False,
) -> Outcome:
    """Answer one request as the handler does, and collect what leaves."""

    async def main() -> Outcome:
        fastapi = make_app([])
        engine = make_engine(app or fastapi, errored=errored)
        call = RouteCall(
            request,
            engine,
            Routes(fastapi, (*OURS, *extra)),
            *RULES,
            model=MODEL,
            raw=raw,
            errors_as_output=False,
        )
        outbox: Outbox[Any] = Outbox(request.sizes)
        error = None
        try:
            await call.answer(outbox)
        except RequestError as refused:
            error = refused
        outbox.close()
        outcome = Outcome([], error, next(iter(call.failure(error)[:-1]), None) if error else None)
        while (items := await outbox.next()) is not None:
            outcome.yields.append(call.join(items))
        return outcome

    outcome: Outcome = run(main())
    return outcome


def refused(request: RouteRequest, **options: Any) -> RequestError:
    error = answer(request, **options).error
    assert error is not None
    return error


def reply(content: bytes, kind: str, status: int = 200) -> RouteRequest:
    text = base64.b64encode(content).decode()
    return ask("/v1/reply", {"base64": text, "type": kind, "status": status})


# --- cutting and counting events


def test_events_are_whole_however_the_bytes_are_cut() -> None:
    """However the bytes are cut, inside a character or an event, the events are the same."""
    stream = b"".join(ANSWER) + b": keep-alive\n\n" + event({"a": "\n\n"}, "message_delta")
    expected = [*ANSWER, b": keep-alive\n\n", event({"a": "\n\n"}, "message_delta")]
    rng = random.Random(7)
    for _ in range(300):
        cuts = sorted(rng.choices(range(len(stream) + 1), k=rng.randrange(40)))
        pieces = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
        splitter = EventSplitter()
        events = [e for piece in pieces for e in splitter.feed(piece)] + splitter.rest()

        assert expected == events


def test_events_byte_by_byte() -> None:
    """An emoji that comes in four reads comes out as one."""
    splitter = EventSplitter()
    events = [e for byte in ANSWER[2] for e in splitter.feed(bytes([byte]))]

    assert ANSWER[2:3] == events
    assert splitter.rest() == []


@pytest.mark.parametrize(
    ("rest", "events"),
    [
        (b"", []),
        (b"\n", []),
        (b" \n ", []),
        (b"data: [DONE]", [DONE]),
        (b"data: [DONE]\n", [b"data: [DONE]\n\n\n"]),
    ],
)
def test_rest(rest: bytes, events: list[bytes]) -> None:
    """What a server forgot to end is one more event, and blank space is none."""
    splitter = EventSplitter()

    assert splitter.feed(ROLE + rest) == [ROLE]
    assert events == splitter.rest()
    assert splitter.rest() == []


@pytest.mark.parametrize(
    ("data", "carries"),
    [
        pytest.param(ROLE, False, id="role"),
        pytest.param(USAGE, False, id="usage"),
        pytest.param(DONE, False, id="done"),
        pytest.param(FINISH, True, id="finish: the end-of-text token"),
        pytest.param(chunk({"content": "Hi"}), True, id="text"),
        pytest.param(chunk({"content": None, "tool_calls": [{"index": 0}]}), True, id="tool call"),
        pytest.param(chunk({"reasoning": "Hm"}), True, id="reasoning"),
        pytest.param(event({"choices": [{"text": "Hi"}]}), True, id="completion"),
        pytest.param(event({"choices": [{"text": "", "index": 1}]}), True, id="empty completion"),
        pytest.param(event({"choices": [{"text": "[DONE]"}]}), True, id="text that says [DONE]"),
        pytest.param(chunk({"content": 'data: {"error": 1}\n\n'}), True, id="text that says data"),
        pytest.param(chunk({"content": '"error"'}), True, id="text that says error"),
        pytest.param(event({"error": None, "choices": [{"text": "x"}]}), True, id="null error"),
        pytest.param(
            event({"type": "content_block_delta", "delta": {"text": "x"}}, "content_block_delta"),
            True,
            id="Anthropic text",
        ),
        pytest.param(
            event({"type": "message_start"}, "message_start"), False, id="Anthropic start"
        ),
        pytest.param(event({"type": "message_stop"}, "message_stop"), False, id="Anthropic stop"),
        pytest.param(event({"type": "ping"}, "ping"), False, id="Anthropic ping"),
        pytest.param(
            event({"type": "response.output_text.delta", "delta": "x"}, "x"),
            True,
            id="Responses text",
        ),
        pytest.param(
            event({"type": "response.created", "response": {"error": None}}, "x"),
            False,
            id="Responses start",
        ),
        pytest.param(
            event({"type": "response.output_text.done", "text": "x"}, "x"),
            False,
            id="Responses done",
        ),
        pytest.param(b": keep-alive\n\n", False, id="comment"),
        pytest.param(b"data: [1]\n\n", False, id="a list"),
        pytest.param(b"data: no JSON\n\n", False, id="no JSON"),
        pytest.param(b"event: x\n\n", False, id="no data"),
        pytest.param(b"data:" + FINISH[6:], True, id="no space after the colon"),
    ],
)
def test_weigh(data: bytes, carries: bool) -> None:
    """What carries output is told from what rides along (role, usage, DONE), not by its text."""
    assert (carries, None) == weigh(data)


@pytest.mark.parametrize(
    "data",
    [
        event({"error": REFUSED}),
        event({"object": "error", "error": REFUSED}),
        event({"type": "error", "error": REFUSED}, "error"),
        event({"choices": None, "error": REFUSED}),
    ],
)
def test_weigh_errors(data: bytes) -> None:
    """An error inside a stream is found, in OpenAI's form and in Anthropic's."""
    assert (False, REFUSED) == weigh(data)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([chunk({"content": "Hi"}), USAGE], Usage(3)),
        (
            [
                event({"type": "message_start", "message": {"usage": {"input_tokens": 7}}}),
                event({"type": "message_delta", "usage": {"output_tokens": 9}}),
            ],
            Usage(7, 9),
        ),
        (
            [event({"response": {"usage": {"input_tokens": 7, "output_tokens": 9}}})],
            Usage(7, 9),
        ),
        ([event({"choices": [{"text": "usage"}], "usage": None}), DONE], Usage()),
        ([b'data: ["usage"]\n\n', b'data: "usage" no JSON\n\n'], Usage()),
    ],
)
def test_usage(events: list[bytes], expected: Usage) -> None:
    """What a stream says of its tokens is found in OpenAI's words, Anthropic's and Responses'."""
    usage = Usage()
    for one in events:
        usage = usage_in(one, usage)

    assert expected == usage


# --- which route, which method


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("/v1/models//", "/v1/models"),
        ("/models", "/v1/models"),
        ("/chat/completions", CHAT),
        ("/tokenize", "/tokenize"),
        ("/v1/tokenize", "/tokenize"),
        ("/health", "/health"),
        ("/v1/health", "/health"),
        ("/responses/resp_1", "/v1/responses/resp_1"),
        ("/v1/responses/../x", None),
        ("/v1/v1/models", "/v1/models"),
        ("/V1/MODELS", None),
        ("/v1", None),
        ("/", None),
        ("/%76%31/models", None),
        ("/openapi.json", None),
        ("/docs", None),
    ],
)
def test_route_resolution(asked: str, path: str | None) -> None:
    """A route is found as written, else with /v1, else without; nothing else is guessed."""
    routes = Routes(make_app([]), OURS)
    found = None
    with contextlib.suppress(RequestError):
        found = routes.find(asked)[0]

    assert path == found


def test_exact_match_first() -> None:
    """Where a route exists both with /v1 and without, the one that was asked for is called."""
    app = FastAPI()
    for path in ("/v1/score", "/score", "/v1/rerank", "/classify"):
        app.post(path)(lambda: None)
    routes = Routes(app, OURS)

    assert [routes.find(p)[0] for p in ("/score", "/v1/score", "/rerank", "/v1/classify")] == [
        "/score",
        "/v1/score",
        "/v1/rerank",
        "/classify",
    ]


def test_a_new_route_is_closed() -> None:
    """What the next vLLM adds under /v1 is no route for jobs before someone has looked at it."""
    app = make_app([])
    for path in ("/v1/new", "/v1/chat/completions/new", "/v1/models/{name}/new"):
        app.post(path)(lambda: None)
    routes = Routes(app, ())

    for path in ("/v1/new", "/v1/chat/completions/new", "/v1/models/tiny/new"):
        with pytest.raises(RequestError, match="is closed on this worker"):
            routes.find(path)


def test_a_misspelt_extra_route() -> None:
    """EXTRA_ROUTES with a path that no route has is said at the start, with the nearest one."""
    (warning,) = Routes(make_app([]), ("/puase", "/pause")).warnings

    assert "/puase" in warning
    assert "'/pause'" in warning


@pytest.mark.parametrize("path", ["/pause", "/v1/pause", "/v1/load_lora_adapter"])
def test_closed_routes(path: str) -> None:
    """A route that changes the server is refused by its name, with the variable that opens it."""
    error = refused(ask(path, {}))

    name = "/pause" if "pause" in path else path
    assert f"EXTRA_ROUTES={name} opens it." in error.message
    assert error.code == 404


def test_extra_routes() -> None:
    """A route that the deployer opened is called, under its own name."""
    request = ask("/pause", {"mode": "abort"})

    assert answer(request, extra=("/pause",)).only["path"] == "/pause"


def test_unknown_route() -> None:
    """An unknown route is told the nearest one and all there are, and none that is closed."""
    error = refused(ask("/v1/chat/completion", {}))

    assert (
        "There is no route \"/v1/chat/completion\". Did you mean '/v1/chat/completions'?"
        in error.message
    )
    assert "/v1/models" in error.message
    assert "/pause" not in error.message
    assert (404, "NotFoundError") == (error.code, error.type)


@pytest.mark.parametrize(
    ("path", "method", "body", "called"),
    [
        ("/v1/models", None, None, "GET"),
        ("/v1/models", None, {}, "GET"),
        ("/v1/models", None, {"a": 1}, "GET"),
        ("/v1/models", "GET", {}, "GET"),
        ("/v1/raw", None, None, "POST"),
        ("/v1/raw", None, {}, "POST"),
        ("/v1/both", None, None, "GET"),
        ("/v1/both", None, {}, "GET"),
        ("/v1/both", None, {"a": 1}, "POST"),
        ("/v1/both", None, [1], "POST"),
        ("/v1/both", "POST", None, "POST"),
        ("/v1/both", "GET", {"a": 1}, "GET"),
    ],
)
def test_method(path: str, method: str | None, body: Any, called: str) -> None:
    """The method is the route's only one; of several POST with a body, else GET."""
    sent = answer(ask(path, body, method)).only

    assert called == sent["method"]
    if called == "GET":
        assert (None, "") == (sent["type"], sent["body"])


@pytest.mark.parametrize(
    ("path", "method", "sentence"),
    [
        ("/v1/models", "POST", "/v1/models takes GET, not POST."),
        ("/v1/both", "PUT", "/v1/both takes GET or POST, not PUT."),
        (CHAT, "GET", "/v1/chat/completions takes POST, not GET."),
        ("/v1/models", "HEAD", "/v1/models takes GET, not HEAD."),
    ],
)
def test_wrong_method(path: str, method: str, sentence: str) -> None:
    """A method that the route does not take is refused with those it takes."""
    error = refused(ask(path, None, method))

    assert (sentence, 405) == (error.message, error.code)


def test_a_method_that_cannot_be_guessed() -> None:
    """The framework's own refusal, which is not in vLLM's form, still reads as a sentence."""
    error = refused(ask("/v1/odd", {"a": 1}))

    assert ("/v1/odd: Method Not Allowed.", 405) == (error.message, error.code)


# --- what the app is given


def test_what_a_request_carries() -> None:
    """The app sees the client's JSON, the job's id, and the query, and nothing else changes."""
    body = {"text": "Grüße 👩‍🚀 \u2028", "big": 2**60, "nested": {"a": [None, True, 1.5]}}
    sent = answer(ask("/v1/raw?a=1&b=%20x", body)).only

    assert body | {"model": MODEL} == json.loads(sent["body"])
    assert ("a=1&b=%20x", "job-1", "application/json") == (sent["query"], sent["id"], sent["type"])


@pytest.mark.parametrize(
    ("given", "model"),
    [({}, MODEL), ({"model": None}, MODEL), ({"model": ""}, MODEL), ({"model": "a"}, "a")],
)
def test_a_missing_model_is_the_served_one(given: dict[str, Any], model: str) -> None:
    """A client that names no model gets the served one, and one that does gets his."""
    before = dict(given)

    assert model == answer(ask("/v1/completions", given)).only["model"]
    assert before == given


def test_responses_take_their_id_from_the_body() -> None:
    """The Responses route logs the job's id too, unless the client chose one."""
    ours = answer(ask("/v1/responses", {})).only
    theirs = answer(ask("/responses/", {"request_id": "resp_mine"})).only

    assert ("resp_job-1", "resp_mine") == (ours["request_id"], theirs["request_id"])


@pytest.mark.parametrize(("body", "text"), [(None, "null"), ("Hi", '"Hi"'), ([{}], "[{}]")])
def test_a_body_is_an_object(body: Any, text: str) -> None:
    """A route that takes an object says so when it is given none or something else."""
    error = refused(ask(CHAT, body))

    assert (
        "/v1/chat/completions takes a JSON object as its body (a job's openai_input), "
        f"not {text}." == error.message
    )


def test_a_file_becomes_a_form() -> None:
    """A file route gets a real multipart form: the bytes, the name, and the other fields."""
    content = bytes(range(256))
    body = {
        "file": base64.b64encode(content).decode(),
        "filename": "spéech 1.wav",
        "language": "en",
        "temperature": 0.5,
        "stream": False,
        "granularities": ["word", "segment"],
        "prompt": None,
    }

    assert answer(ask("/v1/audio/transcriptions", body)).only == {
        "content": content.decode("latin-1"),
        "filename": "spéech 1.wav",
        "type": "application/octet-stream",
        "model": MODEL,
        "language": "en",
        "temperature": 0.5,
        "stream": False,
        "granularities": ["word", "segment"],
    }


@pytest.mark.parametrize(
    ("file", "content", "kind"),
    [
        ("aGVsbG8=", "hello", "application/octet-stream"),
        ("aGVs\nbG8=\n", "hello", "application/octet-stream"),
        ("data:audio/wav;base64,aGVsbG8=", "hello", "audio/wav"),
        ("data:audio/ogg;codecs=opus;base64,aGVsbG8=", "hello", "audio/ogg"),
        ("data:;base64,aGVsbG8=", "hello", "application/octet-stream"),
        ("data:a/b\r\nX-Y: z;base64,aGVsbG8=", "hello", "application/octet-stream"),
        ('data:a/b"\n;base64,aGVsbG8=', "hello", "application/octet-stream"),
    ],
)
def test_spellings_of_a_file(file: str, content: str, kind: str) -> None:
    """A file comes as base64, in lines or not, or as a data URL, whose type it keeps."""
    got = answer(ask("/v1/audio/transcriptions", {"file": file, "model": None})).only

    assert (content, kind, "file", MODEL) == (
        got["content"],
        got["type"],
        got["filename"],
        got["model"],
    )


@pytest.mark.parametrize(
    ("body", "fragment"),
    [
        (None, 'This route takes a file: {"file": "<base64 or data URL>"'),
        ({}, "This route takes a file"),
        ([], "This route takes a file"),
        ({"file": None}, "This route takes a file"),
        ({"file": 5}, "This route takes a file"),
        ({"file": "!!"}, "file is neither base64 nor a data URL of base64."),
        ({"file": "aGk"}, "file is neither base64 nor a data URL of base64."),
        ({"file": "é"}, "file is neither base64 nor a data URL of base64."),
        ({"file": "data:text/plain,hello"}, "file is neither base64 nor a data URL of base64."),
        ({"file": "https://example.com/a.wav"}, "file is neither base64 nor a data URL"),
    ],
)
def test_wrong_files(body: Any, fragment: str) -> None:
    """What is no file is refused with the form that a file takes."""
    error = refused(ask("/v1/audio/transcriptions", body))

    assert fragment in error.message
    assert (400, "file") == (error.code, error.param)


# --- what comes back


def test_a_stream_is_the_servers_own_bytes() -> None:
    """What leaves, joined, is what the app wrote, and each yield is a text of whole events."""
    outcome = answer(ask(CHAT, {"stream": True}))

    assert b"".join(ANSWER).decode() == "".join(outcome.yields)
    assert all(text.endswith("\n\n") for text in outcome.yields)
    assert outcome.error is None


def test_parsed_events() -> None:
    """With RAW_OPENAI_OUTPUT=0 a yield is the list of parsed events, and DONE is none of them."""
    outcome = answer(ask(CHAT, {"stream": True}), raw=False)

    assert [json.loads(e[6:]) for e in ANSWER[:-1]] == [e for part in outcome.yields for e in part]


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("size", [1, 50])
def test_signs_of_life(raw: bool, size: int) -> None:
    """A comment leaves at once and alone, counts nothing, and is dropped where output is parsed."""
    yields: list[Any] = []

    async def main() -> None:
        app = make_app([])
        request = ask("/v1/quiet", {})
        call = RouteCall(
            request,
            make_engine(app),
            Routes(app, OURS),
            *RULES,
            model=MODEL,
            raw=raw,
            errors_as_output=False,
        )
        outbox: Outbox[Any] = Outbox(BatchSizes(min=size, max_delay_s=0))
        answering = asyncio.create_task(call.answer(outbox))
        answering.add_done_callback(lambda _: outbox.close())
        while (items := await outbox.next()) is not None:
            yields.append(call.join(items))

    run(main())
    if raw:
        life = [one for one in yields if ":" == one[0]]
        said = "".join(one for one in yields if one not in life)
        assert {KEEP_ALIVE.decode()} == set(life)
        assert KEEP_ALIVE.decode() == yields[0]
        assert (ROLE + ANSWER[1] + FINISH + DONE).decode() == said
    else:
        assert [json.loads(one[6:]) for one in (ROLE, ANSWER[1], FINISH)] == [
            one for part in yields for one in part
        ]
        assert [] not in yields


def test_an_unended_stream() -> None:
    """The last event leaves whole although the server forgot the empty line behind it."""
    outcome = answer(ask("/v1/unended", {"stream": True}))

    assert b"".join([ROLE, ANSWER[1], DONE]).decode() == "".join(outcome.yields)


def test_tokens_are_counted() -> None:
    """The first token leaves with the role before it: no post is empty, and none waits."""

    async def main() -> list[int]:
        app = make_app([])
        request = ask(CHAT, {"stream": True})
        call = RouteCall(
            request,
            make_engine(app),
            Routes(app, OURS),
            *RULES,
            model=MODEL,
            raw=False,
            errors_as_output=False,
        )
        outbox: Outbox[Any] = Outbox(BatchSizes(max_delay_s=0))
        await call.answer(outbox)
        outbox.close()
        batches = []
        while (items := await outbox.next()) is not None:
            batches.append(len(call.join(items)))
        return batches

    assert run(main()) == [2, 3]


@pytest.mark.parametrize(
    ("content", "kind", "expected"),
    [
        (b'{"a": [1, null]}', "application/json", {"a": [1, None]}),
        (b"[1]", "application/json; charset=utf-8", [1]),
        (b'{"a": 1}', "application/problem+json", {"a": 1}),
        ('{"a": "é"}'.encode(), "application/json", {"a": "é"}),
        (b'{"big": 18446744073709551616}', "application/json", {"big": 2**64}),
        (b"0", "application/json", 0),
        (b"null", "application/json", "null"),
        (b'{"a": NaN}', "application/json", '{"a": NaN}'),
        (b'{"a": Infinity}', "application/json", '{"a": Infinity}'),
        (b'{"a": "\\ud800"}', "application/json", '{"a": "\\ud800"}'),
        (b'{"a": 1}\n{"a": 2}\n', "application/x-ndjson", '{"a": 1}\n{"a": 2}\n'),
        (b"{half", "application/json", "{half"),
        (b'{"error": null, "a": 1}', "application/json", {"error": None, "a": 1}),
        (b'{"error": {"a": 1}}', "application/json", '{"error": {"a": 1}}'),
        (b"plain", "text/plain", "plain"),
        (b"caf\xe9", "text/plain", "caf\ufffd"),
        (b"\x00\xff", "audio/wav", {"content_type": "audio/wav", "base64": "AP8="}),
        (b"", "application/json", {"status": 200}),
        (b"", "text/plain", {"status": 200}),
    ],
)
def test_replies(content: bytes, kind: str, expected: Any) -> None:
    """JSON is yielded as what it says, text as text, bytes as base64, nothing as a status.

    JSON that is not strict, and what the SDK would take for an error or an end, goes on as text.
    """
    got = answer(reply(content, kind)).only

    assert expected == got
    json.dumps(got, allow_nan=False, ensure_ascii=False).encode("utf-8")


def test_whole_routes() -> None:
    """Empty, text and binary replies of real routes arrive in their three forms."""
    speech = answer(ask("/v1/audio/speech", {"input": "Hi"})).only

    assert answer(ask("/v1/empty")).only == {"status": 200}
    assert answer(ask("/metrics")).only == "requests 1.0\n"
    assert speech == {
        "content_type": "audio/wav",
        "base64": base64.b64encode(bytes(range(256))).decode(),
    }


# --- errors


@pytest.mark.parametrize(
    ("content", "status", "message", "kind", "param"),
    [
        pytest.param(
            json.dumps({"error": REFUSED}).encode(),
            404,
            "No such model.",
            "NotFoundError",
            "model",
            id="vLLM's",
        ),
        pytest.param(
            b'{"type": "error", "error": {"type": "invalid_request_error", "message": "No."}}',
            400,
            "No.",
            "invalid_request_error",
            None,
            id="Anthropic's",
        ),
        pytest.param(
            b'{"detail": "Not Found"}',
            404,
            "/v1/reply: Not Found.",
            "NotFoundError",
            None,
            id="FastAPI's",
        ),
        pytest.param(b"too large", 413, "too large", "PayloadTooLargeError", None, id="text"),
        pytest.param(
            b"", 503, "/v1/reply answered with status 503.", "ServiceUnavailableError", None, id="-"
        ),
        pytest.param(b"[]", 500, "[]", "InternalServerError", None, id="a list"),
        pytest.param(b'"error"', 500, '"error"', "InternalServerError", None, id="a text"),
        pytest.param(
            b'{"error": "flat"}', 500, '{"error": "flat"}', "InternalServerError", None, id="flat"
        ),
        pytest.param(
            b'{"error": {"message": ""}}',
            500,
            "The request failed, and nothing says why.",
            "InternalServerError",
            None,
            id="no words",
        ),
        pytest.param(
            b'{"error": {"message": "chat template is missing from the tokenizer."}}',
            400,
            "chat template is missing from the tokenizer. Set the variable CUSTOM_CHAT_TEMPLATE, "
            "or use the route /v1/completions.",
            "BadRequestError",
            None,
            id="with a hint",
        ),
        pytest.param(
            b'{"error": {"message": "\\"auto\\" requires --tool-call-parser to be set"}}',
            400,
            '"auto" requires --tool-call-parser to be set '
            "(On this worker that is ENABLE_AUTO_TOOL_CHOICE=1 beside TOOL_CALL_PARSER.)",
            "BadRequestError",
            None,
            id="a parser that is set",
        ),
        pytest.param(
            b'{"error": {"message": "Use --enable-auto-tool-choice."}}',
            400,
            "Use --enable-auto-tool-choice. (On this worker --enable-auto-tool-choice is the "
            "variable ENABLE_AUTO_TOOL_CHOICE.)",
            "BadRequestError",
            None,
            id="an option",
        ),
    ],
)
def test_status_errors(
    content: bytes, status: int, message: str, kind: str, param: str | None
) -> None:
    """Every status of 400 and more fails the job with the server's own words, whatever their form.

    Also where it calls itself a stream.
    """
    for media in ("application/json", "text/event-stream"):
        outcome = answer(reply(content, media, status))

        assert outcome.yields == []
        assert outcome.error is not None
        assert (message, status, kind, param) == (
            outcome.error.message,
            outcome.error.code,
            outcome.error.type,
            outcome.error.param,
        )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/raises", "nobody foresaw this"),
        ("/v1/raises/unhandled", "The worker failed to answer this job."),
        ("/v1/gives-up", "The server gave this request up."),
    ],
)
def test_a_route_that_raises(path: str, message: str) -> None:
    """An exception in the app fails the one job with code 500, and no traceback comes out."""
    error = refused(ask(path, {}))

    assert (message, 500) == (error.message, error.code)


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_after_the_response_started(stream: bool) -> None:
    """An answer that breaks off is an error, after what was sent of it, and never a success."""
    outcome = answer(ask("/v1/breaks", {"stream": stream}))

    assert outcome.error is not None
    assert ("the tool call could not be parsed", 400) == (
        outcome.error.message,
        outcome.error.code,
    )
    assert (ROLE + ANSWER[1]).decode() * stream == "".join(outcome.yields)
    assert (outcome.frame is not None) == stream


@pytest.mark.parametrize("raw", [True, False])
def test_an_error_inside_a_stream(raw: bool) -> None:
    """A stream that tells its error ends the job, and tells it once, in the route's dialect."""
    outcome = answer(ask("/v1/fails", {"stream": True}), raw=raw)

    assert outcome.error is not None
    assert {"error": REFUSED} == outcome.error.body()
    if raw:
        whole = ROLE + ANSWER[1] + event({"error": REFUSED}) + DONE
        assert whole.decode() == "".join([*outcome.yields, outcome.frame])
    else:
        assert [{"error": REFUSED}] == outcome.frame


def bare(content: bytes, headers: dict[str, str] | None = None) -> Any:
    """Return what a reply becomes that has these headers and no more."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(content, headers=headers)(scope, receive, send)

    return answer(ask("/v1/raw", {}), app=app).only


def test_a_text_without_a_type() -> None:
    """What names no type is a text where it can be one, and else bytes."""
    assert bare("Success: gelöscht.".encode()) == "Success: gelöscht."
    assert bare(b"\xff\x00") == {"content_type": "", "base64": "/wA="}
    assert bare(b"a\x00") == {"content_type": "", "base64": "YQA="}


def test_what_is_beside_the_bytes() -> None:
    """vLLM's `metadata` header, which tells several embeddings apart, stands beside their bytes."""
    kind = {"content-type": "application/octet-stream"}
    several = bare(b"\x00\x01", kind | {"metadata": '{"data": [{"index": 0, "start": 0}]}'})

    assert several["metadata"] == {"data": [{"index": 0, "start": 0}]}
    assert "metadata" not in bare(b"\x00\x01", kind | {"metadata": "{half"})


def test_an_app_that_never_answers() -> None:
    """An app that returns without a response is an error and not an empty success."""

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        await receive()

    error = refused(ask("/v1/raw", {}), app=silent)

    assert ("/v1/raw gave no answer.", 500) == (error.message, error.code)


def test_an_app_that_raises_before_it_answers() -> None:
    """An exception that no handler of the app turned into a response is translated as vLLM does."""

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError("The model does not support this")

    error = refused(ask("/v1/raw", {}), app=broken)

    assert ("The model does not support this", 501) == (error.message, error.code)


@pytest.mark.parametrize(
    "request_", [ask("/v1/raises", {}), ask("/v1/fails", {"stream": True}), ask("/v1/gives-up", {})]
)
def test_a_dead_engine(request_: RouteRequest) -> None:
    """Once the engine is dead, every error says so, whatever the app made of it."""
    assert isinstance(refused(request_, errored=True), EngineDied)


@pytest.mark.parametrize(
    ("path", "body", "raw", "expected"),
    [
        (CHAT, {}, True, None),
        (CHAT, {}, False, None),
        (CHAT, None, True, None),
        (CHAT, {"stream": True}, True, 'data: {"error": ERROR}\n\ndata: [DONE]\n\n'),
        (CHAT, {"stream": "true"}, True, 'data: {"error": ERROR}\n\ndata: [DONE]\n\n'),
        ("/v1/responses", {"stream": True}, True, 'data: {"error": ERROR}\n\ndata: [DONE]\n\n'),
        (
            "/v1/messages/?beta=true",
            {"stream": True},
            True,
            'event: error\ndata: {"type": "error", "error": MESSAGES_ERROR}\n\n',
        ),
        (CHAT, {"stream": True}, False, [{"error": REFUSED}]),
        (
            "/messages",
            {"stream": True},
            False,
            [{"type": "error", "error": REFUSED | {"type": "not_found_error"}}],
        ),
    ],
)
def test_frame(path: str, body: Any, raw: bool, expected: Any) -> None:
    """A stream tells its error in the dialect of its route before the job fails."""
    error = RequestError(REFUSED["message"], code=404, param="model")

    async def main() -> Any:
        app = make_app([])
        call = RouteCall(
            ask(path, body),
            make_engine(app),
            Routes(app, OURS),
            *RULES,
            model=MODEL,
            raw=raw,
            errors_as_output=False,
        )
        return call.failure(error)[:-1]

    if isinstance(expected, str):
        anthropics = json.dumps(REFUSED | {"type": "not_found_error"})
        expected = expected.replace("MESSAGES_ERROR", anthropics)
        expected = expected.replace("ERROR", json.dumps(REFUSED))

    assert ([] if expected is None else [expected]) == run(main())


def test_no_error_is_a_completion() -> None:
    """The official client's model takes no error of a real route for an answer."""
    for request in (ask("/v1/nowhere", {}), ask("/v1/raises", {}), ask(CHAT, None)):
        with pytest.raises(ValidationError):
            ChatCompletion.model_validate(refused(request).body())


# --- the client goes away


async def cancel_when(
    ready: Callable[[], bool], path: str, seen: list[str]
) -> tuple[asyncio.Task[None], list[str]]:
    """Start a call, cancel it once it is under way, and return it ended."""
    app = make_app(seen)
    call = RouteCall(
        ask(path, {}),
        make_engine(app),
        Routes(app, OURS),
        *RULES,
        model=MODEL,
        raw=True,
        errors_as_output=False,
    )
    task = asyncio.create_task(call.answer(Outbox(BatchSizes())))
    while not ready():
        assert not task.done()
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    return task, list(seen)


@pytest.mark.parametrize(
    ("path", "noticed"),
    [
        ("/v1/waits", ["disconnected", "stopped"]),
        ("/v1/waits/for-messages", ["stopped"]),
        ("/v1/waits/streaming", ["stopped"]),
        ("/v1/waits/and-raises", ["stopped"]),
    ],
)
def test_cancelling_disconnects(
    path: str, noticed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A cancelled call tells the app that the client is gone, and ends when the app has stopped."""
    seen: list[str] = []
    task, at_the_end = run(cancel_when(lambda: bool(seen), path, seen))

    assert ["started " + MODEL, *noticed] == at_the_end
    assert task.cancelled()
    assert [] == [r for r in caplog.records if r.name == "asyncio"]


def test_cancelling_before_the_app_ran() -> None:
    """A call cancelled in its first moment ends, although the app had not looked for its client."""
    seen: list[str] = []
    task, _ = run(cancel_when(lambda: True, "/v1/waits", seen))

    assert task.cancelled()


def test_a_neighbour_goes_on() -> None:
    """Cancelling one call leaves the one beside it alone."""

    async def main() -> tuple[bool, list[Any]]:
        seen: list[str] = []
        app = make_app(seen)
        engine, routes = make_engine(app), Routes(app, OURS)
        gone = RouteCall(
            ask("/v1/waits", {}),
            engine,
            routes,
            *RULES,
            model=MODEL,
            raw=True,
            errors_as_output=False,
        )
        stays = RouteCall(
            ask(CHAT, {"stream": True}),
            engine,
            routes,
            *RULES,
            model=MODEL,
            raw=True,
            errors_as_output=False,
        )
        outbox: Outbox[Any] = Outbox(BatchSizes())
        task = asyncio.create_task(gone.answer(Outbox(BatchSizes())))
        neighbour = asyncio.create_task(stays.answer(outbox))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task, neighbour])
        outbox.close()
        items: list[Any] = []
        while (batch := await outbox.next()) is not None:
            items += batch
        return task.cancelled(), items

    assert run(main()) == (True, ANSWER)


def test_receive_waits_for_the_end() -> None:
    """The app is told of no disconnect while its client is there, however often it asks."""
    asked: list[Message] = []

    async def curious(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        asked.append(await receive())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                asked.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done", "more_body": False})

    got = answer(ask("/v1/raw", {"a": 1}), app=curious).only

    assert got == "done"
    assert [("http.request", False)] == [(m["type"], m["more_body"]) for m in asked]
    assert {"a": 1, "model": MODEL} == json.loads(asked[0]["body"])
