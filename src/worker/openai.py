"""A request goes through vLLM's own web app, called in-process, and its reply comes out in events.

The bytes are vLLM's. They are cut only between events, and only read to count what is in them.
"""

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import msgspec

from worker.batching import Outbox
from worker.engine.server import Engine
from worker.errors import EngineDied, RequestError
from worker.facts import Deployment
from worker.generation import reading
from worker.generation.turns import Turns
from worker.processor.reports import Report, refuse_failure
from worker.request import RouteRequest
from worker.sentences import nearest, shown

# Beside every route under /v1: what answers a client and changes nothing in the server.
OPEN_ROUTES = frozenset(
    {
        "/classify",
        "/detokenize",
        "/health",
        "/metrics",
        "/pooling",
        "/rerank",
        "/score",
        "/tokenize",
        "/v2/embed",
        "/v2/rerank",
        "/version",
    }
)
ADMIN_ROUTES = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})

Message = dict[str, Any]


@dataclass(frozen=True)
class Route:
    """One path of the app's own table and the methods it takes."""

    path: str
    methods: tuple[str, ...]
    takes_body: bool
    takes_form: bool
    matches: Callable[[str], bool]


class Routes:
    """The routes that jobs may use, made from the app's own table."""

    def __init__(self, app: Any, extra: Iterable[str]) -> None:
        everything = [_route(route) for route in app.routes if getattr(route, "methods", None)]
        wanted = set(extra)
        self._closed = [r for r in everything if not _is_open(r.path) and r.path not in wanted]
        self._open = _merged(r for r in everything if r not in self._closed)

    def find(self, path: str) -> tuple[str, Route]:
        """Return the path to call and its route: as written, else with `/v1`, else without.

        Raises RequestError (404) naming the routes there are.
        """
        path = path.rstrip("/") or "/"
        candidates = (path, f"/v1{path}", path.removeprefix("/v1"))
        for candidate in candidates:
            for route in self._open:
                if route.matches(candidate):
                    return candidate, route
        for candidate in candidates:
            for route in self._closed:
                if route.matches(candidate):
                    raise RequestError(
                        f"The route {route.path} is closed on this worker. "
                        f"The variable EXTRA_ROUTES={route.path} opens it.",
                        code=404,
                    )
        names = sorted({route.path for route in self._open})
        raise RequestError(
            f"There is no route {shown(path)}.{nearest(path, names)} Routes: {', '.join(names)}.",
            code=404,
        )


def _route(route: Any) -> Route:
    from fastapi.params import Form

    params = getattr(getattr(route, "dependant", None), "body_params", ())

    def matches(path: str) -> bool:
        return route.path_regex.match(path) is not None

    return Route(
        route.path,
        tuple(sorted(route.methods - {"HEAD"})),
        takes_body=bool(params),
        takes_form=any(isinstance(param.field_info, Form) for param in params),
        matches=matches,
    )


def _is_open(path: str) -> bool:
    return path in OPEN_ROUTES or (path.startswith("/v1/") and path not in ADMIN_ROUTES)


def _merged(routes: Iterable[Route]) -> list[Route]:
    """Join the entries of one path: FastAPI has one for each method."""
    merged: dict[str, Route] = {}
    for route in routes:
        known = merged.get(route.path, route)
        methods = tuple(sorted({*known.methods, *route.methods}))
        merged[route.path] = replace(
            known,
            methods=methods,
            takes_body=known.takes_body or route.takes_body,
            takes_form=known.takes_form or route.takes_form,
        )
    return list(merged.values())


class Call:
    """One call of the app: `answer` runs it into an outbox, `join` makes a yield of its events."""

    def __init__(
        self,
        request: RouteRequest,
        engine: Engine,
        routes: Routes,
        deployment: Deployment,
        turns: Turns,
        *,
        model: str,
        raw: bool,
    ) -> None:
        """`model` stands in where the client names none; `raw` is RAW_OPENAI_OUTPUT."""
        self._request = request
        self._engine = engine
        self._routes = routes
        self._deployment = deployment
        self._turns = turns
        self._model = model
        self._raw = raw
        self._told = False  # whether the stream has carried its error in vLLM's own words

    async def answer(self, outbox: Outbox[Any]) -> None:
        """Call the app and put its events, or its one reply, into the outbox.

        Raises RequestError for every status of 400 and more and for an error inside a stream.
        Cancelling it tells the app that the client is gone, and waits for the app to stop.
        """
        path, _, query = self._request.path.partition("?")
        path, route = self._routes.find(path)
        method = self._method(route)
        given = self._request.body
        if isinstance(given, dict) and "generation_parameters" in given:
            given, plan = reading.read_body(given, path, self._deployment)
            sequences = plan.params.n * _prompts(given.get("prompt"))
            async with self._turns.taken(plan.order, is_dear=plan.is_dear, sequences=sequences):
                with self._engine.reports.report() as report:
                    if plan.order is not None:
                        order = replace(plan.order, report=str(report.path))
                        given = given | {"vllm_xargs": order.extra_args()}
                    await self._exchange(path, query, route, method, given, outbox, report)
            return
        await self._exchange(path, query, route, method, given, outbox)

    async def _exchange(
        self,
        path: str,
        query: str,
        route: Route,
        method: str,
        given: Any,
        outbox: Outbox[Any],
        report: Report | None = None,
    ) -> None:
        headers, body = self._body(path, route, method, given)
        exchange = _Exchange(body, outbox, report)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"worker"), *headers],
            "client": ("127.0.0.1", 0),
            "server": ("worker", 80),
        }
        try:
            await _run(self._engine.app(scope, exchange.receive, exchange.send), exchange.gone)
        except Exception as error:
            # Starlette answers an unexpected error and then raises it for the server's log. Raised
            # within an answer, it is the only sign that the rest is missing.
            if exchange.status < 400:
                cause = error.__cause__  # Starlette wraps what is raised within an answer
                reason = cause if isinstance(cause, Exception) else error
                raise self._engine.translate(reason) from error
        exchange.refuse_failure()
        self._finish(exchange, path, outbox)

    def join(self, items: list[Any]) -> Any:
        """Make one yield of a batch: whole SSE events as one text, or the one reply."""
        if not isinstance(items[0], bytes):
            return items[0]
        if self._raw:
            return b"".join(items).decode("utf-8", errors="replace")
        payloads = (_data(event) for event in items)
        return [json.loads(data) for data in payloads if data and data != b"[DONE]"]

    def frame(self, error: RequestError) -> Any:
        """Return what a stream says of an error before its job fails; None without a stream."""
        if not self._request.stream or self._told:
            return None
        if self._request.path.split("?")[0].rstrip("/").endswith("/messages"):
            body = {"type": "error", "error": {"type": error.type, "message": error.message}}
            event = f"event: error\ndata: {json.dumps(body)}\n\n"
            return event if self._raw else [body]
        if not self._raw:
            return [error.body()]
        return f"data: {error.text()}\n\ndata: [DONE]\n\n"

    def _method(self, route: Route) -> str:
        asked = self._request.method
        if asked is not None:
            if asked not in route.methods:
                raise RequestError(
                    f"{route.path} takes {' or '.join(route.methods)}, not {asked}.", code=405
                )
            return asked
        if len(route.methods) == 1:
            return route.methods[0]
        return "GET" if self._request.body in (None, {}) else "POST"

    def _body(
        self, path: str, route: Route, method: str, body: Any
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        job_id = ("x-request-id", self._request.job_id)
        if method == "GET":
            content, headers = b"", [job_id]
        elif route.takes_form:
            fields = _object(body)
            content, kind = _multipart(fields | {"model": fields.get("model") or self._model})
            headers = [job_id, ("content-type", kind)]
        else:
            if isinstance(body, dict):
                body = body | {"model": body.get("model") or self._model}
                if path == "/v1/responses":  # the one route that reads its id from the body
                    body.setdefault("request_id", f"resp_{self._request.job_id}")
            elif route.takes_body:
                raise RequestError(
                    f"{route.path} takes a JSON object as openai_input (or as body, beside route), "
                    f"not {shown(body)}."
                )
            content = msgspec.json.encode(body) if body is not None else b""
            headers = [job_id, ("content-type", "application/json")]
        headers.append(("content-length", str(len(content))))
        return [(k.encode(), v.encode("latin-1", errors="replace")) for k, v in headers], content

    def _finish(self, exchange: "_Exchange", path: str, outbox: Outbox[Any]) -> None:
        if exchange.streams:
            for event in exchange.splitter.rest():
                exchange.put(event)
            if exchange.error is not None:
                self._told = True
                raise self._stream_error(exchange.error)
            return
        content = bytes(exchange.content)
        if not exchange.status:
            raise RequestError(f"{path} gave no answer.", code=500)
        if exchange.status >= 400:
            raise self._status_error(exchange.status, content, path)
        outbox.put(_reply(exchange.content_type, content), 0, len(content))

    def _status_error(self, status: int, content: bytes, path: str) -> RequestError:
        if self._engine.client.errored:
            return EngineDied()
        try:
            reply = json.loads(content)
            if isinstance(reply.get("detail"), str):  # FastAPI's own, such as a wrong method
                return RequestError(f"{path}: {reply['detail']}.", code=status)
            info = reply["error"]
            message = _plain(info["message"])
            if not message and not self._deployment.has_tokenizer:
                message = (
                    "This route needs a tokenizer, and this worker runs without one "
                    "(SKIP_TOKENIZER_INIT)."
                )
            return RequestError(
                message + _hint(message),
                code=status,
                type=info.get("type"),
                param=info.get("param"),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            text = content.decode("utf-8", errors="replace").strip()
            return RequestError(text or f"{path} answered with status {status}.", code=status)

    def _stream_error(self, info: Any) -> RequestError:
        if self._engine.client.errored:
            return EngineDied()
        if not isinstance(info, dict):
            return RequestError(str(info), code=500)
        code = info.get("code")
        return RequestError(
            str(info.get("message")),
            code=code if isinstance(code, int) else 500,
            type=info.get("type"),
            param=info.get("param"),
        )


def _prompts(given: Any) -> int:
    """Return how many prompts a body has: a text, token ids, or a list of either."""
    if isinstance(given, list) and not all(type(one) is int for one in given):
        return len(given)
    return 1


class _Exchange:
    """The two ASGI channels of one call, and what came back through them."""

    def __init__(self, body: bytes, outbox: Outbox[Any], report: Report | None = None) -> None:
        self.gone = asyncio.Event()
        self.status = 0
        self.content_type = ""
        self.streams = False
        self.content = bytearray()
        self.splitter = EventSplitter()
        self.error: Any = None
        self._body: bytes | None = body
        self._outbox = outbox
        self._report = report
        self._failure: RequestError | None = None

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = {bytes(k).lower(): bytes(v) for k, v in message["headers"]}
            self.content_type = headers.get(b"content-type", b"").decode("latin-1")
            is_events = self.content_type.startswith("text/event-stream")
            self.streams = is_events and self.status < 400
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            if not self.streams:
                self.content += body
                return
            for event in self.splitter.feed(body):
                self.put(event)

    def refuse_failure(self) -> None:
        """Raise RequestError where the chain failed: the app takes that for an ordinary end."""
        if self._failure is None and self._report is not None:
            try:
                refuse_failure(self._report.read())
            except RequestError as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure

    def put(self, event: bytes) -> None:
        try:
            self.refuse_failure()
        except RequestError:  # the rest would tell of a good end; it is dropped, and cut short
            self.gone.set()
            return
        tokens, error = weigh(event)
        if error is not None:
            self.error = error
        self._outbox.put(event, tokens, len(event))


async def _run(call: Coroutine[Any, Any, None], gone: asyncio.Event) -> None:
    """Run a call of the app to its end; when we are cancelled, tell it that the client is gone."""
    running = asyncio.ensure_future(call)
    # An error after the client has gone is nobody's: without this asyncio would log it.
    running.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        # Cancelling the call alone would leave a non-streaming request generating.
        gone.set()
        await asyncio.wait([running])
        raise
    if running.cancelled():  # by the app itself; raised here, it would look like our own end
        raise RuntimeError("The server gave this request up.")
    running.result()


class EventSplitter:
    """Cuts a stream of bytes into whole SSE events; an event ends with an empty line."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *events, self._buffer = (self._buffer + chunk).split(b"\n\n")
        return [event + b"\n\n" for event in events]

    def rest(self) -> list[bytes]:
        """Return what came after the last empty line, as one event."""
        rest, self._buffer = self._buffer, b""
        return [rest + b"\n\n"] if rest.strip() else []


class _Delta(msgspec.Struct):
    role: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    type: str = ""
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


def weigh(event: bytes) -> tuple[int, Any]:
    """Return how much output an event carries (0 or 1) and its error, if it is one.

    Chat and completion chunks carry output unless they announce the role or hold the usage;
    events of the Responses and Anthropic routes carry it when their type says delta.
    """
    data = _data(event)
    if data == b"[DONE]":
        return 0, None
    try:
        parsed = _decode(data)
    except msgspec.DecodeError:
        return 0, None
    if parsed.error is not None:
        return 0, parsed.error
    if parsed.choices is not None:
        carries = any(c.delta is None or c.delta.role is None for c in parsed.choices)
    else:
        carries = parsed.type.endswith("delta")
    return int(carries), None


def _data(event: bytes) -> bytes:
    """Return the payload of an event's `data:` line; vLLM writes it on one line."""
    if event.startswith(b"data: "):
        return event[6:].strip()
    for line in event.splitlines():
        if line.startswith(b"data:"):
            return line[5:].strip()
    return b""


def _reply(content_type: str, content: bytes) -> Any:
    if not content:
        return {"status": 200}
    kind = content_type.split(";")[0].strip()
    text = content.decode("utf-8", errors="replace")
    if kind.endswith("json"):
        try:
            reply = msgspec.json.decode(content)
        except msgspec.DecodeError:  # NaN, for one: what is no strict JSON goes on as vLLM wrote it
            return text
        # A yielded dict with a truthy `error` fails the job in the SDK; a reply is not an error.
        # None would be the end of the job.
        is_special = reply is None or (isinstance(reply, dict) and reply.get("error"))
        return text if is_special else reply
    if kind.startswith("text/"):
        return text
    return {"content_type": content_type, "base64": base64.b64encode(content).decode("ascii")}


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict) or not isinstance(body.get("file"), str):
        raise RequestError(
            'This route takes a file: {"file": "<base64 or data URL>", "filename": "speech.wav"} '
            "and its other fields beside it.",
            param="file",
        )
    return body


def _multipart(fields: dict[str, Any]) -> tuple[bytes, str]:
    """Turn JSON fields with a base64 `file` into a multipart form and its content type."""
    import httpx

    text, kind = fields["file"], "application/octet-stream"
    if text.startswith("data:"):
        head, _, text = text.partition(",")
        kind = head.removeprefix("data:").split(";")[0] or kind
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(
            "file is neither base64 nor a data URL of base64.", param="file"
        ) from None
    name = fields.get("filename") or "file"
    plain: dict[str, Any] = {
        key: [_form_text(item) for item in value] if isinstance(value, list) else _form_text(value)
        for key, value in fields.items()
        if key not in ("file", "filename") and value is not None
    }
    form = httpx.Request(
        "POST", "http://worker/", data=plain, files={"file": (str(name), content, kind)}
    )
    return form.read(), form.headers["content-type"]


def _form_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# What vLLM says of a body of the wrong shape: the repr of pydantic's dicts, or pydantic's own text.
_ENTRIES = (
    re.compile(
        r"'loc': '(?:body\.)?(?P<where>[^']*)', 'msg': (?P<q>['\"])(?P<what>.*?)(?<!\\)(?P=q)"
    ),
    re.compile(r"^(?P<where>\S+)\n  (?P<what>.*?) \[type=", re.MULTILINE),
)
MOST_ENTRIES = 3  # a union reports each of its branches


def _plain(message: str) -> str:
    """Put vLLM's list of validation errors in words; any other message stays as it is."""
    if not re.match(r"\d+ validation errors?\b", message):
        return message
    entries = dict.fromkeys(
        f"{found['where']}: {found['what'].replace(chr(92), '')}"
        for entry in _ENTRIES
        for found in entry.finditer(message)
    )
    return "; ".join(list(entries)[:MOST_ENTRIES]) + "." if entries else message


def _hint(message: str) -> str:
    """Append what the deployer of a worker can do, where vLLM names options of its own program."""
    if "chat template" in message and "tokenizer" in message:
        return " Set the variable CUSTOM_CHAT_TEMPLATE, or use the route /v1/completions."
    if "skip_tokenizer_init" in message:
        return " (The variable SKIP_TOKENIZER_INIT. Token ids for /v1/completions need none.)"
    if option := re.search(r"--([a-z][a-z0-9-]+)", message):
        variable = option[1].replace("-", "_").upper()
        return f" (On this worker {option[0]} is the variable {variable}.)"
    return ""
