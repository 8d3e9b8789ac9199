"""What goes over the wire: JSON in and out, bodies with a limit, and who is still listening."""

import json
import select
from typing import Any, NoReturn

from aiohttp import web

from local_endpoint.faults import FAULT

BODY = web.RequestKey("body", bytes)  # set on a request once it is read
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


def parse(body: bytes) -> Any:
    """Read strict JSON, whatever the content type said. Raises `ValueError`."""
    try:
        return _decoder.decode(body.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dump(value: Any) -> bytes:
    # A lone surrogate is valid in JSON and not in UTF-8.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


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
