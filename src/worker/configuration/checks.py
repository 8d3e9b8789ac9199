"""What is wrong with a configuration, or suspicious, as sentences."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

from worker.configuration.environ import (
    base_path,
    existing_parent,
    has_room,
    is_no_token,
)
from worker.configuration.layers import Findings, Given, known_variables
from worker.configuration.retired import RETIRED
from worker.configuration.variables import EXTRA_ARGS, VARIABLES, Own
from worker.engine import command_line
from worker.model import files

# Left vLLM's core for packages of their own: quantisation, and the package that brings it.
PLUGINS = {"bitsandbytes": "vllm-bnb-plugin", "gguf": "vllm-gguf-plugin"}
# Names that belong to others: a likeness to one of ours is an accident.
_OTHERS = re.compile(
    r"(RUNPOD|VLLM|HF|HUGGING_?FACE|TRANSFORMERS|TOKENIZERS|CUDA|NVIDIA|NV|NCCL|TORCH|PYTORCH|TRITON"
    r"|RAY|OMP|MKL|PIP|UV|CONDA|LC|XDG|SSH|KUBERNETES|AWS|GOOGLE|AZURE|GIT)_.*|PYTHON.*|.{1,7}"
)


def imply(given: dict[str, Given], own: Mapping[str, Given], found: Findings) -> None:
    """Add what other settings make necessary."""
    name = given.get("model")
    if name and (name.value.endswith(".gguf") or files.GGUF.fullmatch(name.value)):
        given.setdefault("quantization", Given("QUANTIZATION", "gguf", f"implied by {name.name}"))
    load = given.get("load_format")
    if load and load.value == "bitsandbytes" and "quantization" not in given:
        given["quantization"] = Given("QUANTIZATION", "bitsandbytes", f"implied by {load.name}")
    for adapters in (given.get("lora_modules"), own.get("lora_allowed")):
        if adapters and adapters.value and "enable_lora" not in given:
            given["enable_lora"] = Given("ENABLE_LORA", True, f"implied by {adapters.name}")
            found.warnings.append(f"{adapters.name} is set: ENABLE_LORA is switched on.")


def check(given: Mapping[str, Given], found: Findings) -> None:
    """Find what vLLM would find only later, or say less well."""
    if "model" not in given:
        found.problems.append(
            "No model: set MODEL_NAME to a Hugging Face repository such as "
            "HuggingFaceTB/SmolLM2-135M-Instruct, or to a folder"
        )
    for dest in ("quantization", "reasoning_parser", "tool_call_parser"):
        if dest not in given or given[dest].value in (None, ""):
            continue
        value, known = given[dest].value, command_line.registered(dest)
        plugin = given.get(dest.replace("_call", "") + "_plugin")
        if value.lower() not in known and value not in known and not plugin:
            because = given[dest].source
            because = f"({because}) " if because.startswith("implied") else ""
            rule = f"must be one of {', '.join(known)}"
            if value.lower() in PLUGINS:
                rule = f"needs the package {PLUGINS[value.lower()]}, which is not installed here"
            found.bad(given[dest].name, value, f"{because}{rule}")
    template = given.get("chat_template")
    if template and template.value and (why := command_line.template_problem(template.value)):
        found.bad(template.name, template.value, why)
    if "lora_modules" in given:
        _check_adapters(given, found)


def _check_adapters(given: Mapping[str, Given], found: Findings) -> None:
    adapters, enabled = given["lora_modules"], given.get("enable_lora")
    if adapters.value and enabled and not enabled.value:
        found.problems.append(f"{adapters.name} needs ENABLE_LORA, which is off")
    rank = given.get("max_lora_rank") or Given(
        "MAX_LORA_RANK", command_line.options()["max_lora_rank"].default, ""
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


def check_adapters_on_demand(own: Mapping[str, Given], found: Findings) -> None:
    """Refuse patterns of a bucket's adapters without the bucket's keys."""
    allowed = own.get("lora_allowed")
    if not allowed or not any(one.startswith("s3://") for one in allowed.value):
        return
    needed = [one.name for one in fields(Own) if one.name.startswith("bucket_")]
    if missing := [name.upper() for name in needed if name not in own or not own[name].value]:
        found.problems.append(f"{allowed.name} names a bucket, which needs {', '.join(missing)}")


def check_batches(own: Mapping[str, Given], found: Findings) -> None:
    """Refuse a first post of a stream that is larger than every later one."""
    least, most = (
        own.get(name, Given(name.upper(), getattr(Own, name), ""))
        for name in ("default_min_batch_size", "default_batch_size")
    )
    if least.value > most.value:
        found.problems.append(f"{least.name}={least.value} is more than {most.name}={most.value}")


def suspect(environ: Mapping[str, str], found: Findings, *, http: bool) -> None:
    """Warn of what is set and does nothing: vLLM's server, misspellings, tokens that are none."""
    every = command_line.by_variable().items()
    ours = {variable.name for variable in VARIABLES if variable.http and http}
    server = [name for name, one in every if one.server and environ.get(name) and name not in ours]
    if server:
        found.warnings.append(
            f"{', '.join(server)}: options of vLLM's HTTP server, which does not run here, "
            f"are not read from the environment. {EXTRA_ARGS} sets them."
        )
    if environ.get("CODE_REVISION"):
        found.warnings.append(
            "CODE_REVISION is for code that the model takes from another repository: its own code "
            "is that of its revision."
        )
    if is_no_token(environ):
        found.warnings.append("HF_TOKEN holds no token (one starts with hf_), and is ignored.")
    if environ.get("PROMETHEUS_MULTIPROC_DIR"):
        found.warnings.append(
            "PROMETHEUS_MULTIPROC_DIR is ignored: all metrics are counted in one process."
        )
    base = base_path(environ)
    if base and not os.access(existing_parent(base), os.W_OK):
        found.warnings.append(
            f"{base} cannot be written: models in it are found, others are downloaded into the "
            "container at each start, and compiled kernels are not kept. BASE_PATH names another."
        )
    elif base and not has_room(base):
        found.warnings.append(f"{base} is full: compiled kernels are not kept in it.")
    retired = (name for variable in VARIABLES for name in variable.retired)
    known = {*known_variables(), *RETIRED, *retired}
    found.warnings.extend(
        said
        for name in sorted(environ.keys() - known - command_line.environment())
        if (said := _of_an_unknown(name, known))
    )


def _of_an_unknown(name: str, known: set[str]) -> str:
    """Return what to say of a variable that nobody reads: nothing where it is somebody else's."""
    bare = name.removeprefix("VLLM_")
    candidates = sorted(known)
    if bare != name:
        candidates = [word for word in known if word.startswith("VLLM_") or word == bare]
    elif _OTHERS.fullmatch(name) or name in command_line.by_variable():
        return ""
    near = [word for word in candidates if abs(len(word) - len(name)) <= 2 or word == bare]
    match = get_close_matches(name, near, n=1, cutoff=0.88 if bare == name else 0.7)
    # In the manner of ours and of vLLM's: of two words and more that their names are made of.
    words = {word for one in known for word in one.split("_")}
    if not match and bare == name and "_" in name and set(name.split("_")) <= words:
        match = get_close_matches(name, candidates, n=1, cutoff=0.75)
        if not match:
            return f"{name} is no setting of this worker or of vLLM, and has no effect."
    return f"{name} is no setting. Did you mean {match[0]}?" if match else ""


def _twice(names: list[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}
