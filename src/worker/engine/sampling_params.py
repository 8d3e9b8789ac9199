"""Fields become vLLM's SamplingParams, or vLLM's reason becomes a sentence."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    StructuredOutputsParams,
)
from vllm.sampling_params import (
    SamplingParams as SamplingParams,  # for others
)

from worker.errors import RequestError, invalid_parameter
from worker.sentences import nearest, shown


@cache
def names() -> frozenset[str]:
    """Return the fields of vLLM's SamplingParams."""
    return frozenset(one.name for one in msgspec.structs.fields(SamplingParams))


def build(fields: Mapping[str, Any], *, stream: bool) -> SamplingParams:
    """Return vLLM's SamplingParams. Raises RequestError naming the field."""
    params = _checked(fields)
    params.output_kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    return params


def shows_pieces(params: SamplingParams) -> bool:
    """Say whether each engine output holds only what is new."""
    return bool(params.output_kind == RequestOutputKind.DELTA)


def show_each_step(params: SamplingParams) -> None:
    """Let a request that would be seen only at its end be seen at each step."""
    if not shows_pieces(params):
        params.output_kind = RequestOutputKind.CUMULATIVE


def show_the_end(params: SamplingParams) -> None:
    """Let a request be seen only at its end."""
    params.output_kind = RequestOutputKind.FINAL_ONLY


def apart(params: SamplingParams) -> list[SamplingParams]:
    """Return the parameters of `n` answers as n requests of one answer, as vLLM itself does."""
    each = []
    for i in range(params.n):
        one = params.clone()
        one.n, one.seed = 1, None if params.seed is None else params.seed + i
        each.append(one)
    return each


def _checked(fields: Mapping[str, Any]) -> SamplingParams:
    _refuse_unknown_fields(fields)
    for name, value in fields.items():
        try:
            msgspec.msgpack.encode(value)  # as it goes to the engine
        except OverflowError:
            raise invalid_parameter(
                name, f"{name} holds a number that does not fit into 64 bits."
            ) from None
    try:
        return _adapter().validate_python(fields)
    except ValidationError as error:
        name, reason = _first(error)
        raise invalid_parameter(name, f"{name}={shown(fields.get(name))}: {reason}.") from None
    except (VLLMValidationError, ValueError) as error:  # vLLM's own ranges, in its own words
        raise _refusal(error) from None


@cache
def _adapter() -> TypeAdapter[SamplingParams]:
    return TypeAdapter(SamplingParams)


def _refuse_unknown_fields(fields: Mapping[str, Any]) -> None:
    groups = {
        "structured_outputs": StructuredOutputsParams,
        "repetition_detection": RepetitionDetectionParams,
    }
    for name, group in groups.items():
        known = [one for one in group.__dataclass_fields__ if not one.startswith("_")]
        for key in fields[name] if isinstance(fields.get(name), dict) else ():
            if key not in known:  # pydantic would drop it without a word
                hint = nearest(key, known) or f" Known: {', '.join(known)}."
                raise invalid_parameter(name, f"{name} has no field {shown(key)}.{hint}")


def _refusal(error: Exception) -> RequestError:
    # str() of vLLM's error repeats the parameter and its value behind the sentence, and a few
    # sentences end in the whole Python object.
    sentence = str(error.args[0] if error.args else error).split(": {")[0].rstrip(".") + "."
    words = sentence.replace("structured outputs", "structured_outputs").split()
    words += ["repetition_detection"] if "repetitive pattern" in sentence else []
    param = next((name for word in words if (name := word.strip("`.")) in names()), None)
    return invalid_parameter(param, sentence)


def _first(error: ValidationError) -> tuple[str, str]:
    # Pydantic tries "an object of these fields" and "an instance of the class", and reports both.
    for detail in error.errors(include_url=False):
        for step in detail["loc"]:
            if step in names():
                return str(step), detail["msg"]
    return "?", error.errors(include_url=False)[0]["msg"]
