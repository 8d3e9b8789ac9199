"""A request goes through vLLM's own web app, called in-process, and its reply comes out in events.

The bytes are vLLM's. They are cut only between events, and only read to count what is in them.
"""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from worker.batching import Outbox
from worker.call import Headers
from worker.engine import receipts
from worker.engine.pacing import Spacing, paced
from worker.engine.receipts import Receipt
from worker.engine.server import NOTED, Engine
from worker.errors import EngineDied, RequestError
from worker.facts import Facts
from worker.generation.turns import Turns
from worker.openai import bodies
from worker.openai.bodies import file_fields, form
from worker.openai.events import payload
from worker.openai.exchange import Exchange, ForClient, ForJob, run
from worker.openai.older_names import OlderNames, Rename, renaming
from worker.openai.replies import frame, hint, in_dialect
from worker.openai.routes import Route, Routes
from worker.processor.reports import Report
from worker.record import Usage
from worker.request import Form, RouteRequest, count_prompts
from worker.sentences import shown

# What vLLM says where the engine failed; its Anthropic route stumbles over the event that says so.
FAILED = re.compile(
    r"Internal server error$|\d+ validation errors? for ChatCompletionStreamResponse"
)


class RouteCall:
    """One call of the app: `answer` runs it into an outbox, `join` makes a yield of its events."""

    def __init__(
        self,
        request: RouteRequest,
        engine: Engine,
        routes: Routes,
        facts: Facts,
        turns: Turns,
        older: OlderNames,
        *,
        model: str,
        raw: bool,
        errors_as_output: bool,
    ) -> None:
        """`model` stands in where the client names none.

        `raw` is RAW_OPENAI_OUTPUT, `errors_as_output` OPENAI_ERRORS_AS_OUTPUT.
        """
        self._request = request
        self._engine = engine
        self._routes = routes
        self._facts = facts
        self._turns = turns
        self._older = older
        self._model = model
        self._raw = raw
        self._errors_as_output = errors_as_output
        self._exchange: Exchange | None = None
        self._receipt: Receipt | None = None

    @property
    def usage(self) -> Usage:
        """What the answer has said so far of its tokens."""
        usage = self._exchange.usage if self._exchange else Usage()
        return usage if self._receipt is None else usage._replace(receipt=self._receipt.said())

    async def answer(self, outbox: Outbox[Any]) -> None:
        """Call the app and put its events, or its one reply, into the outbox.

        Raises RequestError for every status of 400 and more and for an error inside a stream.
        Cancelling it tells the app that the client is gone, and waits for the app to stop.
        """

        with (
            receipts.kept(wanted=self._facts.receipts) as self._receipt,
            paced(outbox, merges=self._merges()) as pace,
        ):

            def exchange(body: bytes, report: Report | None) -> Exchange:
                return ForJob(body, report, outbox, pace, comments=self._raw)

            await self._call(exchange)

    async def pass_on(self, headers: Headers, leaving: asyncio.Future[None], send: Any) -> None:
        """Call the app for an HTTP client, who gets its events as they come."""

        def exchange(body: bytes, report: Report | None) -> Exchange:
            return ForClient(body, report, leaving, send)

        with (
            receipts.kept(wanted=self._facts.receipts) as self._receipt,
            Spacing() as spacing,
            paced(spacing, merges=self._merges()),
        ):
            await self._call(exchange, headers)

    def _merges(self) -> bool:
        """Say whether an event may tell of several tokens.

        vLLM's parsers of tools and reasoning look for their marks in what one output brings, and
        the answers to several prompts wait for each other on their way.
        """
        body = self._request.body if isinstance(self._request.body, dict) else {}
        if body.get("tools") or body.get("functions") or self._facts.parses_reasoning:
            return False
        return self._facts.merges and count_prompts(body.get("prompt")) == 1

    async def _call(
        self, make: Callable[[bytes, Report | None], Exchange], headers: Headers = ()
    ) -> None:
        path, _, query = self._request.path.partition("?")
        path, route = self._routes.find(path)
        method = self._method(route)
        given, rename = self._request.body, None
        if isinstance(given, dict):
            given, rename = self._older.read(path, given)
            if not (self._facts.parses_reasoning or given.get("tools")):
                rename = None  # there is nothing in the reply that had another name
        if isinstance(given, dict) and "generation_parameters" in given:
            given, plan = bodies.read_body(given, path, self._facts)
            sequences = plan.params.n * count_prompts(given.get("prompt"))
            async with self._turns.taken(plan.order, is_costly=plan.is_costly, sequences=sequences):
                with self._engine.reports.report() as report:
                    if plan.order is not None:
                        given = given | {"vllm_xargs": plan.order.extra_args(report.path)}
                    own, body = self._body(path, route, method, given)
                    await self._run(
                        path, query, method, [*headers, *own], make(body, report), given, rename
                    )
            return
        own, body = self._body(path, route, method, given)
        await self._run(path, query, method, [*headers, *own], make(body, None), given, rename)

    async def _run(
        self,
        path: str,
        query: str,
        method: str,
        headers: Headers,
        exchange: Exchange,
        given: Any,
        rename: Rename | None,
    ) -> None:
        self._exchange = exchange
        noted: list[Exception] = []
        scope = {
            NOTED: noted,
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
        send = renaming(exchange.send, rename) if rename else exchange.send
        model = given.get("model") if isinstance(given, dict) else None
        try:
            async with self._engine.adapters.held(model):
                await run(self._engine.app(scope, exchange.receive, send), exchange.gone)
        except Exception as error:
            # Starlette answers an unexpected error and then raises it for the server's log. Raised
            # within an answer, it is the only sign that the rest is missing.
            if exchange.status < 400:
                cause = error.__cause__  # Starlette wraps what is raised within an answer
                reason = cause if isinstance(cause, Exception) else error
                raise self._engine.translate(reason) from error
            if self._facts.has_tokenizer:  # else it is for want of one, which is told below
                noted.append(error)
        exchange.refuse_failure()
        if noted and exchange.status >= 400:
            raise self._explained(self._engine.translate(noted[-1]))
        self._refuse_error(exchange, path)
        await exchange.finish()

    def join(self, items: list[Any]) -> Any:
        """Make one yield of a batch: whole SSE events as one text, or the one reply."""
        if not isinstance(items[0], bytes):
            return items[0]
        if self._raw:
            return b"".join(items).decode("utf-8", errors="replace")
        payloads = (payload(event) for event in items)
        return [json.loads(data) for data in payloads if data and data != b"[DONE]"]

    def told(self, error: RequestError) -> tuple[RequestError, bytes]:
        error = in_dialect(self._request.path, error)
        return error, frame(error)

    def failure(self, error: RequestError) -> list[Any]:
        """Return what a stream says of an error, in its dialect, and the job's error."""
        error, last = self.told(error)
        if not self._request.stream:
            return [error.told(as_output=self._errors_as_output)]
        # As an output the error would follow the frame that has told it.
        said = last.decode() if self._raw else [error.body()]
        return [said, *([] if self._errors_as_output else [error.told()])]

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
            if isinstance(body, Form):
                content, kind = body.content, body.content_type
            else:
                fields = file_fields(body)
                content, kind = form(fields | {"model": fields.get("model") or self._model})
            headers = [job_id, ("content-type", kind)]
        else:
            if isinstance(body, dict):
                body = body | {"model": body.get("model") or self._model}
                if path == "/v1/responses":  # the one route that reads its id from the body
                    body.setdefault("request_id", f"resp_{self._request.job_id}")
            elif route.takes_body:
                raise RequestError(
                    f"{route.path} takes a JSON object as its body (a job's openai_input), "
                    f"not {shown(body)}."
                )
            content = msgspec.json.encode(body) if body is not None else b""
            headers = [job_id, ("content-type", "application/json")]
        headers.append(("content-length", str(len(content))))
        return [(k.encode(), v.encode("latin-1", errors="replace")) for k, v in headers], content

    def _refuse_error(self, exchange: Exchange, path: str) -> None:
        """Raise what the app has told as an error."""
        if exchange.streams:
            if exchange.error is not None:
                raise self._explained(self._stream_error(exchange.error))
            return
        content = bytes(exchange.content)
        if not exchange.status:
            raise RequestError(f"{path} gave no answer.", code=500)
        if exchange.status >= 400:
            raise self._explained(self._status_error(exchange.status, content, path))

    def _status_error(self, status: int, content: bytes, path: str) -> RequestError:
        if self._engine.is_dead:
            return EngineDied()
        try:
            reply = json.loads(content)
            if isinstance(reply.get("detail"), str):  # FastAPI's own, such as a wrong method
                return RequestError(f"{path}: {reply['detail']}.", code=status)
            info = reply["error"]
            message = info["message"]
            if not message and not self._facts.has_tokenizer:
                message = (
                    "This route needs a tokenizer, and this worker runs without one "
                    "(SKIP_TOKENIZER_INIT)."
                )
            return RequestError(
                message.partition(" (parameter=")[0],
                code=status,
                type=info.get("type"),
                param=info.get("param"),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            text = content.decode("utf-8", errors="replace").strip()
            return RequestError(text or f"{path} answered with status {status}.", code=status)

    def _explained(self, error: RequestError) -> RequestError:
        """Add what helps on this worker, and where vLLM says only that it failed, why."""
        if FAILED.match(error.message):
            return self._engine.failed(self._request.job_id)
        added = hint(error.message)
        if not added:
            return error
        return RequestError(
            error.message + added, code=error.code, type=error.type, param=error.param
        )

    def _stream_error(self, info: Any) -> RequestError:
        if self._engine.is_dead:
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
