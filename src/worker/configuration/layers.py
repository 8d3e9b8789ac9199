"""One reader for each place that a value may come from."""

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from worker.configuration.retired import RETIRED
from worker.configuration.variables import ALIASES, CONFIG_FILE, EXTRA_ARGS, VARIABLES
from worker.engine import command_line
from worker.engine.command_line import Option
from worker.sentences import show
from worker.spelling import is_unset, is_zero, parse_json

ENVIRONMENT = "environment"
IMAGE = "image"


@dataclass(frozen=True)
class Given:
    """A value that somebody set, under the name he used."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True)
class Findings:
    """What was noticed on the way: problems stop the start, warnings are printed."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def bad(self, name: str, value: Any, why: object) -> None:
        self.problems.append(f"{name}={show(name, value)!r} {why}")


def values_said(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say something: a form also sends empty texts, `None` and `null`."""
    known = _variables()
    return {
        name: text
        for name, text in environ.items()
        if not is_unset(text, known[name].choices if name in known else None)
    }


def without_dots(said: Mapping[str, str], found: Findings) -> dict[str, str]:
    """Put a name such as STRUCTURED_OUTPUTS_CONFIG.BACKEND into the object that it is a key of."""
    result = {name: text for name, text in said.items() if "." not in name}
    for name in sorted(said.keys() - result.keys()):
        head, *path = name.split(".")
        if (option := _variables().get(head)) is None:
            continue
        if "JSON object" not in option.kind:
            found.warnings.append(f"{name} has no effect: {head} is no object with keys.")
            continue
        value: Any = said[name]
        with suppress(ValueError):
            value = parse_json(value)
        for key in reversed(path):
            value = {key.lower() if key.isupper() else key: value}
        with suppress(ValueError):  # which is said when the object is read
            result[head] = json.dumps(_joined(parse_json(result.get(head, "{}")), value))
    return result


def of_the_image(
    baked: dict[str, Given], above: Mapping[str, Given], found: Findings
) -> dict[str, Given]:
    """Return what of the image's build applies: its values belong to the model that it holds."""
    other, ours = above.get("model"), baked.get("model")
    if other and ours and other.value.lower() != ours.value.lower():
        found.warnings.append(
            f"{other.name}={other.value!r} is not the model in this image, {ours.value!r}: what "
            "the image was built with does not apply."
        )
        return {}
    named = above.get("tokenizer")
    if named and named.value.lower() != baked.get("tokenizer", ours or named).value.lower():
        baked.pop("tokenizer_revision", None)
    return baked


def worker_variables(
    environ: Mapping[str, str], source: str, found: Findings, *, http: bool
) -> dict[str, Given]:
    """Read the worker's own variables, by field (or by name, where there is no field)."""
    values: dict[str, Given] = {}
    for variable in VARIABLES:
        if variable.http and not http:
            continue
        for name in (*variable.names, *variable.retired):
            if name not in environ:
                continue
            if name in variable.retired:
                found.warnings.append(
                    f"{name} is retired: {variable.name} is its name now, and takes its value."
                )
            text = environ[name]
            try:
                value = variable.read(text)
            except ValueError as error:
                found.bad(name, text, error)
            else:
                _put(values, variable.field or name, Given(name, value, source), found)
    return values


def vllm_options(environ: Mapping[str, str], source: str, found: Findings) -> dict[str, Given]:
    """Read the options of vLLM's command line, by their field in vLLM's arguments."""
    values: dict[str, Given] = {}
    for name, option in _variables().items():
        if option.dest == "hf_token" or option.server or name not in environ:
            continue
        text = environ[name]
        if is_zero(text) and option.zero_is_unset:
            found.warnings.append(f"{name}={text!r} is taken as not set: 0 is no value for it.")
            continue
        try:
            value = command_line.read(option, text)
        except ValueError as error:
            found.bad(name, text, error)
        else:
            _put(values, option.dest, Given(name, value, source), found)
    return values


def _put(values: dict[str, Given], key: str, new: Given, found: Findings) -> None:
    """Add a value, unless another name of the same thing has said something else."""
    old = values.setdefault(key, new)
    if old.value != new.value:
        found.problems.append(
            f"{old.name}={show(old.name, old.value)!r} and {new.name}={show(new.name, new.value)!r}"
            " are two names of one setting and disagree: keep one"
        )


def retired_and_vllm(environ: Mapping[str, str], found: Findings) -> dict[str, Given]:
    """Read vLLM's options of the environment, and below them what retired names become."""
    values = vllm_options(environ, ENVIRONMENT, found)
    known = command_line.by_variable()
    found.warnings.extend(
        f"{alias} sets {name}, which this vLLM no longer has: it has no effect."
        for alias, name in ALIASES.items()
        if alias in environ and name not in known
    )
    for name, old in _retired(environ, found).items():
        if name not in known:
            found.warnings.append(f"{old.source} sets {name}, which this vLLM no longer has.")
            continue
        option = known[name]
        now, value = values.get(option.dest), old.value
        if name == "HF_OVERRIDES" and now and isinstance(now.value, dict):
            values[option.dest] = Given(name, {**value, **now.value}, f"{now.source}, {old.source}")
        elif now is None and isinstance(value, dict):
            # Leftovers of a form, without a model or a method, must not switch speculation on.
            if name != "SPECULATIVE_CONFIG" or {"model", "method"} & value.keys():
                values[option.dest] = old
        elif now is None:
            values[option.dest] = Given(name, command_line.read(option, value), old.source)
    return values


def _retired(environ: Mapping[str, str], found: Findings) -> dict[str, Given]:
    """Warn of retired names. Return what they become, by the variable that replaces them."""
    result: dict[str, Given] = {}
    for name, row in RETIRED.items():
        if name not in environ or name in _variables():
            continue
        text = environ[name]
        found.warnings.append(f"{name} is retired: {row.advice}.")
        try:
            becomes = row.becomes(text)
        except ValueError as error:
            found.bad(name, text, error)
            continue
        for successor, value in becomes.items():
            old = result.get(successor)
            source = f"{old.source}, {name}" if old else name
            value = _joined(old.value, value) if old and isinstance(value, dict) else value
            result[successor] = Given(successor, value, source)
    return result


def _joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Join two objects, and the objects in them."""
    both = {
        key: _joined(old[key], new[key])
        for key in old.keys() & new.keys()
        if isinstance(old[key], dict)
    }
    return {**old, **new, **both}


def config_file(environ: Mapping[str, str], found: Findings) -> dict[str, Given]:
    if CONFIG_FILE not in environ:
        return {}
    path = environ[CONFIG_FILE]
    try:
        return _line(command_line.read_file(path), CONFIG_FILE, found)
    except ValueError as error:
        found.problems.append(f"{CONFIG_FILE}={path!r}: {error}")
        return {}


def extra_args(environ: Mapping[str, str], found: Findings) -> dict[str, Given]:
    if EXTRA_ARGS not in environ:
        return {}
    try:
        return _line(command_line.read_line(shlex.split(environ[EXTRA_ARGS])), EXTRA_ARGS, found)
    except ValueError as error:
        found.problems.append(f"{EXTRA_ARGS}: {error}")
        return {}


def _line(values: dict[str, Any], source: str, found: Findings) -> dict[str, Given]:
    if values.pop("api_key", None):
        found.warnings.append(
            f"{source} sets an API key, which is ignored: RunPod checks the caller's key."
        )
    known = command_line.options()
    return {dest: Given(known[dest].name, value, source) for dest, value in values.items()}


def known_variables() -> list[str]:
    """Return every variable that is read: ours, vLLM's options, and the names users know."""
    own = [name for variable in VARIABLES for name in variable.names]
    return [*own, *(name for name, option in _variables().items() if not option.server)]


def _variables() -> dict[str, Option]:
    known = command_line.by_variable()
    return {**{alias: known[name] for alias, name in ALIASES.items() if name in known}, **known}
