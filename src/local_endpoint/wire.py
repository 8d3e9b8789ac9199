"""What goes over the wire: JSON in and out, bodies with a limit, and who is still listening."""

import json
import re
import select
import sys
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NoReturn, TypeVar

from aiohttp import web

from local_endpoint.faults import FAULT

T = TypeVar("T")
R = TypeVar("R")
BODY = web.RequestKey("body", bytes)  # set on a request once it is read
DEEPEST = 10_000  # what is nested deeper is not read; ten times this would overflow the stack
_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_HUNG_UP = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class TooLargeError(Exception):
    """A body is larger than its limit."""


class RefusedError(Exception):
    """A request is answered with a status and a sentence instead."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def parse(body: bytes, max_depth: int = DEEPEST) -> Any:
    """Read strict JSON, whatever the content type said. Raises `ValueError`."""
    most = min(max_depth, DEEPEST)
    if (depth := _depth(body, most)) > most:
        raise ValueError(f"nested {depth:,} deep, more than the limit of {most:,} (max_depth)")
    return _deeply(_decoder.decode, body.decode())


def dump(value: Any) -> bytes:
    """Write JSON. Half a surrogate pair is valid in JSON and not in UTF-8: it stays an escape."""
    return _deeply(_encoder.encode, value).encode(errors="backslashreplace")


def _depth(body: bytes, most: int) -> int:
    """Return how deep JSON is nested, or 0 if that is surely not more than `most`."""
    if body.count(b"[") + body.count(b"{") <= most:
        return 0
    brackets = _TEXTS.sub(b"", body).translate(None, _NO_BRACKETS)
    return max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0)


def _deeply(function: Callable[[T], R], value: T) -> R:
    """Read or write a value that may be nested deeper than Python's functions may be."""
    try:
        return function(value)
    except RecursionError:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + DEEPEST + 100)
        try:
            return function(value)
        finally:
            sys.setrecursionlimit(limit)


async def read(request: web.Request, limit: int) -> bytes:
    """Read a body of up to `limit` bytes. Raises `TooLargeError`, having read it to its end."""
    if request.content_length is not None and request.content_length <= limit:
        body = request[BODY] = await request.read()
        return body
    size = 0
    parts = []
    async for part in request.content.iter_any():
        size += len(part)
        if size <= limit:
            parts.append(part)
    if size > limit:
        raise TooLargeError(f"{size:,} bytes are more than the limit of {limit:,}")
    body = request[BODY] = b"".join(parts)
    return body


def reply(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=dump(value), status=status, content_type="application/json", charset="utf-8"
    )


def refuse(message: str, status: int) -> web.Response:
    return reply({"error": message}, status)


def openai_error(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind}}


def is_connected(request: web.Request) -> bool:
    """Return whether the other side is still there, as far as the kernel knows."""
    transport = request.transport
    if transport is None or transport.is_closing():
        return False
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), _HUNG_UP)
    return not poll.poll(0)


async def send(request: web.Request, response: web.Response) -> None:
    """Write an answer now, or let its fault happen. Raises `ConnectionError` if it cannot."""
    fault = request.get(FAULT)
    if fault is not None and not await fault.before_answer(request):
        return
    if not is_connected(request):
        raise ConnectionResetError("the client is gone")
    await response.prepare(request)
    await response.write_eof()
