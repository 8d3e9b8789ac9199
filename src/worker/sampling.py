"""A job's `sampling_params` become vLLM's `SamplingParams`."""

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams

from worker.errors import RequestError, nearest

# Fields of SamplingParams that belong to the worker or to vLLM itself. `extra_args` reaches
# connectors that read file paths from it.
_INTERNAL = {
    "extra_args",
    "output_kind",
    "output_text_buffer_length",
    "routed_experts_prompt_start",
    "skip_clone",
    "trace_decode_token_ids",
}
NAMES = frozenset(
    f.name
    for f in msgspec.structs.fields(SamplingParams)
    if not f.name.startswith("_") and f.name not in _INTERNAL
)
_ADAPTER = TypeAdapter(SamplingParams)


def read(
    given: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any],
    default_max_tokens: int,
    stream: bool,
) -> SamplingParams:
    """Check a job's parameters and make vLLM's value of them.

    What the job leaves out (or gives as null) comes from `defaults`, the model's
    `generation_config.json` as vLLM reads it, then from `default_max_tokens`, then from vLLM.
    Raises RequestError naming the parameter.
    """
    for name in given:
        if name not in NAMES and not (name == "best_of" and given[name] == given.get("n", 1)):
            raise RequestError(
                f"sampling_params has no parameter {name!r}.{nearest(name, NAMES)}", param=name
            )
    chosen = dict(defaults) | {
        name: value for name, value in given.items() if value is not None and name in NAMES
    }
    if "max_tokens" not in chosen:
        least = chosen.get("min_tokens")
        chosen["max_tokens"] = max(default_max_tokens, least if isinstance(least, int) else 0)
    try:
        params: SamplingParams = _ADAPTER.validate_python(chosen)
    except ValidationError as error:
        name, reason = _first(error)
        raise RequestError(
            f"sampling_params.{name}={chosen.get(name)!r}: {reason}.", param=name
        ) from None
    except ValueError as error:  # vLLM's own ranges; its message is the sentence
        raise RequestError(str(error)) from None
    params.output_kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    return params


def _first(error: ValidationError) -> tuple[str, str]:
    # Pydantic tries "an object of these fields" and "an instance of the class", and reports both.
    for detail in error.errors(include_url=False):
        for step in detail["loc"]:
            if step in NAMES:
                return str(step), detail["msg"]
    return "?", error.errors(include_url=False)[0]["msg"]
