"""A job's `sampling_params` become vLLM's `SamplingParams`."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from worker.errors import RequestError, nearest, shown

if TYPE_CHECKING:  # importing vLLM takes seconds, and the start has things to say before
    from vllm.sampling_params import SamplingParams

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


@cache
def names() -> frozenset[str]:
    """Return the names that `sampling_params` may hold: vLLM's own fields."""
    from vllm.sampling_params import SamplingParams

    fields = (field.name for field in msgspec.structs.fields(SamplingParams))
    return frozenset(n for n in fields if not n.startswith("_") and n not in _INTERNAL)


def read(
    given: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any],
    default_max_tokens: int,
    stream: bool,
) -> "SamplingParams":
    """Check a job's parameters and make vLLM's value of them.

    What the job leaves out (or gives as null) comes from `defaults`, the model's
    `generation_config.json` as vLLM reads it, then from `default_max_tokens`, then from vLLM.
    Raises RequestError naming the parameter.
    """
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import RequestOutputKind

    chosen = dict(defaults) | _known(given)
    has_length = "max_tokens" in chosen
    try:
        params = _adapter().validate_python({"max_tokens": None} | chosen)
    except ValidationError as error:
        name, reason = _first(error)
        raise RequestError(
            f"sampling_params.{name}={shown(chosen.get(name))}: {reason}.", param=name
        ) from None
    except (VLLMValidationError, ValueError) as error:  # vLLM's own ranges, in its own words
        raise _refusal(error) from None
    if not has_length:
        params.max_tokens = max(default_max_tokens, params.min_tokens)
    params.output_kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    return params


@cache
def _adapter() -> "TypeAdapter[SamplingParams]":
    from vllm.sampling_params import SamplingParams

    return TypeAdapter(SamplingParams)


def _known(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the job really asks for; refuse a name that vLLM would ignore or not know."""
    from vllm.sampling_params import RepetitionDetectionParams, StructuredOutputsParams

    asked = {name: value for name, value in given.items() if value is not None}
    best_of, n = asked.pop("best_of", None), asked.get("n", 1)
    if best_of not in (None, n):
        raise RequestError(
            f"best_of={shown(best_of)} differs from n={shown(n)}, and vLLM no longer ranks what it "
            "writes: ask for n sequences and choose among them.",
            param="best_of",
        )
    for name in given:
        if name not in names() and name != "best_of":
            hint = nearest(name, names()) or f" Known: {', '.join(sorted(names()))}."
            raise RequestError(f"sampling_params has no parameter {shown(name)}.{hint}", param=name)
    for name, value in asked.items():
        if type(value) is int and not -(2**63) <= value < 2**63:  # the engine speaks MessagePack
            raise RequestError(f"{name} must fit into 64 bits.", param=name)
    groups = {
        "structured_outputs": StructuredOutputsParams,
        "repetition_detection": RepetitionDetectionParams,
    }
    for name, group in groups.items():
        fields = [field for field in group.__dataclass_fields__ if not field.startswith("_")]
        for key in asked[name] if isinstance(asked.get(name), dict) else ():
            if key not in fields:  # pydantic would drop it without a word
                hint = nearest(key, fields) or f" Known: {', '.join(fields)}."
                raise RequestError(f"{name} has no field {shown(key)}.{hint}", param=name)
    return asked


def _refusal(error: Exception) -> RequestError:
    # str() of vLLM's error repeats the parameter and its value behind the sentence, and a few
    # sentences end in the whole Python object.
    sentence = str(error.args[0] if error.args else error).split(": {")[0].rstrip(".") + "."
    first = sentence.split()[0].strip("`.")
    return RequestError(sentence, param=first if first in names() else None)


def _first(error: ValidationError) -> tuple[str, str]:
    # Pydantic tries "an object of these fields" and "an instance of the class", and reports both.
    for detail in error.errors(include_url=False):
        for step in detail["loc"]:
            if step in names():
                return str(step), detail["msg"]
    return "?", error.errors(include_url=False)[0]["msg"]
