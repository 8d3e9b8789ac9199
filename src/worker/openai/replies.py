"""What a reply or an error of vLLM's becomes for the caller."""

import base64
import re
from typing import Any

import msgspec


def value_of(content_type: str, content: bytes) -> Any:
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


# What vLLM says of a body of the wrong shape: the repr of pydantic's dicts, or pydantic's own text.
_ENTRIES = (
    re.compile(
        r"'loc': '(?:body\.)?(?P<where>[^']*)', 'msg': (?P<q>['\"])(?P<what>.*?)(?<!\\)(?P=q)"
    ),
    re.compile(r"^(?P<where>\S+)\n  (?P<what>.*?) \[type=", re.MULTILINE),
)
MOST_ENTRIES = 3  # a union reports each of its branches


def in_words(message: str) -> str:
    """Put vLLM's list of validation errors in words; any other message stays as it is."""
    if not re.match(r"\d+ validation errors?\b", message):
        return message
    entries = dict.fromkeys(
        f"{found['where']}: {found['what'].replace(chr(92), '')}"
        for entry in _ENTRIES
        for found in entry.finditer(message)
    )
    return "; ".join(list(entries)[:MOST_ENTRIES]) + "." if entries else message


def hint(message: str) -> str:
    """Append what the deployer of a worker can do, where vLLM names options of its own program."""
    if "chat template" in message and "tokenizer" in message:
        return " Set the variable CUSTOM_CHAT_TEMPLATE, or use the route /v1/completions."
    if "skip_tokenizer_init" in message:
        return " (The variable SKIP_TOKENIZER_INIT. Token ids for /v1/completions need none.)"
    if option := re.search(r"--([a-z][a-z0-9-]+)", message):
        variable = option[1].replace("-", "_").upper()
        return f" (On this worker {option[0]} is the variable {variable}.)"
    return ""
