"""The other door: an HTTP request is read and answered as a job is, and leaves as it comes.

    request ─ request.read ─ NativeCall | RouteCall | DialectCall ─ the client

There are no batches here, and an error has a status of its own.
"""

import asyncio
import hmac
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from worker import request
from worker.batching import BatchSizes
from worker.call import HttpCall
from worker.errors import EngineDied, RequestError, unforeseen
from worker.facts import Limits
from worker.record import Record

NATIVE = "/native"
EACH = BatchSizes(min=1, max=1, growth=1.0, max_delay_s=0)
GATEWAY_MB = 30
# What the worker says itself, or must not hear; the rest of a client's headers are vLLM's to read.
_OURS = frozenset(
    b"accept authorization connection content-length content-type host origin "
    b"transfer-encoding x-request-id".split()
)


class Door:
    """Answers HTTP requests; an ASGI app. Its fields are those of `Handler`."""

    linger_s = 2.0  # in which whoever asks for health hears 503, and not that nobody is there

    def __init__(
        self,
        dialect: Callable[[request.Request], HttpCall],
        limits: Limits,
        *,
        api_key: str,
        max_body_bytes: int,
    ) -> None:
        self._dialect = dialect
        self._limits = limits
        self._key = api_key.encode()
        self._max_body_bytes = max_body_bytes
        self.running: set[asyncio.Task[Any]] = set()
        self.lost = 0
        self.is_closed = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = Headers(scope=scope)
        reply = _Reply(send, headers.get("x-request-id") or uuid.uuid4().hex)
        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)
        try:
            await self._answer(scope, headers, receive, reply)
        except ClientDisconnect:
            pass
        finally:
            self.running.discard(task)

    async def _answer(self, scope: Any, headers: Headers, receive: Any, reply: "_Reply") -> None:
        path = scope["path"]
        refused = None
        try:
            self._check_key(headers)
            if self.is_closed:
                raise EngineDied()
            body = await self._body(headers, receive)
            asked = self._read(scope, body, reply.request_id)
        except RequestError as error:
            given = None if path == NATIVE else {"route": path}
            asked = request.outline({"id": reply.request_id, "input": given}, EACH)
            refused = error
        call = self._dialect(asked)
        with Record(asked, call, headers) as record:
            reply.record = record
            leaving = asyncio.create_task(_left(receive))
            leaving.add_done_callback(lambda _: None if reply.is_whole else record.cancelled())
            try:
                if refused is not None:
                    raise refused
                others = [pair for pair in scope["headers"] if pair[0] not in _OURS]
                await call.pass_on(others, leaving, reply)
            except Exception as error:
                told = error if isinstance(error, RequestError) else unforeseen(error)
                record.failed(told)
                self.lost += isinstance(told, EngineDied)
                await reply.fail(*call.told(told))
            finally:
                leaving.cancel()

    def _read(self, scope: Any, body: Any, request_id: str) -> request.Request:
        query = scope["query_string"].decode("latin-1")
        path, method = scope["path"], scope["method"]
        form = body if isinstance(body, request.Form) else None
        given = body
        if path != NATIVE or method != "POST":
            route = path + (f"?{query}" if query else "")
            given = {"route": route, "method": method, "body": None if form else body}
        asked = request.read({"id": request_id, "input": given}, EACH, self._limits)
        if form and isinstance(asked, request.RouteRequest):
            return replace(asked, body=form)
        if isinstance(asked, request.BatchRequest):
            raise RequestError("A batch is a job of RunPod's queue, and no HTTP request.")
        return asked

    def _check_key(self, headers: Headers) -> None:
        kind, _, key = headers.get("authorization", "").partition(" ")
        if self._key and not (
            kind.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), self._key)
        ):
            raise RequestError(
                "The key is missing or wrong. Send the worker's API_KEY as "
                '"Authorization: Bearer …".',
                code=401,
                type="AuthenticationError",
            )

    async def _body(self, headers: Headers, receive: Any) -> Any:
        """Return a JSON body's value, a form as it is, or None where there is no body."""
        content, more = bytearray(), True
        declared = headers.get("content-length", "0")
        while more:
            too_long = declared.isdecimal() and int(declared) > self._max_body_bytes
            if too_long or len(content) > self._max_body_bytes:
                raise RequestError(
                    f"The body is larger than {self._max_body_bytes // 1_000_000} MB "
                    f"(MAX_BODY_MB); RunPod's gateway takes {GATEWAY_MB} MB.",
                    code=413,
                )
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            content += message.get("body", b"")
            more = message.get("more_body", False)
        kind = headers.get("content-type", "")
        if kind.lower().startswith("multipart/form-data"):
            return request.Form(bytes(content), kind)
        if not content:
            return None
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(f"The body is no JSON: {error}.") from None


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Reply:
    """The way back to one client: what is sent through it, and how it ends badly."""

    def __init__(self, send: Any, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.record: Record | None = None
        self.has_begun = False
        self.is_whole = False
        self.sent_tokens = 0  # pieces, which are not looked into
        self.sent_bytes = 0
        self.waited_s = 0.0

    async def __call__(self, message: Any) -> None:
        """Send an ASGI message."""
        if message["type"] == "http.response.body":
            self._count(message)
        else:
            self.has_begun = True
            named = (b"x-request-id", self.request_id.encode("latin-1", errors="replace"))
            message["headers"] = [*message["headers"], named]
        await self._send(message)

    def _count(self, message: Any) -> None:
        self.is_whole = not message.get("more_body", False)
        self.sent_bytes += len(message["body"])
        if message["body"] and self.record is not None:
            self.sent_tokens += 1
            self.record.posted(self)

    async def event(self, content: bytes, kind: bytes = b"", *, is_last: bool = False) -> None:
        """Send an event of a stream of a kind, the first one with what stands before it."""
        if not self.has_begun:
            headers = [(b"content-type", kind)]
            await self({"type": "http.response.start", "status": 200, "headers": headers})
        await self({"type": "http.response.body", "body": content, "more_body": not is_last})

    async def whole(self, content: bytes, status: int = 200, **headers: str) -> None:
        response = Response(content, status, headers, "application/json")
        await response({"type": "http"}, None, self)  # type: ignore[arg-type]

    async def fail(self, error: RequestError, last: bytes) -> None:
        """End with an error, which `last` tells in a stream that has begun."""
        if self.has_begun:
            await self.event(last, is_last=True)
        else:
            headers = {"www-authenticate": "Bearer"} if error.code == 401 else {}
            await self.whole(error.text().encode(), error.code, **headers)
