"""The configuration: a mapping of variables in, one frozen value out.

    environ ─┬─ the worker's own variables ───────────────────────────┐
             ├─ names that vLLM has dropped: warn, and say or do what ─┤
             │  replaces them                                          ├─ Settings
             └─ every option of vLLM's command line (`options`) ───────┘

Of one option the first that sets it counts: VLLM_EXTRA_ARGS, the environment, VLLM_CONFIG_FILE,
what the image was built with, vLLM's default.
Everything wrong is collected and raised at once, before any weight is read.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from worker import hub, options, spelling
from worker.errors import SettingsError
from worker.model import HOME
from worker.options import Option
from worker.sentences import show
from worker.variables import (
    ALIASES,
    CONFIG_FILE,
    EXTRA_ARGS,
    NETWORK_VOLUME,
    RETIRED,
    VARIABLES,
)

# Left vLLM's core for packages of their own: quantisation, and the package that brings it.
PLUGINS = {"bitsandbytes": "vllm-bnb-plugin", "gguf": "vllm-gguf-plugin"}
# Below BASE_PATH. Each is keyed by what it was compiled from and for, so workers may share it.
COMPILE_CACHES = {
    "VLLM_CACHE_ROOT": "compile-cache/vllm",
    "TORCHINDUCTOR_CACHE_DIR": "compile-cache/inductor",
    "TRITON_CACHE_DIR": "compile-cache/triton",
}
COMPILED_BYTES = 1_000_000_000  # the free space below which they are not begun
ENVIRONMENT = "environment"
IMAGE = "image"


@dataclass(frozen=True)
class Row:
    """One line of the report: a value that differs from the default, and where it came from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class Given:
    """A value that somebody set, under the name he used."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True)
class Settings:
    """Everything the worker was told.

    `args` are the arguments of `vllm serve` (0.32), already through `validate_parsed_serve_args`.
    Its `served_model_name` is always set, so that a resolved path never becomes a public name.
    """

    model: str
    served_model_names: tuple[str, ...]
    args: argparse.Namespace
    max_concurrency: int = 100
    min_batch_size: int = 1
    max_batch_size: int = 50
    batch_size_growth_factor: float = 3.0
    max_batch_delay_ms: int = 100
    default_max_tokens: int = 100
    raw_openai_output: bool = True
    openai_errors_as_output: bool = False
    max_result_mb: int = 10
    extra_routes: tuple[str, ...] = ()
    max_num_beams: int = 16
    max_sequences: int = 1024
    max_scores: int = 20
    max_word_sequences: int = 128
    max_chains: int = 64
    max_dear_chains: int = 4
    startup_timeout_s: int = 1800
    rows: tuple[Row, ...] = ()
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_env(cls, environ: Mapping[str, str], baked: Mapping[str, str] = {}) -> "Settings":
        """Read the variables of `environ`, as they were before `process_environ`.

        `baked` holds the variables that the image was built with.
        Raises SettingsError with one sentence for each problem.
        """
        found = Findings()
        own = {**_own(baked, IMAGE, found), **_own(environ, ENVIRONMENT, found)}
        _check_batches(own, found)
        above = {
            **_config_file(environ, found),
            **_retired_and_vllm(environ, found),
            **_extra_args(environ, found),
        }
        given = {**_of_the_image(_vllm(baked, IMAGE, found), above, found), **above}
        _imply(given, found)
        _check(given, found)
        _suspect(environ, found)
        if found.problems:
            raise SettingsError(*found.problems)

        model = given["model"].value
        served = given["served_model_name"].value if "served_model_name" in given else [model]
        args = options.namespace({dest: value.value for dest, value in given.items()})
        args.served_model_name = list(served)
        try:
            options.validate(args)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        return cls(
            model=model,
            served_model_names=tuple(served),
            args=args,
            rows=(*_own_rows(own), *_vllm_rows(given)),
            warnings=tuple(found.warnings),
            **{f.name: own[f.name].value for f in dataclasses.fields(cls) if f.name in own},
        )

    def report(self) -> str:
        """Return the block printed at the start: what was set, from where, and the warnings."""
        lines = ["Settings that differ from the defaults:"]
        names = max((len(row.name) for row in self.rows), default=0)
        values = max((len(row.value) for row in self.rows if len(row.value) <= 60), default=0)
        lines += [f"  {r.name:<{names}}  {r.value:<{values}}  {r.source}" for r in self.rows]
        return "\n".join([*lines, *(f"WARNING: {warning}" for warning in self.warnings)])


@dataclass(frozen=True)
class Findings:
    """What was noticed on the way: problems stop the start, warnings are printed."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def bad(self, name: str, value: Any, why: object) -> None:
        self.problems.append(f"{name}={show(name, value)!r} {why}")


# Names that belong to others: a likeness to one of ours is an accident.
_OTHERS = re.compile(
    r"(RUNPOD|VLLM|HF|HUGGING_?FACE|TRANSFORMERS|TOKENIZERS|CUDA|NVIDIA|NV|NCCL|TORCH|PYTORCH|TRITON"
    r"|RAY|OMP|MKL|PIP|UV|CONDA|LC|XDG|SSH|KUBERNETES|AWS|GOOGLE|AZURE|GIT)_.*|PYTHON.*|.{1,7}"
)


# Where any of them is set, something may be asked for that the image does not hold.
_MAY_NAME_A_MODEL = (
    *("MODEL", "REVISION", "MODEL_REVISION", "TOKENIZER", "TOKENIZER_NAME", "TOKENIZER_REVISION"),
    *("LORA_MODULES", "SPECULATIVE_CONFIG", "SPECULATIVE_MODEL", "CODE_REVISION", "HF_CONFIG_PATH"),
    *("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "HF_HOME", "HF_HUB_CACHE", CONFIG_FILE, EXTRA_ARGS),
)


def process_environ(
    environ: Mapping[str, str], baked: Mapping[str, str] = {}
) -> dict[str, str | None]:
    """Return what must change in the process's environment before vLLM is imported.

    None means that the variable goes away. Nothing heavy is imported to know it. With `baked`, and
    nothing asked for beside it, the hub is switched off and the image's cache is the hub's.
    """
    # VLLM_API_KEY would put a password in front of the app that this process calls itself;
    # the others are our names in vLLM's namespace, and vLLM complains about names it does not know.
    taken = ("VLLM_API_KEY", CONFIG_FILE, EXTRA_ARGS, "VLLM_CPU_FRACTION")
    changes: dict[str, str | None] = {name: None for name in taken if name in environ}
    # huggingface_hub would take an empty text, as a form sends it, for a value.
    places = ("HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
    changes |= {name: None for name in places if environ.get(name) == ""}
    base = _base(environ)
    if base and os.access(_nearest(base), os.W_OK):
        wanted = {"HF_HOME": base / HOME}
        if _has_room(base):
            wanted |= {name: base / folder for name, folder in COMPILE_CACHES.items()}
        changes |= {name: str(path) for name, path in wanted.items() if not environ.get(name)}
    model = environ.get("MODEL_NAME", "").strip() or baked.get("MODEL_NAME")
    others = any(environ.get(name, "").strip() for name in _MAY_NAME_A_MODEL)
    if "MODEL_NAME" in baked and model == baked["MODEL_NAME"] and not others:
        changes["HF_HUB_CACHE"] = f"{baked['BASE_PATH']}/{HOME}/hub"
        if not environ.get("HF_HUB_OFFLINE"):
            changes["HF_HUB_OFFLINE"] = "1"
    if not os.access(environ.get("HOME") or "/", os.W_OK):
        # A user whom the image does not know, as with `--user 1000`: caches need some home, and
        # torch some name.
        changes |= {"HOME": "/tmp", "USER": environ.get("USER") or "worker"}
    if not environ.get("HF_XET_HIGH_PERFORMANCE"):
        changes["HF_XET_HIGH_PERFORMANCE"] = "1"
    if not environ.get("RUNPOD_LOG_LEVEL") and not environ.get("RUNPOD_DEBUG_LEVEL"):
        changes["RUNPOD_LOG_LEVEL"] = "INFO"  # the SDK's own is DEBUG: a line for every post
    if _fast_download_is_missing(environ):
        changes["HF_HUB_ENABLE_HF_TRANSFER"] = None
    if _is_no_token(environ):
        changes["HF_TOKEN"] = None
    return changes


def _base(environ: Mapping[str, str]) -> Path | None:
    """Return where models and compiled kernels are kept: BASE_PATH, or the network volume."""
    base = environ.get("BASE_PATH", "").strip()
    if not spelling.is_unset(base):
        return Path(base)
    return Path(NETWORK_VOLUME) if Path(NETWORK_VOLUME).is_dir() else None


def _nearest(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _has_room(base: Path) -> bool:
    return shutil.disk_usage(_nearest(base)).free > COMPILED_BYTES


def _fast_download_is_missing(environ: Mapping[str, str]) -> bool:
    switch = environ.get("HF_HUB_ENABLE_HF_TRANSFER", "")
    return switch.strip().lower() in spelling.TRUE and not importlib.util.find_spec("hf_transfer")


def _is_no_token(environ: Mapping[str, str]) -> bool:
    token = environ.get("HF_TOKEN", "").strip().lower()
    return token in spelling.TRUE | spelling.FALSE | spelling.NOTHING - {""}


def _of_the_image(
    baked: dict[str, Given], above: Mapping[str, Given], found: Findings
) -> dict[str, Given]:
    """Return what of the image's build applies: its values belong to the model that it holds."""

    def differs(dest: str) -> bool:
        both = dest in baked and dest in above
        return both and bool(str(baked[dest].value).lower() != str(above[dest].value).lower())

    if differs("model"):
        other, ours = above["model"], baked["model"]
        found.warnings.append(
            f"{other.name}={other.value!r} is not the model in this image, {ours.value!r}: what "
            "the image was built with does not apply."
        )
        return {}
    if differs("tokenizer"):
        baked.pop("tokenizer_revision", None)
    return baked


def _own(environ: Mapping[str, str], source: str, found: Findings) -> dict[str, Given]:
    """Read the worker's own variables, by field (or by name, where there is no field)."""
    values: dict[str, Given] = {}
    for variable in VARIABLES:
        for name in variable.names:
            if spelling.is_unset(text := environ.get(name, "")):
                continue
            try:
                value = variable.read(text)
            except ValueError as error:
                found.bad(name, text, error)
            else:
                _put(values, variable.field or name, Given(name, value, source), found)
    return values


def _vllm(environ: Mapping[str, str], source: str, found: Findings) -> dict[str, Given]:
    """Read the options of vLLM's command line, by their field in vLLM's arguments."""
    values: dict[str, Given] = {}
    for name, option in _variables().items():
        text = environ.get(name, "")
        if option.dest == "hf_token" or option.server or spelling.is_unset(text, option.choices):
            continue
        if spelling.is_zero(text) and option.zero_is_unset:
            found.warnings.append(f"{name}={text!r} is taken as not set: 0 is no value for it.")
            continue
        try:
            value = options.read(option, text)
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


def _retired_and_vllm(environ: Mapping[str, str], found: Findings) -> dict[str, Given]:
    """Read vLLM's options of the environment, and below them what retired names become."""
    values = _vllm(environ, ENVIRONMENT, found)
    for name, old in _retired(environ, found).items():
        option = options.by_variable()[name]
        now, value = values.get(option.dest), old.value
        if name == "HF_OVERRIDES" and now and isinstance(now.value, dict):
            values[option.dest] = Given(name, {**value, **now.value}, f"{now.source}, {old.source}")
        elif now is None and isinstance(value, dict):
            # Leftovers of a form, without a model or a method, must not switch speculation on.
            if name != "SPECULATIVE_CONFIG" or {"model", "method"} & value.keys():
                values[option.dest] = old
        elif now is None:
            values[option.dest] = Given(name, options.read(option, value), old.source)
    return values


def _retired(environ: Mapping[str, str], found: Findings) -> dict[str, Given]:
    """Warn of retired names. Return what they become, by the variable that replaces them."""
    result: dict[str, Given] = {}
    for name, row in RETIRED.items():
        text = environ.get(name, "")
        if not text.strip() or name in _variables():
            continue
        found.warnings.append(f"{name} is retired: {row.advice}.")
        try:
            becomes = {} if spelling.is_unset(text) else row.becomes(text)
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


def _config_file(environ: Mapping[str, str], found: Findings) -> dict[str, Given]:
    path = environ.get(CONFIG_FILE, "")
    if spelling.is_unset(path):
        return {}
    try:
        return _line(options.read_file(path), CONFIG_FILE, found)
    except ValueError as error:
        found.problems.append(f"{CONFIG_FILE}={path!r}: {error}")
        return {}


def _extra_args(environ: Mapping[str, str], found: Findings) -> dict[str, Given]:
    text = environ.get(EXTRA_ARGS, "")
    if spelling.is_unset(text):
        return {}
    try:
        return _line(options.read_line(shlex.split(text)), EXTRA_ARGS, found)
    except ValueError as error:
        found.problems.append(f"{EXTRA_ARGS}: {error}")
        return {}


def _line(values: dict[str, Any], source: str, found: Findings) -> dict[str, Given]:
    if values.pop("api_key", None):
        found.warnings.append(
            f"{source} sets an API key, which is ignored: RunPod checks the caller's key."
        )
    known = options.options()
    return {dest: Given(known[dest].name, value, source) for dest, value in values.items()}


def _imply(given: dict[str, Given], found: Findings) -> None:
    """Add what other settings make necessary."""
    name = given.get("model")
    if name and (name.value.endswith(".gguf") or hub.GGUF.fullmatch(name.value)):
        given.setdefault("quantization", Given("QUANTIZATION", "gguf", f"implied by {name.name}"))
    load = given.get("load_format")
    if load and load.value == "bitsandbytes" and "quantization" not in given:
        given["quantization"] = Given("QUANTIZATION", "bitsandbytes", f"implied by {load.name}")
    adapters = given.get("lora_modules")
    if adapters and adapters.value and "enable_lora" not in given:
        given["enable_lora"] = Given("ENABLE_LORA", True, f"implied by {adapters.name}")
        found.warnings.append(f"{adapters.name} is set: ENABLE_LORA is switched on.")


def _check(given: Mapping[str, Given], found: Findings) -> None:
    """Find what vLLM would find only later, or say less well."""
    if "model" not in given:
        found.problems.append(
            "No model: set MODEL_NAME to a Hugging Face repository such as "
            "HuggingFaceTB/SmolLM2-135M-Instruct, or to a folder"
        )
    for dest in ("quantization", "reasoning_parser", "tool_call_parser"):
        if dest not in given or given[dest].value in (None, ""):
            continue
        value, known = given[dest].value, options.registered(dest)
        plugin = given.get(dest.replace("_call", "") + "_plugin")
        if value.lower() not in known and value not in known and not plugin:
            because = given[dest].source
            because = f"({because}) " if because.startswith("implied") else ""
            rule = f"must be one of {', '.join(known)}"
            if value.lower() in PLUGINS:
                rule = f"needs the package {PLUGINS[value.lower()]}, which is not installed here"
            found.bad(given[dest].name, value, f"{because}{rule}")
    template = given.get("chat_template")
    if template and template.value and (why := options.template_problem(template.value)):
        found.bad(template.name, template.value, why)
    if "lora_modules" in given:
        _check_adapters(given, found)


def _check_adapters(given: Mapping[str, Given], found: Findings) -> None:
    adapters, enabled = given["lora_modules"], given.get("enable_lora")
    if adapters.value and enabled and not enabled.value:
        found.problems.append(f"{adapters.name} needs ENABLE_LORA, which is off")
    rank = given.get("max_lora_rank") or Given(
        "MAX_LORA_RANK", options.options()["max_lora_rank"].default, ""
    )
    names = [adapter.name for adapter in adapters.value or ()]
    found.problems.extend(
        f"{adapters.name} names two adapters {name!r}" for name in sorted(_twice(names))
    )
    for adapter in adapters.value or ():
        path = Path(adapter.path).expanduser()
        if not (path.exists() or adapter.path.startswith(("/", "./", "../", "~"))):
            continue  # a repository of the hub
        who = f"{adapters.name}: adapter {adapter.name!r}"
        try:
            its = json.loads((path / "adapter_config.json").read_text()).get("r", 0)
        except (OSError, ValueError, AttributeError):
            found.problems.append(f"{who}: {adapter.path} has no adapter_config.json to read")
            continue
        if isinstance(its, int) and its > rank.value:
            found.problems.append(f"{who} has rank {its}, more than MAX_LORA_RANK={rank.value}")


def _check_batches(own: Mapping[str, Given], found: Findings) -> None:
    least = own.get("min_batch_size", Given("DEFAULT_MIN_BATCH_SIZE", Settings.min_batch_size, ""))
    most = own.get("max_batch_size", Given("DEFAULT_BATCH_SIZE", Settings.max_batch_size, ""))
    if least.value > most.value:
        found.problems.append(f"{least.name}={least.value} is more than {most.name}={most.value}")


def _suspect(environ: Mapping[str, str], found: Findings) -> None:
    """Warn of what is set and does nothing: vLLM's server, misspellings, tokens that are none."""
    every = options.by_variable().items()
    if server := [name for name, option in every if option.server and environ.get(name)]:
        found.warnings.append(
            f"{', '.join(server)}: options of vLLM's HTTP server, which does not run here, "
            f"are not read from the environment. {EXTRA_ARGS} sets them."
        )
    if _is_no_token(environ):
        found.warnings.append("HF_TOKEN holds no token (one starts with hf_), and is ignored.")
    base = _base(environ)
    if base and not os.access(_nearest(base), os.W_OK):
        found.warnings.append(
            f"{base} cannot be written: models in it are found, others are downloaded into the "
            "container at each start, and compiled kernels are not kept. BASE_PATH names another."
        )
    elif base and not _has_room(base):
        found.warnings.append(f"{base} is full: compiled kernels are not kept in it.")
    if _fast_download_is_missing(environ):
        found.warnings.append(
            "HF_HUB_ENABLE_HF_TRANSFER is ignored: the package hf_transfer is not installed."
        )
    known = {*known_variables(), *RETIRED}
    ours = [name for name in known if name.startswith("VLLM_")]
    for name in sorted(environ.keys() - known - options.environment()):
        others = _OTHERS.fullmatch(name) or name in options.by_variable()
        candidates = ours if name.startswith("VLLM_") else () if others else known
        near = [word for word in sorted(candidates) if abs(len(word) - len(name)) <= 2]
        for match in get_close_matches(name, near, n=1, cutoff=0.88):
            found.warnings.append(f"{name} is no setting. Did you mean {match}?")


def known_variables() -> list[str]:
    """Return every variable that is read: ours, vLLM's options, and the names users know."""
    own = [name for variable in VARIABLES for name in variable.names]
    return [*own, *(name for name, option in _variables().items() if not option.server)]


def _variables() -> dict[str, Option]:
    known = options.by_variable()
    return {**{alias: known[name] for alias, name in ALIASES.items()}, **known}


def _own_rows(own: Mapping[str, Given]) -> Iterable[Row]:
    for variable in VARIABLES:
        given = own.get(variable.field or variable.name)
        if given and given.value != variable.default:
            yield Row(given.name, show(given.name, given.value), given.source)


def _vllm_rows(given: Mapping[str, Given]) -> Iterable[Row]:
    for dest, option in sorted(options.options().items(), key=lambda pair: pair[0] != "model"):
        if dest in given and (dest == "model" or given[dest].value != option.default):
            value = given[dest]
            yield Row(value.name, show(value.name, value.value, option.default), value.source)


def _twice(names: list[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}


def help_text() -> str:
    """Return what `python -m worker --help` prints of the variables."""
    lines = ["The worker's own variables:", ""]
    for variable in VARIABLES:
        default = "" if variable.default in (None, ()) else f" [{show('', variable.default)}]"
        lines += [f"  {' or '.join(variable.names)}{default}", f"      {variable.meaning}"]
    lines += ["", "Names that users of this worker know:", ""]
    lines += [f"  {alias:<34} is {name}" for alias, name in ALIASES.items()]
    lines += ["", "vLLM's options, each the variable of its command line option:"]
    group = ""
    for option in options.options().values():
        if option.server:
            continue
        if option.group != group:
            group = option.group
            lines += ["", f"  {group}"]
        default = f" [{option.shown_default}]" if option.shown_default else ""
        lines.append(f"    {' or '.join(option.names)}: {option.accepts}{default}")
    return "\n".join(lines)
