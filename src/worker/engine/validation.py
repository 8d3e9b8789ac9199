"""Pydantic's list of errors becomes one sentence about the field that was sent first."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.entrypoints.serve.exception_handling.handlers.validation import clean_loc_for_param

# A field that says which member of a union a value is.
TAGS = (("type",), ("role",))


@dataclass(frozen=True)
class _Entry:
    """One error: where pydantic looked, and the part of it that leads through what was sent."""

    loc: tuple[Any, ...]
    path: tuple[Any, ...]
    kind: str
    said: str

    @property
    def is_missing_field(self) -> bool:
        return self.kind == "missing" and len(self.path) == 1


def in_words(errors: Iterable[Mapping[str, Any]], body: Any) -> tuple[str, str | None]:
    """Return a sentence and the name of the field.

    Pydantic reports every member of a union that a value is not. Those count that the value's own
    `type` or `role` names, and of these the ones that follow it deepest. `body` is what was sent,
    or None where nobody knows. Its cost grows with the number of errors, and not faster.
    """
    entries = [_entry(error, body) for error in errors]
    tags = [one for one in entries if one.kind == "literal_error" and one.path[-1:] in TAGS]
    others = {one.loc[:-1] for one in tags}
    related = [one for one in entries if not others & _starts(one.loc)]
    # A tag is wrong where no member of the union has it.
    reached = {start for one in related for start in _starts(one.path)}
    related += [one for one in tags if one.path[:-1] not in reached]
    missing = [one for one in related if one.is_missing_field]
    wrong = [one for one in related if not one.is_missing_field]
    if not wrong:
        names = list(dict.fromkeys(_name(one.path) for one in missing))
        # A longer way than the field's name leads through the member of a union.
        joined = (" or " if len(missing[0].loc) > 1 else " and ").join(names)
        return f"{joined}: {missing[0].said}.", names[0]
    # Where the body may be of several forms, what is wrong in each of them is reported for each.
    times = Counter((one.path, one.said) for one in wrong)
    place = {(key,): at for at, key in enumerate(body)} if isinstance(body, dict) else {}

    def rank(one: _Entry) -> tuple[int, int]:
        return -times[one.path, one.said], place.get(one.path[:1], len(place))

    field = min(wrong, key=rank).path[:1]
    about = [one for one in wrong if one.path[:1] == field]
    path = max((one.path for one in about), key=len)
    said = _either(list(dict.fromkeys(one.said for one in about if one.path == path)))
    return (f"{_name(path)}: {said}." if path else f"{said}."), _name(path) or None


def _entry(error: Mapping[str, Any], body: Any) -> _Entry:
    loc = tuple(error["loc"])
    if loc[:1] == ("body",):
        loc = loc[1:]
    kind = str(error["type"])
    said = str(error["msg"]).removeprefix("Value error, ").rstrip(".")
    if body is None:
        return _Entry(loc, tuple(clean_loc_for_param(loc).split(".")), kind, said)
    path, value = [], body
    for at, step in enumerate(loc):
        is_there = step in value if isinstance(value, dict) else _is_index(step, value)
        if not is_there and not (kind == "missing" and at == len(loc) - 1):
            continue  # the name of a union's member
        path.append(step)
        value = value[step] if is_there else None
    return _Entry(loc, tuple(path), kind, said)


def _starts(way: tuple[Any, ...]) -> set[tuple[Any, ...]]:
    return {way[:length] for length in range(len(way) + 1)}


def _is_index(step: Any, value: Any) -> bool:
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _either(said: list[str]) -> str:
    """Join what the members of a union want: `Input should be a valid string or a valid list`."""
    start = "Input should be "
    if all(one.startswith(start) for one in said):
        return start + " or ".join(one.removeprefix(start) for one in said)
    return ", or ".join(said)
