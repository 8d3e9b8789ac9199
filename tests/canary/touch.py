"""How a row is judged. Each looks for its piece itself, so that one that moved hides no other.

A row is `module:name`, `module:name(arguments)`, `module:name{members}`, `module:NAME == value`,
`module:NAMES has these` (or `lacks these`), or `package ~ pattern in its source`; or it is a claim:
(sentence, what shows it, what that must return).
"""

import contextlib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest

Row = str | tuple[str, Callable[[], Any], Any]
PIECE = re.compile(
    r"(?P<module>[\w.]+)(:(?P<name>[\w.]+))?"
    r"(\((?P<call>.*)\)|\{(?P<members>.*)\}| == (?P<value>.*)| (?P<has>has|lacks) (?P<names>.*)"
    r"| ~ (?P<pattern>.*))?"
)
SET = re.compile(r"\bself\.(\w+)(?:: [^=\n]*)? = ")


class Moved(Exception):  # noqa: N818 - what it says, not what it is
    pass


def rows(table: Mapping[str, Sequence[Row]]) -> Any:
    """Make a test of each row of `{the room that uses it: rows}`."""
    pairs = [(room, row) for room, its in table.items() for row in its]
    ids = [row if isinstance(row, str) else row[0] for _, row in pairs]
    return pytest.mark.parametrize(("room", "row"), pairs, ids=ids)


def prove(room: str, row: Row, *, strict: bool = False) -> None:
    """Fail with a sentence where a row no longer holds."""
    claim, see, expected = (row, lambda: judge(row, strict), None) if isinstance(row, str) else row
    try:
        seen = see()
    except Moved as error:
        sentence = str(error)
    except Exception as error:
        sentence = f"no longer true: {claim} ({type(error).__name__}: {str(error)[:200]})"
    else:
        if seen == expected:
            return
        sentence = f"no longer true: {claim}" + (f" (now: {str(seen)[:300]})" if seen else "")
    pytest.fail(f"{' '.join(sentence.split())} (used in {room})", pytrace=False)


def judge(row: str, strict: bool) -> None:
    """Raise Moved where a piece is no longer what it was; `strict`: or is at another place.

    Else it is judged where it is now: the row of its import tells that it moved.
    """
    piece = PIECE.fullmatch(row)
    assert piece is not None, row
    module, name, who = piece["module"], piece["name"], _library(piece["module"])
    if piece["pattern"] is not None:
        if not re.search(piece["pattern"], source(module)):
            shown = re.sub(r"\\(?=\W)", "", piece["pattern"])
            raise Moved(f"{who} renamed or dropped `{shown}`: nothing in {module} matches it now")
        return
    found = _find(module, name, strict)
    if piece["call"] is not None:
        words = piece["call"].replace(" ", "").split(",")
        given = [word for word in words if word and word[-1] != "="]
        try:
            inspect.signature(found).bind(*given, **{w[:-1]: 0 for w in words if w[-1:] == "="})
        except TypeError as error:
            raise Moved(f"{who} changed how `{name}` is called: {error}") from None
    elif piece["members"] is not None:
        gone = set(piece["members"].split())
        for there in _members(found):
            gone -= there
            if not gone:
                return
        lost = ", ".join(f"`{name}.{one}`" for one in sorted(gone))
        raise Moved(f"{who} renamed or dropped {lost}")
    elif piece["has"]:
        there = {str(one) for one in get_args(found) or (found() if callable(found) else found)}
        named = set(piece["names"].split())
        if odd := sorted(named - there if piece["has"] == "has" else named & there):
            verb = "no longer has" if piece["has"] == "has" else "has again"
            raise Moved(f"{who}'s `{name}` {verb} {', '.join(odd)}")
    elif piece["value"] is not None and repr(found) != piece["value"]:
        raise Moved(f"{who}'s `{name}` is {found!r}, no longer {piece['value']}")


def the(path: str) -> Any:
    """Return what `module:name` is, wherever it lives now. Raises Moved."""
    return _find(*path.split(":"), strict=False)


def _library(module: str) -> str:
    library = module.split(".")[0]
    return {"vllm": "vLLM", "starlette": "Starlette", "fastapi": "FastAPI"}.get(library, library)


def _find(module: str, name: str | None, strict: bool) -> Any:
    library, who = module.split(".")[0], _library(module)
    found, homes = _import(module), []
    if isinstance(found, ModuleNotFoundError) and f"{module}.".startswith(f"{found.name}."):
        gone = f"{who} has no module {module} any more"
    elif isinstance(found, Exception):
        why = f"{type(found).__name__}: {found}"
        raise Moved(f"{who}'s {module} cannot be imported here: {why}")
    else:
        with contextlib.suppress(AttributeError):
            return _get(found, name)
        gone = f"{who} renamed or dropped `{name}` of {module}"
    if name:
        homes = _homes(library, name.split(".")[0], module)
    for home in () if strict else homes:
        with contextlib.suppress(AttributeError):
            return _get(_import(home), name)
    raise Moved(f"{gone}; `{name}` is in {' or '.join(homes)} now" if homes else gone)


@cache
def _import(module: str) -> Any:
    """Return a module, or the exception that its import raises, whatever it is."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        return error


def _get(found: Any, name: str | None) -> Any:
    for part in name.split(".") if name else ():
        if inspect.ismodule(found) and not hasattr(found, part):
            _import(f"{found.__name__}.{part}")  # which makes it an attribute
        found = getattr(found, part)
    return found


@cache
def _homes(library: str, name: str, old: str) -> list[str]:
    """Return up to three other modules that define a name, the likeliest first."""
    defines = re.compile(rf"^(?:(?:async )?def|class) {name}\b|^{name}\b[^=\n]*=", re.MULTILINE)
    found = [
        ".".join((library, *path.relative_to(_root(library)).with_suffix("").parts))
        for path in _root(library).rglob("*.py")
        if name in (text := path.read_text(errors="replace")) and defines.search(text)
    ]
    last = old.rpartition(".")[2]
    return sorted(set(found) - {old}, key=lambda one: (one.rpartition(".")[2] != last, one))[:3]


def _root(library: str) -> Path:
    return Path(str(find_spec(library).origin)).parent  # type: ignore[union-attr]


@cache
def source(package: str) -> str:
    """Return the source of a module or a whole package, without importing it."""
    path = _root(package.split(".")[0]).joinpath(*package.split(".")[1:])
    files = sorted(path.rglob("*.py")) or [path.with_suffix(".py")]
    return "\n".join(file.read_text() for file in files if file.exists())


def _members(of: Any) -> Iterator[set[str]]:
    """Yield the names that an object of this class has, at last those that only its code sets."""
    classes = [one for one in getattr(of, "__mro__", ()) if one.__module__ != "builtins"]
    abstract = getattr(of, "__abstractmethods__", frozenset())  # a base's, and dropped here
    yield {*dir(of), *getattr(of, "model_fields", ())} - abstract
    yield {name for one in classes for name in getattr(one, "__annotations__", ())}
    for one in classes:
        with contextlib.suppress(OSError):  # written in C
            yield set(SET.findall(inspect.getsource(one)))
