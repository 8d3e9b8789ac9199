"""Parameters that contradict each other, have no effect, or cannot be combined."""

from collections.abc import Mapping
from typing import Any

from worker.errors import RequestError, invalid_parameter, unsupported_parameter
from worker.generation import checks
from worker.generation.plan import Beams
from worker.sentences import shown

# Given in both dialects with two values, each of these pairs contradicts itself.
SAME_THING = (
    ("max_tokens", "max_new_tokens"),
    ("max_tokens", "max_length"),
    ("min_tokens", "min_new_tokens"),
    ("min_tokens", "min_length"),
    ("n", "num_return_sequences"),
    ("stop", "stop_strings"),
)
# vLLM's fields that mean nothing to requests of one token each, which the routines send.
NOT_IN_ROUTINES = (
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "logprobs",
    "logprob_token_ids",
    "prompt_logprobs",
    "structured_outputs",
    "repetition_detection",
    "thinking_token_budget",
    "bad_words",
)


def contradiction(one: str, value: Any, other: str, other_value: Any) -> RequestError:
    return invalid_parameter(
        other,
        f"{one}={shown(value)} and {other}={shown(other_value)} contradict each other: give one "
        "of them.",
    )


def refuse_contradictions(asked: Mapping[str, Any]) -> None:
    for one, other in SAME_THING:
        # max_length and min_length count the prompt, so the same number is another length.
        differ = asked.get(one) != asked.get(other) or other.endswith("_length")
        if one in asked and other in asked and differ:
            raise contradiction(one, asked[one], other, asked[other])
    n = asked.get("n", asked.get("num_return_sequences", 1))
    opposites = [
        ("ignore_eos", True, "eos_token_id"),
        ("include_stop_str_in_output", False, "stop_strings"),
        ("detokenize", False, "stop_strings"),
        ("do_sample", True, "temperature") if asked.get("temperature") == 0 else None,
        ("use_beam_search", True, "num_beams") if asked.get("num_beams") == 1 else None,
        ("use_beam_search", False, "num_beams") if asked.get("num_beams", 1) > 1 else None,
        ("num_beams", asked.get("num_beams"), "best_of")
        if asked.get("num_beams", 1) > 1 and asked.get("best_of") not in (n, asked["num_beams"])
        else None,
        ("negative_prompt", asked.get("negative_prompt"), "negative_prompt_ids"),
        ("structured_outputs", asked.get("structured_outputs"), guided)
        if (guided := next((name for name in asked if name.startswith("guided_")), None))
        else None,
    ]
    for entry in opposites:
        if entry is None:
            continue
        one, value, other = entry
        if one in asked and other in asked and asked[one] == value:
            raise contradiction(one, value, other, asked[other])
    for low, high in (
        ("min_new_tokens", "max_new_tokens"),
        ("min_new_tokens", "max_tokens"),
        ("min_new_tokens", "max_length"),
        ("min_tokens", "max_new_tokens"),
        ("min_tokens", "max_tokens"),
        ("min_tokens", "max_length"),
        ("min_length", "max_length"),
    ):
        loses = (high == "max_length" and "max_new_tokens" in asked) or (
            low == "min_length" and "min_new_tokens" in asked
        )
        if not loses and asked.get(low, 0) > asked.get(high, checks.MOST):
            raise contradiction(low, asked[low], high, asked[high])
    if "exponential_decay_length_penalty" in asked and asked.get("ignore_eos"):
        raise contradiction(
            "ignore_eos",
            True,
            "exponential_decay_length_penalty",
            asked["exponential_decay_length_penalty"],
        )


def warn_idle(
    asked: Mapping[str, Any], own: set[str], beams: Beams | None, warnings: list[str]
) -> None:
    if not beams:
        idle = [name for name in ("length_penalty", "early_stopping") if name in own]
        if idle:
            warnings.append(f"{', '.join(idle)}: no effect without num_beams.")
    if "max_length" in own and own & {"max_new_tokens"}:
        warnings.append("max_length: max_new_tokens wins over it.")
    if "min_length" in own and asked.get("min_new_tokens") is not None and "min_new_tokens" in own:
        warnings.append("min_length: min_new_tokens wins over it.")


def refuse_beside_routine(asked: Mapping[str, Any], routine: str, values: int) -> None:
    names = [
        name
        for name in (*NOT_IN_ROUTINES, "best_of")
        if asked.get(name) or (name.endswith("logprobs") and asked.get(name) == 0)
    ]
    if values and routine == "num_beams":
        names += [name for name in ("output_scores", "output_logits") if asked.get(name)]
    if names:
        raise unsupported_parameter(names[0], f"{names[0]} cannot be combined with {routine}.")


def refuse_beside_ranking(asked: Mapping[str, Any]) -> None:
    for name in ("max_time", "output_scores", "output_logits"):
        if asked.get(name):
            raise unsupported_parameter(name, f"{name} cannot be combined with best_of.")
