"""vLLM's command line, read as environment variables.

Which options exist, what they accept and what they default to is asked of the installed vLLM's
own parser (0.32: `vllm.entrypoints.launchers.cli_args.make_arg_parser`): nothing here lists them.
The parser is built at the first use, because importing vLLM takes seconds.
"""

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

import jinja2
import vllm
import vllm.config
import vllm.envs
from transformers.utils.chat_template_utils import _compile_jinja_template
from vllm.entrypoints.launchers.cli_args import (
    BaseFrontendArgs,
    FrontendArgs,
    make_arg_parser,
    validate_parsed_serve_args,
)
from vllm.exceptions import VLLMError
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.reasoning import ReasoningParserManager
from vllm.renderers.chat_utils import load_chat_template
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from worker.sentences import hide, nearest
from worker.spelling import boolean, items, parse_json

# Zero means "unset" for these although vLLM's own bounds allow it: forms send 0 for an empty field.
ZERO_IS_UNSET = frozenset(
    {
        "kv_cache_memory_bytes",
        "max_cpu_loras",
        "max_model_len",  # -1 and more is allowed, and 0 fails much later
        "num_gpu_blocks_override",
        "spec_tokens",  # 0 would switch speculative decoding on, with nothing to speculate
    }
)
# Of vLLM's server these are the worker's too: what the model answers, and who may ask over HTTP.
NOT_THE_SERVER = frozenset(
    {"enable_flash_late_interaction", "allow_credentials", "allowed_headers", "allowed_methods"}
    | {"allowed_origins"}
)
# Of the rest these belong to its server: they start other processes, ports or protocols.
ALSO_THE_SERVER = frozenset({"api_server_count", "config", "grpc", "headless"})
_PAIRS = re.compile(r"\w+=\d+(?:[,\s]+\w+=\d+)*")


@dataclass(frozen=True)
class Option:
    """One option of vLLM's parser.

    `names` are the variables it is read from, the first being the one to show. `limits` are pairs
    of a comparison ("at least", …) and a number, from the field of vLLM's configuration class.
    """

    dest: str
    names: tuple[str, ...]
    group: str
    action: Any
    default: Any
    limits: tuple[tuple[str, float], ...]
    server: bool

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def zero_is_unset(self) -> bool:
        return self.dest in ZERO_IS_UNSET or _outside(self.limits, 0) is not None

    @property
    def choices(self) -> tuple[str, ...]:
        """The only values allowed, else nothing."""
        return tuple(str(choice) for choice in self.action.choices or () if choice is not None)

    @property
    def is_json_list(self) -> bool:
        """Whether vLLM wants a list as JSON, which may be written here as any other list."""
        return self.action.type is json.loads and isinstance(self.default, list)

    @property
    def kind(self) -> str:
        """What a value looks like, found by trying values: vLLM wraps its types in closures."""
        if self.action.nargs == 0:
            return "switch"
        if self.choices:
            return "list" if self.action.nargs == "+" else "choice"
        if self.is_json_list:
            return "list"
        if isinstance(self._try("{}"), dict) or is_dataclass(self._try("{}")):
            return "JSON object" if self._try("x") is None else "JSON object or text"
        item = "text"
        if isinstance(self._try("1"), int) and self._try("1.5") is None:
            item = "whole number"
        elif isinstance(self._try("1"), float):
            item = "number"
        if self.action.nargs == "+":
            return "list" if item == "text" else f"list of {item}s"
        return item

    @property
    def accepts(self) -> str:
        """The kind and what else is known about it, as one phrase for a table."""
        if self.choices:
            return ("list of " if self.kind == "list" else "") + ", ".join(self.choices)
        extra = [f"{word} {number:g}" for word, number in self.limits]
        if self.kind == "whole number" and self._try("1k") == 1000:
            extra.append("8k and 1M are understood")
        if self.kind == "whole number" and self._try("auto") is not None:
            extra.append("or auto")
        return ", ".join([self.kind, *extra])

    @property
    def shown_default(self) -> str:
        """The default where it says something everywhere: no objects, no paths, no emptiness."""
        value = getattr(self.default, "value", self.default)
        if isinstance(value, list | tuple) and value:
            return ", ".join(map(str, value))
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float | str) and not str(value).startswith("/"):
            return str(value)
        return ""

    @property
    def meaning(self) -> str:
        """The first sentence of vLLM's help.

        vLLM reads its help texts only where `--help` is on the command line at its import.
        """
        paragraph = (self.action.help or "").replace("%%", "%").split("\n\n")[0]
        sentence = re.split(r"(?<=[^.][^.]\.)\s+(?=[A-Z`\"(])", " ".join(paragraph.split()))[0]
        return "" if sentence == argparse.SUPPRESS else sentence

    def _try(self, text: str) -> Any:
        try:
            return self.action.type(text) if self.action.type else text
        except Exception:  # vLLM's types raise errors of many families
            return None


class _RefusedError(Exception):
    """What argparse would have printed before it ended the process."""


@cache
def _parser() -> tuple[Any, dict[str, Any]]:
    """Build vLLM's parser. Return it, with every default taken out, and the defaults."""

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> Any:
            raise _RefusedError(message)

    parser = make_arg_parser(Parser(add_help=False))
    defaults = vars(parser.parse_args([]))
    for action in parser._actions:  # without defaults a parsed line holds what the line says
        action.default = argparse.SUPPRESS
    return parser, defaults


@cache
def options() -> Mapping[str, Option]:
    """Return vLLM's options by the name of their field in vLLM's arguments, in its order."""
    server = {f.name for f in fields(FrontendArgs)} - {f.name for f in fields(BaseFrontendArgs)}
    server = server - NOT_THE_SERVER | ALSO_THE_SERVER
    parser, defaults = _parser()
    found = {}
    for group in parser._action_groups:
        config = getattr(vllm.config, group.title or "", None)
        limits = {f.name: _limits(f) for f in fields(config)} if is_dataclass(config) else {}
        for action in group._group_actions:
            long = [o for o in action.option_strings if o[:2] == "--" and o[:5] != "--no-"]
            if not long:
                continue
            found[action.dest] = Option(
                dest=action.dest,
                names=tuple(variable(option) for option in long),
                group="Serving" if group.title == "options" else group.title,
                action=action,
                default=defaults.get(action.dest),
                limits=limits.get(action.dest, ()),
                server=action.dest in server,
            )
    return found


@cache
def by_variable() -> Mapping[str, Option]:
    """Return the options by environment variable: `--max-model-len` is `MAX_MODEL_LEN`."""
    return {name: option for option in options().values() for name in option.names}


def variable(option: str) -> str:
    """Return the variable of a command line option."""
    return option.lstrip("-").replace("-", "_").upper()


def namespace(values: Mapping[str, Any]) -> argparse.Namespace:
    """Return vLLM's arguments: its defaults, and over them the given values."""
    return argparse.Namespace(**{**deepcopy(_parser()[1]), **values})


def read(option: Option, text: str) -> Any:
    """Return a variable's value as vLLM's command line would have read it.

    Raises ValueError with the end of a sentence that starts with the variable and its value.
    """
    text = text if option.dest == "chat_template" else text.strip()
    if option.kind == "switch":
        return boolean(text)
    if option.is_json_list:
        return items(text)
    many = option.action.nargs == "+"
    values = [_one(option, item) for item in (items(text) if many else [text])]
    if not values:
        raise ValueError("is an empty list")
    space = argparse.Namespace()
    try:
        option.action(
            _parser()[0], space, values if many else values[0], option.action.option_strings[0]
        )
    except _RefusedError as refusal:
        raise ValueError(f"is not understood by vLLM: {words(refusal)}") from None
    return getattr(space, option.dest)


def read_line(line: Sequence[str]) -> dict[str, Any]:
    """Return what a vLLM command line sets, by field.

    Raises ValueError with vLLM's sentence.
    """
    try:
        values: dict[str, Any] = vars(_parser()[0].parse_args(list(line)))
    except Exception as error:  # vLLM's parser also reads files and indexes what may be absent
        raise ValueError(_refused(error)) from None
    if "model_tag" in values:
        values["model"] = values.pop("model_tag")  # as `vllm serve` does
    for dest, value in values.items():
        if dest in options() and (problem := _outside(options()[dest].limits, value)):
            raise ValueError(f"{options()[dest].name}={value} must be {problem}")
    return values


def read_file(path: str) -> dict[str, Any]:
    """Return what a YAML file sets, read as `vllm serve --config` reads it.

    Raises ValueError with vLLM's sentence.
    """
    try:
        line = _parser()[0].load_config_file(path)
    except AttributeError:  # vLLM asks what is no mapping for its items
        raise ValueError("is not a YAML mapping of options") from None
    except Exception as error:
        raise ValueError(first_line(error)) from None
    return read_line(line)


def validate(args: argparse.Namespace) -> None:
    """Let vLLM check its arguments as `vllm serve` does. Raises ValueError with its sentence."""
    try:
        validate_parsed_serve_args(args)
    except Exception as error:  # vLLM's own errors are no ValueErrors
        raise ValueError(words(error)) from None


def registered(dest: str) -> list[str]:
    """Return the names that vLLM knows where its parser takes any text."""
    known = {
        "quantization": QUANTIZATION_METHODS,
        "reasoning_parser": ReasoningParserManager.list_registered(),
        "tool_call_parser": ToolParserManager.list_registered(),
    }
    return list(known[dest])


def environment() -> frozenset[str]:
    """Return the variables that vLLM itself reads."""
    return frozenset(vllm.envs.environment_variables)


def version() -> str:
    """Return vLLM's version."""
    return str(vllm.__version__)


def template_problem(value: str) -> str | None:
    """Return what is wrong with a chat template (a text or a file), as the end of a sentence."""
    try:
        # Private, but what vLLM 0.32 compiles templates with: the same tags are understood.
        _compile_jinja_template(load_chat_template(value))
    except jinja2.TemplateSyntaxError as error:
        said = (error.message or "").rstrip(".")
        return f"is not a valid Jinja template: line {error.lineno}: {said}"
    except (OSError, ValueError, VLLMError):
        return "is neither a Jinja template nor a file that can be read"
    return None


def words(error: BaseException) -> str:
    """Return an error's first line with vLLM's options written as variables."""
    return re.sub(r"--[a-z][a-z0-9-]+", lambda match: variable(match[0]), first_line(error))


def first_line(error: BaseException) -> str:
    """Return an error's first line, without secrets."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return hide(re.sub(r"^(Error: |Value error, |argument (?=-))", "", line)[:300]).rstrip(".")


def _one(option: Option, text: str) -> Any:
    if option.kind == "JSON object" and _PAIRS.fullmatch(text.strip()):
        pairs = (pair.split("=") for pair in re.split(r"[,\s]+", text.strip()))
        text = json.dumps({name: int(number) for name, number in pairs})
    try:
        value = option.action.type(text) if option.action.type else text
    except Exception as error:  # vLLM's types raise errors of many families
        raise ValueError(_why(option, text, error)) from None
    if option.kind == "JSON object" and not (isinstance(value, dict) or is_dataclass(value)):
        raise ValueError("is not a JSON object")
    if option.kind == "JSON object or text" and isinstance(value, str) and text.strip()[:1] == "{":
        parse_json(text)  # vLLM takes a broken object for a plain text
    if option.choices and value not in option.action.choices:
        same = [c for c in option.action.choices if str(c).lower() == str(value).lower()]
        if len(same) != 1:
            raise ValueError(f"must be one of {', '.join(option.choices)}")
        value = same[0]
    if problem := _outside(option.limits, value):
        raise ValueError(f"must be {problem}")
    return value


def _refused(error: Exception) -> str:
    """Put in words why vLLM's parser refused a line, and repeat no value it did not understand."""
    message = str(error)
    if message.startswith("unrecognized arguments:"):
        names = [word.split("=")[0] for word in message.split()[2:] if word.startswith("-")]
        if not names:
            return "vLLM has no option for some of its words"
        hint = nearest(variable(names[0]), by_variable())
        return f"vLLM has no option {', '.join(names)}{'.' if hint else ''}{hint}"
    found = re.match(r"argument (?:\S*/)?(--[a-z0-9-]+)\S*: invalid \S+ value: (.*)", message)
    if found and (option := by_variable().get(variable(found[1]))) and not option.choices:
        return f"{found[1]} {hide(found[2])} is not a {option.kind}"
    return first_line(error)


def _why(option: Option, text: str, error: Exception) -> str:
    if "whole number" in option.kind:
        return f"is not a {option.kind.removeprefix('list of ').removesuffix('s')}"
    if "number" in option.kind:
        return "is not a number"
    found: Any = error.__cause__
    if hasattr(found, "errors"):  # pydantic's ValidationError, whose text repeats the value
        first = found.errors()[0]
        if first["type"] != "json_invalid":
            where = ".".join(map(str, first["loc"]))
            said = first_line(ValueError(first["msg"]))
            return f"is not understood by vLLM: {where}: {said}"
    parse_json(text)
    return f"is not understood by vLLM: {words(error)}"


def _limits(field: Any) -> tuple[tuple[str, float], ...]:
    """Return the bounds vLLM declares for a field of its configuration (pydantic's metadata)."""
    names = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return tuple(
        (word, getattr(bound, short))
        for bound in getattr(field.default, "metadata", ())
        for short, word in names.items()
        if hasattr(bound, short)
    )


def _outside(limits: tuple[tuple[str, float], ...], value: Any) -> str | None:
    """Return the first bound a value breaks, in words."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    inside = {
        "at least": lambda limit: value >= limit,
        "more than": lambda limit: value > limit,
        "at most": lambda limit: value <= limit,
        "less than": lambda limit: value < limit,
    }
    for word, limit in limits:
        if math.isnan(value) or not inside[word](limit):
            return f"{word} {limit:g}"
    return None
