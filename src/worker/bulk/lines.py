"""One line of a batch, in OpenAI's Batch format or native, and the line that answers it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from worker.errors import RequestError
from worker.request import PROMPT_KEYS
from worker.sentences import shown

KEYS = ("custom_id", "method", "url", "body")
UNREAD = "invalid_line"  # the error's code where a line is known by its number alone
TWICE = "duplicate_custom_id"
SORTED_BY = 4096  # bytes of a prompt


@dataclass(frozen=True)
class Line:
    """A line: `key` is what it is known by in the results, `given` a job's input.

    `begins` is the beginning of its prompt: lines that share it share what the engine caches.
    """

    number: int  # from 1
    key: str
    custom_id: str | None = None
    given: Mapping[str, Any] | None = None
    begins: bytes = b""
    error: RequestError | None = None


def read(number: int, content: bytes | Mapping[str, Any] | Any) -> Line:
    """Read a line, as it stands in a file or in a job; a bad one is a line with an error."""
    try:
        value = msgspec.json.decode(content) if isinstance(content, bytes) else content
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return unread(number, f"The line is no JSON: {error}.")
    if not isinstance(value, dict):
        return unread(number, f"The line must be an object, not {shown(value)}.")
    name = "custom_id" if "custom_id" in value else "id"
    custom_id = value.get(name)
    if not isinstance(custom_id, str) or not custom_id or not custom_id.isprintable():
        return unread(number, "The line has no custom_id, a text that tells it from the others.")
    if "url" in value:
        strange = next((key for key in value if key not in KEYS), None)
        if strange is not None:
            sentence = f"The line has an unknown key {shown(strange)}. Known: {', '.join(KEYS)}."
            return Line(number, custom_id, custom_id, error=RequestError(sentence))
        body = value.get("body")
        given = {"route": value["url"], "method": value.get("method", "POST"), "body": body}
    else:
        body = given = {key: one for key, one in value.items() if key != name}
    if isinstance(body, dict) and body.get("stream"):
        wrong = RequestError("A line is answered whole: stream has no place in it.", param="stream")
        return Line(number, custom_id, custom_id, error=wrong)
    return Line(number, custom_id, custom_id, given, _beginning(body))


def unread(number: int, sentence: str) -> Line:
    """Return a line of which nothing is known but that it is wrong."""
    return Line(number, f"#{number}", error=RequestError(sentence, type=UNREAD))


def repeated(line: Line) -> Line:
    """Return a line whose custom_id an earlier one has."""
    sentence = f"An earlier line has the custom_id {shown(line.custom_id)} too."
    error = RequestError(sentence, type=TWICE)
    return Line(line.number, f"#{line.number}", line.custom_id, error=error)


def _beginning(body: Any) -> bytes:
    if not isinstance(body, dict):
        return b""
    model = body.get("model")
    for name in ("messages", *PROMPT_KEYS):
        if name in body:
            try:
                return msgspec.json.encode([model, body[name]])[:SORTED_BY]
            except UnicodeEncodeError:  # half of a surrogate pair, which the request's reader tells
                return b""
    return b""


def answered(line: Line, request_id: str, body: Any) -> dict[str, Any]:
    """Return a result line as OpenAI's Batch API has it."""
    response = {"status_code": 200, "request_id": request_id, "body": body}
    return _result(line, response, None)


def refused(line: Line, request_id: str, error: RequestError) -> dict[str, Any]:
    """Return the result line of one that failed: what its route says, and why, in `error`."""
    said = {"code": error.type, "message": error.message}
    if error.type in (UNREAD, TWICE):
        return _result(line, None, said)
    response = {"status_code": error.code, "request_id": request_id, "body": error.body()}
    return _result(line, response, said)


def _result(line: Line, response: Any, error: Any) -> dict[str, Any]:
    return {
        "id": f"batch_req_{line.number}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }


class _Error(msgspec.Struct):
    code: str = ""


class _Result(msgspec.Struct):
    id: str
    custom_id: str | None = None
    error: _Error | None = None


_known = msgspec.json.Decoder(_Result).decode


def known(content: bytes) -> tuple[str, int, bool]:
    """Return of a result line: the key and the number of its line, and whether it failed.

    Raises ValueError where it is none.
    """
    result = _known(content)
    number = int(result.id.removeprefix("batch_req_"))
    code = result.error.code if result.error else ""
    is_numbered = code in (UNREAD, TWICE) or result.custom_id is None
    return f"#{number}" if is_numbered else str(result.custom_id), number, bool(result.error)
