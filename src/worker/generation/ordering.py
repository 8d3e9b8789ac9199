"""What transformers' processors must do for a request, in transformers' order."""

from collections.abc import Mapping
from typing import Any

from worker.errors import invalid_parameter
from worker.facts import Facts
from worker.generation import table
from worker.generation.table import BY_NAME
from worker.processor.order import Order

CHAIN_WARPERS = ("top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
# Raises vLLM's lower bound, below which it changes a temperature without a word.
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 2.0


def order_of(
    asked: Mapping[str, Any],
    facts: Facts,
    samples: bool,
    is_routine: bool,
    scores: int,
    logits: int,
) -> Order | None:
    """Return what the chain has to do, or None where vLLM's own fields are enough."""
    fields = {
        parameter.name: asked[parameter.name]
        for parameter in table.PARAMETERS
        if parameter.kind == "chain"
        and parameter.name in asked
        and (samples or parameter.name not in CHAIN_WARPERS)
        and asked[parameter.name] != parameter.neutral
    }
    if not (fields or is_routine or scores or logits or (samples and _beyond_vllm(asked, facts))):
        return None
    defaults = facts.defaults
    penalty = asked.get("repetition_penalty", defaults.get("repetition_penalty", 1.0))
    if penalty != 1:
        fields["repetition_penalty"] = float(penalty)
    fields["do_sample"] = samples
    if samples:
        fields["top_k"] = 0
        fields["temperature"] = float(asked["temperature"])
        for name in ("top_k", "top_p", "min_p"):
            value = asked.get(name, defaults.get(name))
            if value is not None:
                fields[name] = value
        fields["top_k"] = max(fields["top_k"], 0)
        if not fields.get("min_p"):
            fields.pop("min_p", None)
    eos = asked.get("eos_token_id", facts.eos)
    if asked.get("ignore_eos"):
        eos = ()
    if not eos and fields.pop("exponential_decay_length_penalty", None) and not facts.eos:
        raise invalid_parameter(
            "exponential_decay_length_penalty",
            "exponential_decay_length_penalty makes the end likelier, and this model has no end: "
            "give eos_token_id.",
        )
    return Order(
        fields=fields,
        eos=tuple(eos),
        scores=scores,
        logits=logits,
    )


def _beyond_vllm(asked: Mapping[str, Any], facts: Facts) -> bool:
    """Say whether vLLM would refuse or change what transformers understands."""
    temperature = asked["temperature"]
    top_p, min_p = (asked.get(name, facts.defaults.get(name)) for name in ("top_p", "min_p"))
    in_another_order = top_p is not None and top_p < 1 and min_p
    return bool(
        temperature > MOST_TEMPERATURE
        or temperature < LEAST_TEMPERATURE
        or top_p == 0
        # Where the model itself says both, it means what vLLM makes of them.
        or (in_another_order and ("top_p" in asked or "min_p" in asked))
    )


def chain_name(asked: Mapping[str, Any], order: Order | None) -> str:
    """Return the parameter because of which a request needs the chain."""
    fields = order.fields if order else {}
    for name, value in asked.items():
        if name in ("num_beams", "guidance_scale"):
            needs = value != 1
        elif name in ("token_healing", "output_scores", "output_logits"):
            needs = bool(value)
        else:
            needs = BY_NAME[name].kind == "chain" and name in fields
        if needs:
            return name
    if asked.get("top_p") == 0 or LEAST_TEMPERATURE <= asked["temperature"] <= MOST_TEMPERATURE:
        return "min_p" if asked.get("min_p") and asked.get("top_p") != 0 else "top_p"
    return "temperature"
