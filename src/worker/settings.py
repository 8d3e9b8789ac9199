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
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from worker import options
from worker.errors import SettingsError
from worker.options import Option, show

ENVIRONMENT = "environment"
IMAGE = "image"
EXTRA_ARGS = "VLLM_EXTRA_ARGS"
CONFIG_FILE = "VLLM_CONFIG_FILE"
NETWORK_VOLUME = "/runpod-volume"


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
        given = {
            **_vllm(baked, IMAGE, found),
            **_config_file(environ, found),
            **_retired_and_vllm(environ, found),
            **_extra_args(environ, found),
        }
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


@dataclass(frozen=True)
class Variable:
    """One of the worker's own variables; its default and type are those of the field."""

    name: str
    field: str | None
    meaning: str
    least: float | None = None
    aliases: tuple[str, ...] = ()

    @property
    def default(self) -> Any:
        return getattr(Settings, self.field) if self.field else None

    @property
    def kind(self) -> str:
        kinds = {bool: "switch", int: "whole number", float: "number", tuple: "list"}
        return kinds.get(type(self.default), "text")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def read(self, text: str) -> Any:
        """Return the value. Raises ValueError with the end of a sentence."""
        match self.kind:
            case "switch":
                return options.boolean(text)
            case "list":
                return _routes(text)
            case "text":
                return text
        number = _number(text, int if self.kind == "whole number" else float)
        if number is None or not math.isfinite(number):
            raise ValueError(f"is not a {self.kind}")
        if self.least is not None and number < self.least:
            raise ValueError(f"must be at least {self.least:g}")
        return number


VARIABLES = (
    Variable(
        "MAX_CONCURRENCY",
        "max_concurrency",
        "How many jobs the worker works on at once.",
        least=1,
    ),
    Variable(
        "DEFAULT_BATCH_SIZE",
        "max_batch_size",
        "The most tokens that one post of a stream carries.",
        least=1,
    ),
    Variable(
        "DEFAULT_MIN_BATCH_SIZE",
        "min_batch_size",
        "The tokens of a stream's first post.",
        least=1,
        aliases=("MIN_BATCH_SIZE",),
    ),
    Variable(
        "DEFAULT_BATCH_SIZE_GROWTH_FACTOR",
        "batch_size_growth_factor",
        "How much larger each post is than the one before: 1, 3, 9, 27, 50, 50, … by default.",
        least=1,
        aliases=("BATCH_SIZE_GROWTH_FACTOR",),
    ),
    Variable(
        "MAX_BATCH_DELAY_MS",
        "max_batch_delay_ms",
        "How long a token may wait for its batch to fill, in milliseconds. "
        "0: as long as it takes, and every post has exactly its size.",
        least=0,
    ),
    Variable(
        "DEFAULT_MAX_TOKENS",
        "default_max_tokens",
        "How long a native answer may get where neither the job nor the model says so.",
        least=1,
    ),
    Variable(
        "RAW_OPENAI_OUTPUT",
        "raw_openai_output",
        "Stream OpenAI answers as the text of server-sent events, which OpenAI's clients need. "
        "0: as lists of parsed objects.",
    ),
    Variable(
        "OPENAI_ERRORS_AS_OUTPUT",
        "openai_errors_as_output",
        "1: a failed OpenAI job ends COMPLETED with the error as its output, instead of FAILED.",
    ),
    Variable(
        "MAX_RESULT_MB",
        "max_result_mb",
        "The largest result a job may have, in megabytes. RunPod refuses larger ones.",
        least=1,
    ),
    Variable(
        "EXTRA_ROUTES",
        "extra_routes",
        "More of vLLM's routes to open to jobs, such as `/v1/load_lora_adapter`.",
    ),
    Variable(
        "BASE_PATH",
        None,
        "Where models are stored, in `huggingface-cache`. "
        f"By default `{NETWORK_VOLUME}` where there is one.",
    ),
    Variable("HF_TOKEN", None, "The Hugging Face token for gated and private models."),
    Variable(CONFIG_FILE, None, "A YAML file of vLLM's options, as for `vllm serve --config`."),
    Variable(
        EXTRA_ARGS,
        None,
        "More of vLLM's command line, such as `--max-model-len 8k`. It overrides everything else.",
    ),
)

ALIASES = {
    "MODEL_NAME": "MODEL",
    "MODEL_REVISION": "REVISION",
    "MAX_MODEL_LENGTH": "MAX_MODEL_LEN",
    "TOKENIZER_NAME": "TOKENIZER",
    "CUSTOM_CHAT_TEMPLATE": "CHAT_TEMPLATE",
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "SERVED_MODEL_NAME",
    "OPENAI_RESPONSE_ROLE": "RESPONSE_ROLE",
}


@dataclass(frozen=True)
class Retired:
    """A name that has lost its meaning: what to say, and what it becomes where that is plain.

    `becomes` turns the value into values of vLLM's options; dicts for the same one are joined.
    """

    name: str
    advice: str
    becomes: Callable[[str], dict[str, Any]] = lambda _: {}


def _log_requests(text: str) -> dict[str, Any]:
    return {"ENABLE_LOG_REQUESTS": "false" if options.boolean(text) else "true"}


def _ray(text: str) -> dict[str, Any]:
    return {"DISTRIBUTED_EXECUTOR_BACKEND": "ray"} if options.boolean(text) else {}


def _task(text: str) -> dict[str, Any]:
    runner = {"RUNNER": "pooling"}
    return {
        "generate": {"RUNNER": "generate"},
        "embed": {**runner, "CONVERT": "embed"},
        "embedding": {**runner, "CONVERT": "embed"},
        "classify": {**runner, "CONVERT": "classify"},
        "score": {**runner, "CONVERT": "classify"},
        "reward": runner,
    }.get(text.strip().lower(), {})


def _rope(key: str) -> Callable[[str], dict[str, Any]]:
    def becomes(text: str) -> dict[str, Any]:
        value = json.loads(text)
        value = value if key == "rope_scaling" else {key: value}
        return {"HF_OVERRIDES": {"rope_parameters": value}} if value else {}

    return becomes


def _speculative(key: str) -> Callable[[str], dict[str, Any]]:
    def becomes(text: str) -> dict[str, Any]:
        if text.strip() == "[ngram]":
            return {"SPECULATIVE_CONFIG": {"method": "ngram"}}
        value = text if key in ("model", "quantization") else int(text)
        return {"SPECULATIVE_CONFIG": {key: value}} if value else {}

    return becomes


def _gone(advice: str, *names: str) -> tuple[Retired, ...]:
    return tuple(Retired(name, advice) for name in names)


_IN_SPECULATIVE_CONFIG = "it is part of SPECULATIVE_CONFIG now, and applied there"
_ROPE_ADVICE = (
    'it is part of HF_OVERRIDES now, and applied there as {"rope_parameters": …}, '
    "which replaces the model's own: give its rope_theta too"
)

RETIRED = {
    row.name: row
    for row in (
        Retired(
            "DISABLE_LOG_REQUESTS",
            "requests are not logged unless ENABLE_LOG_REQUESTS is on; its inverse is applied there",
            _log_requests,
        ),
        Retired("TASK", "RUNNER and CONVERT say it now, and it is applied there", _task),
        Retired("ROPE_SCALING", _ROPE_ADVICE, _rope("rope_scaling")),
        Retired("ROPE_THETA", _ROPE_ADVICE, _rope("rope_theta")),
        Retired(
            "WORKER_USE_RAY", "DISTRIBUTED_EXECUTOR_BACKEND=ray says it now, and is applied", _ray
        ),
        Retired(
            "ENGINE_USE_RAY", "DISTRIBUTED_EXECUTOR_BACKEND=ray says it now, and is applied", _ray
        ),
        *(
            Retired(name, _IN_SPECULATIVE_CONFIG, _speculative(key))
            for name, key in {
                "SPECULATIVE_MODEL": "model",
                "NUM_SPECULATIVE_TOKENS": "num_speculative_tokens",
                "NGRAM_PROMPT_LOOKUP_MAX": "prompt_lookup_max",
                "NGRAM_PROMPT_LOOKUP_MIN": "prompt_lookup_min",
                "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "draft_tensor_parallel_size",
                "SPECULATIVE_MAX_MODEL_LEN": "max_model_len",
                "SPECULATIVE_MODEL_QUANTIZATION": "quantization",
            }.items()
        ),
        *_gone(
            "set SPECULATIVE_CONFIG instead",
            "NUM_LOOKAHEAD_SLOTS",
            "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
            "SPEC_DECODING_ACCEPTANCE_METHOD",
            "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA",
            "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD",
        ),
        *_gone(
            'set STRUCTURED_OUTPUTS_CONFIG instead, such as {"backend": "xgrammar"}',
            "GUIDED_DECODING_BACKEND",
            "GUIDED_DECODING_DISABLE_FALLBACK",
            "GUIDED_DECODING_DISABLE_ANY_WHITESPACE",
            "GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES",
        ),
        *_gone("vLLM swaps no more; KV_OFFLOADING_SIZE is the nearest", "SWAP_SPACE"),
        *_gone("vLLM swaps no more and always recomputes", "PREEMPTION_MODE"),
        *_gone("vLLM finds the device itself", "DEVICE"),
        *_gone("set GPU_MEMORY_UTILIZATION or TENSOR_PARALLEL_SIZE instead", "VLLM_CPU_FRACTION"),
        *_gone(
            "set MAX_CUDAGRAPH_CAPTURE_SIZE instead; it counts sequences, not tokens",
            "MAX_CONTEXT_LEN_TO_CAPTURE",
            "MAX_SEQ_LEN_TO_CAPTURE",
        ),
        *_gone(
            "vLLM schedules by itself; MAX_NUM_BATCHED_TOKENS is the nearest",
            "SCHEDULER_DELAY_FACTOR",
            "NUM_SCHEDULER_STEPS",
            "MULTI_STEP_STREAM_OUTPUTS",
            "MAX_NUM_PARTIAL_PREFILLS",
            "MAX_LONG_PARTIAL_PREFILLS",
        ),
        *_gone(
            "set RENDERER_NUM_WORKERS instead",
            "TOKENIZER_POOL_SIZE",
            "TOKENIZER_POOL_TYPE",
            "TOKENIZER_POOL_EXTRA_CONFIG",
        ),
        *_gone("set REASONING_PARSER alone", "ENABLE_REASONING"),
        *_gone("set POOLER_CONFIG instead", "OVERRIDE_POOLER_CONFIG"),
        *_gone("set CUDAGRAPH_CAPTURE_SIZES instead", "CUDA_GRAPH_SIZES"),
        *_gone("set MM_PROCESSOR_CACHE_GB=0 instead", "DISABLE_MM_PREPROCESSOR_CACHE"),
        *_gone("set LORA_MODULES instead", "QLORA_ADAPTER_NAME_OR_PATH"),
        *_gone(
            "vLLM has dropped it, and nothing replaces it",
            "USE_V2_BLOCK_MANAGER",
            "DISABLE_ASYNC_OUTPUT_PROC",
            "ENABLE_PROMPT_ADAPTER",
            "MAX_PROMPT_ADAPTERS",
            "MAX_PROMPT_ADAPTER_TOKEN",
            "LORA_EXTRA_VOCAB_SIZE",
            "LONG_LORA_SCALING_FACTORS",
            "QUANTIZATION_PARAM_PATH",
        ),
    )
}

# Names that belong to others: a likeness to one of ours is an accident.
_OTHERS = re.compile(
    r"(RUNPOD|VLLM|HF|HUGGING_?FACE|TRANSFORMERS|CUDA|NVIDIA|NV|NCCL|TORCH|PYTORCH|TRITON|RAY|OMP|MKL"
    r"|PIP|PYTHON|UV|CONDA|LC|XDG|SSH|KUBERNETES|AWS|GOOGLE|AZURE|GIT|DEBIAN|TOKENIZERS)_?.*|.{1,5}"
)


def process_environ(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return what must change in the process's environment before vLLM is imported.

    None means that the variable goes away. Nothing heavy is imported to know it.
    """
    # VLLM_API_KEY would put a password in front of the app that this process calls itself;
    # the others are our names in vLLM's namespace, and vLLM complains about names it does not know.
    taken = ("VLLM_API_KEY", CONFIG_FILE, EXTRA_ARGS, "VLLM_CPU_FRACTION")
    changes: dict[str, str | None] = {name: None for name in taken if name in environ}
    base = environ.get("BASE_PATH", "")
    if options.is_unset(base):
        base = NETWORK_VOLUME if Path(NETWORK_VOLUME).is_dir() else ""
    if base and not environ.get("HF_HOME"):
        changes["HF_HOME"] = f"{base.rstrip('/')}/huggingface-cache"
    if not environ.get("RUNPOD_LOG_LEVEL") and not environ.get("RUNPOD_DEBUG_LEVEL"):
        changes["RUNPOD_LOG_LEVEL"] = "INFO"  # the SDK's own is DEBUG: a line for every post
    if _fast_download_is_missing(environ):
        changes["HF_HUB_ENABLE_HF_TRANSFER"] = None
    if _is_no_token(environ):
        changes["HF_TOKEN"] = None
    return changes


def _fast_download_is_missing(environ: Mapping[str, str]) -> bool:
    switch = environ.get("HF_HUB_ENABLE_HF_TRANSFER", "")
    return switch.strip().lower() in options.TRUE and not importlib.util.find_spec("hf_transfer")


def _is_no_token(environ: Mapping[str, str]) -> bool:
    token = environ.get("HF_TOKEN", "").strip().lower()
    return token in options.TRUE | options.FALSE | options.NOTHING - {""}


def _own(environ: Mapping[str, str], source: str, found: Findings) -> dict[str, Given]:
    """Read the worker's own variables, by field (or by name, where there is no field)."""
    values: dict[str, Given] = {}
    for variable in VARIABLES:
        for name in variable.names:
            if options.is_unset(text := environ.get(name, "")):
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
        if option.dest == "hf_token" or option.server or options.is_unset(text, option):
            continue
        if options.is_zero(text) and option.zero_is_unset:
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
    for name, becomes in _retired(environ, found).items():
        option, sources, value = options.by_variable()[name], becomes[0], becomes[1]
        now = values.get(option.dest)
        if isinstance(value, dict):
            value = {**value, **(now.value if now and isinstance(now.value, dict) else {})}
            # Leftovers of a form, without a model or a method, must not switch speculation on.
            if name != "SPECULATIVE_CONFIG" or {"model", "method"} & value.keys():
                values[option.dest] = Given(name, value, sources)
        elif now is None:
            values[option.dest] = Given(name, options.read(option, value), sources)
    return values


def _retired(environ: Mapping[str, str], found: Findings) -> dict[str, tuple[str, Any]]:
    """Warn of retired names. Return what they become: where from, and the value."""
    result: dict[str, tuple[str, Any]] = {}
    for name, row in RETIRED.items():
        text = environ.get(name, "")
        if not text.strip() or name in _variables():
            continue
        found.warnings.append(f"{name} is retired: {row.advice}.")
        try:
            becomes = {} if options.is_unset(text) else row.becomes(text)
        except ValueError:
            found.warnings.append(f"{name}={show(name, text)!r} is not understood, and ignored.")
            continue
        for successor, value in becomes.items():
            source, old = result.get(successor, ("", None))
            joined = {**old, **value} if isinstance(old, dict) else value
            if successor == "HF_OVERRIDES" and isinstance(old, dict):
                joined = {"rope_parameters": {**old["rope_parameters"], **value["rope_parameters"]}}
            result[successor] = (", ".join(filter(None, [source, name])), joined)
    return result


def _config_file(environ: Mapping[str, str], found: Findings) -> dict[str, Given]:
    path = environ.get(CONFIG_FILE, "")
    if options.is_unset(path):
        return {}
    try:
        return _line(options.read_file(path), CONFIG_FILE, found)
    except ValueError as error:
        found.problems.append(f"{CONFIG_FILE}={path!r}: {error}")
        return {}


def _extra_args(environ: Mapping[str, str], found: Findings) -> dict[str, Given]:
    text = environ.get(EXTRA_ARGS, "")
    if options.is_unset(text):
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
            found.bad(given[dest].name, value, f"must be one of {', '.join(known)}")
    if template := given.get("chat_template"):
        if template.value and (why := options.template_problem(template.value)):
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
        path = Path(adapter.path)
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
    sizes = [own.get(name, Given("", getattr(Settings, name), "")) for name in _SIZES]
    if sizes[0].value > sizes[1].value:
        found.problems.append(
            f"{sizes[0].name or _SIZES['min_batch_size']}={sizes[0].value} is more than "
            f"{sizes[1].name or _SIZES['max_batch_size']}={sizes[1].value}"
        )


_SIZES = {"min_batch_size": "DEFAULT_MIN_BATCH_SIZE", "max_batch_size": "DEFAULT_BATCH_SIZE"}


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
    if _fast_download_is_missing(environ):
        found.warnings.append(
            "HF_HUB_ENABLE_HF_TRANSFER is ignored: the package hf_transfer is not installed."
        )
    known = {*known_variables(), *RETIRED}
    ours = [name for name in known if name.startswith("VLLM_")]
    for name in sorted(environ.keys() - known - options.environment()):
        others = _OTHERS.fullmatch(name) or name in options.by_variable()
        candidates = ours if name.startswith("VLLM_") else () if others else known
        near = [word for word in candidates if abs(len(word) - len(name)) <= 2]
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
    for dest, option in options.options().items():
        if dest in given and (dest == "model" or given[dest].value != option.default):
            value = given[dest]
            yield Row(value.name, show(value.name, value.value), value.source)


def _routes(text: str) -> tuple[str, ...]:
    routes = options.items(text)
    for route in routes:
        if not route.startswith("/"):
            raise ValueError("must be paths that start with /")
    return tuple(routes)


def _number(text: str, kind: Callable[[str], float]) -> float | None:
    try:
        return kind(text)
    except ValueError:
        return None


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
