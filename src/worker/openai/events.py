"""Server-sent events: cut apart, and weighed."""

from typing import Any

import msgspec

from worker.record import Usage


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


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None


class _Telling(msgspec.Struct):
    usage: _Usage | None = None
    message: "_Telling | None" = None
    response: "_Telling | None" = None


_told = msgspec.json.Decoder(_Telling).decode
_decode = msgspec.json.Decoder(_Event).decode


def weigh(event: bytes) -> tuple[bool, Any]:
    """Return whether an event carries output, and its error, if it is one.

    Chat and completion chunks carry output unless they announce the role or hold the usage;
    events of the Responses and Anthropic routes carry it when their type says delta.
    """
    data = payload(event)
    if data == b"[DONE]":
        return False, None
    try:
        parsed = _decode(data)
    except msgspec.DecodeError:
        return False, None
    if parsed.error is not None:
        return False, parsed.error
    if parsed.choices is not None:
        carries = any(c.delta is None or c.delta.role is None for c in parsed.choices)
    else:
        carries = parsed.type.endswith("delta")
    return carries, None


def says_more(content: bytes) -> bool:
    """Say whether events may tell of an error or of tokens: a text's quotes would be escaped."""
    return b'"error"' in content or b'"usage":{' in content or b'"usage": {' in content


def usage_in(event: bytes, before: Usage) -> Usage:
    """Return what the events of a stream say of its tokens, with one more event."""
    now = usage_of(payload(event))
    return Usage(
        before.prompt if now.prompt is None else now.prompt,
        before.output if now.output is None else now.output,
    )


def usage_of(reply: bytes) -> Usage:
    """Return what a reply or an event says of its tokens, in the words of any of vLLM's routes."""
    try:
        told = _told(reply)
    except msgspec.DecodeError:
        return Usage()
    for place in (told, told.message, told.response):
        if place is not None and (said := place.usage) is not None:
            return Usage(
                said.input_tokens if said.prompt_tokens is None else said.prompt_tokens,
                said.output_tokens if said.completion_tokens is None else said.completion_tokens,
            )
    return Usage()


def is_comment(event: bytes) -> bool:
    """Say whether an event only shows that the stream lives, as `: keep-alive` does."""
    return event.startswith(b":") and not payload(event)


def written_bytes(event: bytes) -> int:
    """Return what an event adds to a post: a JSON text, in which these three take two bytes."""
    return len(event) + event.count(b'"') + event.count(b"\\") + event.count(b"\n")


def payload(event: bytes) -> bytes:
    """Return the payload of an event's `data:` line; vLLM writes it on one line."""
    if event.startswith(b"data: "):
        return event[6:].strip()
    for line in event.splitlines():
        if line.startswith(b"data:"):
            return line[5:].strip()
    return b""
