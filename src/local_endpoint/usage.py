"""How many tokens a worker says it has generated, in any of the dialects."""

import re
from typing import Any

NAMES = ("completion_tokens", "output_tokens", "output")
_IN_TEXT = re.compile(r'"(?:completion|output)_tokens":\s*(\d+)')


def output_tokens(value: Any) -> int | None:
    """Return the number that a yielded value reports in any of the three shapes of `usage`.

    A text is searched for the last such number, a list for its last element that has one.
    """
    if isinstance(value, str):
        start = value.rfind('"usage"')
        found = _IN_TEXT.search(value, start) if start >= 0 else None
        return int(found[1]) if found else None
    if isinstance(value, list):
        items = (item for item in reversed(value) if not isinstance(item, list))
        return next(filter(None, map(output_tokens, items)), None)
    usage = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(usage, dict):
        return None
    return next((usage[name] for name in NAMES if isinstance(usage.get(name), int)), None)


def events(value: Any) -> int:
    """Count the SSE events with JSON in a yielded text: about the tokens, if none are reported.

    An error is none.
    """
    if not isinstance(value, str):
        return 0
    return value.count("data: {") - value.count('data: {"error"')
