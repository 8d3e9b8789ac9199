"""How a text says true, nothing, zero, or a list."""

import json
import re
from collections.abc import Collection
from typing import Any

TRUE = frozenset({"1", "on", "true", "yes"})
FALSE = frozenset({"0", "no", "off", "false"})
NOTHING = frozenset({"", "none", "null"})


def boolean(text: str) -> bool:
    """Return the meaning of a switch's spelling."""
    if text.strip().lower() in TRUE:
        return True
    if text.strip().lower() in FALSE:
        return False
    raise ValueError("must be true or false (1 and 0, yes and no, on and off are understood)")


def is_unset(text: str, choices: Collection[str] | None = None) -> bool:
    """Tell whether a value is a spelling of "not set".

    `choices` are those of an option of vLLM's, for which an empty object or list is one more.
    """
    bare = text.strip()
    if choices is not None and bare in choices:
        return False
    return bare.lower() in NOTHING or (choices is not None and bare in ("{}", "[]"))


def is_zero(text: str) -> bool:
    """Tell whether a value is a spelling of zero."""
    return re.fullmatch(r"0+(\.0*)?", text.strip()) is not None


def items(text: str) -> list[str]:
    """Split a list: JSON, or words between commas and spaces."""
    if text.strip()[:1] not in ("[", "{"):
        return [word for word in re.split(r"[\s,]+", text) if word]
    found = parse_json(text)
    items = found if isinstance(found, list) else [found]
    return [item if isinstance(item, str) else json.dumps(item) for item in items]


def parse_json(text: str) -> Any:
    """Return a JSON value. Raises ValueError with the end of a sentence."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error.msg} at character {error.pos + 1}") from None
