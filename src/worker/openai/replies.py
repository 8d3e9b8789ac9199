"""What a reply or an error of vLLM's becomes for the caller."""

import base64
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from worker.errors import RequestError

MESSAGES_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class MessagesError(RequestError):
    """An error as Anthropic's clients read it: in its envelope, and of its types."""

    def __init__(self, error: RequestError) -> None:
        usual = "invalid_request_error" if error.code < 500 else "api_error"
        kind = MESSAGES_TYPES.get(error.code, usual)
        super().__init__(error.message, code=error.code, type=kind, param=error.param)

    def body(self) -> dict[str, Any]:
        return {"type": "error", **super().body()}


def in_dialect(path: str, error: RequestError) -> RequestError:
    """Return an error as the clients of a route read it: Anthropic's have an envelope around it."""
    return MessagesError(error) if "/messages" in path.partition("?")[0] else error


def frame(error: RequestError) -> bytes:
    """Return what a stream says of an error, and its end."""
    if isinstance(error, MessagesError):
        return f"event: error\ndata: {error.text()}\n\n".encode()
    return f"data: {error.text()}\n\ndata: [DONE]\n\n".encode()


def value_of(headers: Mapping[str, str], content: bytes) -> Any:
    """Return what a reply becomes: JSON, a text, or bytes with the `metadata` that is beside them.

    What has no type is a text, if it is one.
    """
    if not content:
        return {"status": 200}
    content_type = headers.get("content-type", "")
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
    if kind.startswith("text/") or (not kind and "\ufffd" not in text and "\0" not in text):
        return text
    value = {"content_type": content_type, "base64": base64.b64encode(content).decode("ascii")}
    if "metadata" in headers:  # vLLM's: where each of several embeddings lies in the bytes
        with suppress(ValueError):
            value["metadata"] = json.loads(headers["metadata"])
    return value


def hint(message: str) -> str:
    """Append what the deployer of a worker can do, where vLLM names options of its own program."""
    if "chat template" in message and "tokenizer" in message:
        return " Set the variable CUSTOM_CHAT_TEMPLATE, or use the route /v1/completions."
    if message.endswith("is not a multimodal model"):
        return ": it reads text alone, and takes no images, audio or video."
    if message.startswith("The URL must be either"):
        return " Base64 is sent as one that begins with data:image/png;base64, or the like."
    if "skip_tokenizer_init" in message:
        return " (The variable SKIP_TOKENIZER_INIT. Token ids for /v1/completions need none.)"
    if "tool-call-parser" in message and "requires" in message:
        return " (On this worker that is ENABLE_AUTO_TOOL_CHOICE=1 beside TOOL_CALL_PARSER.)"
    if option := re.search(r"--([a-z][a-z0-9-]+)", message):
        variable = option[1].replace("-", "_").upper()
        return f" (On this worker {option[0]} is the variable {variable}.)"
    return ""
