"""How a sentence quotes a value: short, as JSON, without secrets."""

import json
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any

LONGEST_WORD = 100


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for a probable misspelling, else nothing."""
    if len(word) > LONGEST_WORD:  # the search takes time that grows with its length
        return ""
    matches = get_close_matches(word, known, n=1, cutoff=0.7)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def shown(value: Any) -> str:
    """Return a job's value as a sentence can quote it: as JSON, and short."""
    if isinstance(value, str | list):
        value = value[:100]
    elif isinstance(value, dict):
        value = dict(islice(value.items(), 100))
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:79]}…"


_SECRET_WORD = (
    r"(?:(?:TOKEN|KEYS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?)(?![A-Za-z])"
    r"|(?:[Tt]oken|[Kk]eys?|[Ss]ecrets?|[Pp]assword|[Pp]asswd|[Cc]redentials?)(?![a-z]))"
)
_SECRET_NAME = re.compile(_SECRET_WORD)
# A login, a token, and a value whose name says it: as `name: value`, `name=value`, `--name value`.
_SECRET = re.compile(
    rf"""(?<=://)[^/\s"']+(?=@)|\bhf_\w{{6,}}|(?P<name>(?:\b(?:Bearer|Basic)\s
    |(?<![\w-])--[\w-]{{0,40}}?{_SECRET_WORD}[\w-]{{0,40}}[\s=]+
    |{_SECRET_WORD}(?!Error|_ids?\b)\w{{0,40}}["']?\s?[:=]\s?)["']?)[^\s"',}}]+""",
    re.VERBOSE,
)
_QUERY = re.compile(r"""(://[^\s"'<>?]{1,500}\?)[^\s"'<>]+""")  # where an address is signed
# What each of them has; looking for this first costs a fifth, and most lines have nothing.
_MAY_BE_SECRET = re.compile(
    "://|hf_|B(?:earer|asic)|[Tt]oken(?!s)|TOKEN(?!S)|[Kk]ey|KEY|[Ss]ecret|SECRET|[Pp]assw|PASSW"
    "|[Cc]redential|CREDENTIAL"
)
HIDDEN = "(hidden)"
MOST_SHOWN = 120


def hide(text: str) -> str:
    """Return a text without what may be a secret: the one door of whatever is printed or logged."""
    if not _MAY_BE_SECRET.search(text):
        return text
    text = _SECRET.sub(lambda found: (found["name"] or "") + HIDDEN, text)
    return _QUERY.sub(rf"\1{HIDDEN}", text)


def hide_in_logs() -> None:
    """Hide secrets in what any library logs in this process, tracebacks too."""
    made = logging.getLogRecordFactory()

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        one = made(*args, **kwargs)
        with suppress(Exception):  # arguments that do not fit are the handler's to tell
            text = one.getMessage()
            if (hidden := hide(text)) != text:
                one.msg, one.args = hidden, ()
        if one.exc_info:
            one.exc_text = hide(logging.Formatter().formatException(one.exc_info))
        return one

    logging.setLogRecordFactory(record)


def show(name: str, value: Any, default: Any = None) -> str:
    """Return a value as it may be printed: on one line, not too long, and no secrets.

    Of vLLM's configuration objects only what differs from the default is shown.
    """
    if _SECRET_NAME.search(name):
        return HIDDEN
    value = _plain(value, default)
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, dict | list):
        text = json.dumps(value, ensure_ascii=False, default=str)
    else:
        text = hide(" ".join(str(value).split()))
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + "…"


def _plain(value: Any, default: Any = None) -> Any:
    """Return a value as JSON has it, secrets hidden."""
    if is_dataclass(value) and not isinstance(value, type):
        every = {f.name: (getattr(value, f.name), _usual(f, default)) for f in fields(value)}
        value = {
            name: now
            for name, (now, usual) in every.items()
            if now != usual and now not in (None, "", [], {})
        }
    if isinstance(value, Mapping):
        return {k: HIDDEN if _SECRET_NAME.search(str(k)) else _plain(v) for k, v in value.items()}
    if isinstance(value, set):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return hide(value) if isinstance(value, str) else getattr(value, "value", value)


def _usual(field: Any, default: Any) -> Any:
    """Return what a field of one of vLLM's configuration objects holds by default."""
    return getattr(default, field.name, getattr(field.default, "default", field.default))
