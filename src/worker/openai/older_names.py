"""Older and others' names on these routes, which vLLM 0.32 takes for unknown ones and ignores.

`guided_…` stood where `structured_outputs` stands now, `functions` and `function_call` where
`tools` and `tool_choice` do, and `reasoning_content` where `reasoning` does, which vLLM still takes
in a message. Whoever asks in older names is answered in both. Hugging Face's clients send schemas
and tools as text-generation-inference takes them, and name a model where none was given to them.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from worker.generation.conflicts import contradiction
from worker.openai.events import EventSplitter, payload

CHAT = "/v1/chat/completions"
GUIDED = {
    f"guided_{name}": name
    for name in ("json", "regex", "choice", "grammar", "json_object", "whitespace_pattern")
}
PLACEHOLDERS = frozenset({"dummy", "tgi"})  # huggingface_hub's and text-generation's
NULLS = ("name", "tool_calls")
Rename = Callable[[Any], None]

log = logging.getLogger("worker")


@dataclass(frozen=True)
class OlderNames:
    """What becomes of older names; `is_strict` is STRICT_OPENAI, `always` OLD_REPLY_NAMES.

    `no_models` are names in place of a model that say nothing.
    """

    is_strict: bool = False
    always: bool = False
    no_models: frozenset[str] = PLACEHOLDERS
    _said: set[str] = field(default_factory=set)

    def read(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], Rename | None]:
        """Return a body in today's names, and what adds the older ones to its reply, if anything.

        Raises RequestError where both names of a thing say different things.
        """
        if path not in (CHAT, "/v1/completions"):
            return body, None
        used: dict[str, str] = {}
        given = body
        if not self.is_strict:
            if isinstance(name := given.get("model"), str) and name in self.no_models:
                given = {key: value for key, value in given.items() if key != "model"}
            given = _formatted(_guided(given, used))
            if path == CHAT:
                given = _functions(_without_nulls(given), used)
        for old, new in used.items():
            if old not in self._said:
                self._said.add(old)
                log.info("A request uses %s, the older name of %s. It was translated.", old, new)
        if path != CHAT or not (used or self.always):
            return given, None
        return given, _rename_call if "functions" in used else _rename


def _guided(body: dict[str, Any], used: dict[str, str]) -> dict[str, Any]:
    old = GUIDED.keys() & body.keys()
    if not old:
        return body
    asked = {GUIDED[name]: body[name] for name in old if body[name] is not None}
    if asked.get("json_object") is False:  # as old clients say that they want none
        del asked["json_object"]
    body = {name: value for name, value in body.items() if name not in old}
    if not asked:
        return body
    there = body.get("structured_outputs")
    for name, value in asked.items():
        used[f"guided_{name}"] = f"structured_outputs.{name}"
        if isinstance(there, dict) and there.get(name, value) != value:
            raise contradiction(f"structured_outputs.{name}", there[name], f"guided_{name}", value)
    return body | {"structured_outputs": (there if isinstance(there, dict) else {}) | asked}


def _formatted(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body with text-generation-inference's choices in OpenAI's words."""
    told: dict[str, Any] = {}
    match body.get("response_format"):
        case {"type": "json" | "json_object", "value": dict() as schema}:
            wanted = {"name": "value", "schema": schema}
            told["response_format"] = {"type": "json_schema", "json_schema": wanted}
        case {"type": "regex", "value": str() as regex} if "structured_outputs" not in body:
            told = {"response_format": None, "structured_outputs": {"regex": regex}}
    match body.get("tool_choice"):
        case str() as name if name not in ("none", "auto", "required"):
            told["tool_choice"] = {"type": "function", "function": {"name": name}}
    return body | told if told else body


def _without_nulls(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body whose messages hold no names without a value, as text-generation's do."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    bare = [
        {name: value for name, value in one.items() if value is not None or name not in NULLS}
        if isinstance(one, dict)
        else one
        for one in messages
    ]
    return body if bare == messages else body | {"messages": bare}


def _functions(body: dict[str, Any], used: dict[str, str]) -> dict[str, Any]:
    functions, choice = body.get("functions"), body.get("function_call")
    if isinstance(functions, list) and functions and not body.get("tools"):
        used["functions"] = "tools"
        tools = [{"type": "function", "function": one} for one in functions]
        body = body | {"tools": tools}
        if choice is not None and body.get("tool_choice") is None:
            is_named = isinstance(choice, dict)
            body["tool_choice"] = {"type": "function", "function": choice} if is_named else choice
        del body["functions"]
        body.pop("function_call", None)
    messages = body.get("messages")
    if isinstance(messages, list) and any(map(_is_old, messages)):
        body = body | {"messages": _messages(messages, used)}
    if isinstance(messages, list) and any(
        isinstance(one, dict) and one.get("reasoning_content") is not None for one in messages
    ):
        used["reasoning_content"] = "reasoning"
    return body


def _is_old(message: Any) -> bool:
    return isinstance(message, dict) and (
        message.get("role") == "function" or isinstance(message.get("function_call"), dict)
    )


def _messages(messages: list[Any], used: dict[str, str]) -> list[Any]:
    """Return a conversation whose calls of functions are those of tools."""
    ids: dict[Any, str] = {}  # of each function's latest call
    told = []
    for at, message in enumerate(messages):
        if not _is_old(message):
            told.append(message)
            continue
        rest = {name: value for name, value in message.items() if name != "function_call"}
        if message["role"] == "function":
            used["role: function"] = "role: tool"
            name = str(message.get("name"))
            rest |= {"role": "tool", "tool_call_id": ids.get(name, f"call_{name}")}
        elif not rest.get("tool_calls"):
            used["function_call"] = "tool_calls"
            call = message["function_call"]
            ids[str(call.get("name"))] = f"call_{at}"
            rest["tool_calls"] = [{"id": f"call_{at}", "type": "function", "function": call}]
        told.append(rest)
    return told


def _rename(reply: Any) -> None:
    """Put the older names beside today's ones in a reply or an event of a chat."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    for choice in choices or ():
        for said in (choice.get("message"), choice.get("delta")):
            if not said:
                continue
            if "reasoning" in said:
                said["reasoning_content"] = said["reasoning"]
            # There was room for one call.
            calls = [call for call in said.get("tool_calls") or () if not call.get("index")]
            if calls:
                said["function_call"] = calls[0]["function"]


def _rename_call(reply: Any) -> None:
    """Do the same for a request with functions, which looks for a reason of that name too."""
    _rename(reply)
    for choice in reply.get("choices") or () if isinstance(reply, dict) else ():
        if choice.get("finish_reason") == "tool_calls":
            choice["finish_reason"] = "function_call"


def renaming(send: Any, rename: Rename) -> Any:
    """Return a `send` for an ASGI app whose reply, or each event of it, is renamed on its way."""
    splitter = EventSplitter()
    whole = bytearray()
    is_stream = False

    async def renamed(message: dict[str, Any]) -> None:
        nonlocal is_stream
        if message["type"] == "http.response.start":
            headers = [pair for pair in message["headers"] if pair[0] != b"content-length"]
            is_stream = any(value.startswith(b"text/event-stream") for _, value in headers)
            await send(message | {"headers": headers})
            return
        content, more = message.get("body", b""), message.get("more_body", False)
        if is_stream:
            events = (*splitter.feed(content), *(() if more else splitter.rest()))
            content = b"".join(_event(event, rename) for event in events)
        else:
            whole.extend(content)
            content = b"" if more else _renamed(bytes(whole), rename)
        if content or not more:
            await send(message | {"body": content})

    return renamed


def _event(event: bytes, rename: Rename) -> bytes:
    if b'"reasoning"' not in event and b'"tool_calls"' not in event:
        return event
    return b"data: " + _renamed(payload(event), rename) + b"\n\n"


def _renamed(content: bytes, rename: Rename) -> bytes:
    try:
        reply = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content
    rename(reply)
    return msgspec.json.encode(reply)
