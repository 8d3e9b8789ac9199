"""A job's `sampling_params` become a plan: vLLM's `SamplingParams` and what goes around them.

Names and ranges are the table's (`parameters`). What is not given comes from the model's
`generation_config.json`: what vLLM reads of it as vLLM reads it, of the rest the parameters of the
chain and of the routines as transformers has them; then from DEFAULT_MAX_TOKENS and from vLLM.
As soon as a request needs the chain, everything that transformers orders runs in the chain, and
vLLM's own fields stay neutral.
"""

from collections.abc import Mapping
from typing import Any

from worker.engine import sampling_params
from worker.errors import (
    RequestError,
    deployment_parameter,
    invalid_parameter,
    no_tokenizer,
    unsupported_parameter,
)
from worker.facts import Facts
from worker.generation import inherited, table
from worker.generation.conflicts import (
    contradiction,
    refuse_beside_ranking,
    refuse_beside_routine,
    refuse_contradictions,
    warn_idle,
)
from worker.generation.ordering import CHAIN_WARPERS, chain_name, order_of
from worker.generation.plan import Beams, Guidance, Plan
from worker.generation.table import BY_NAME
from worker.sentences import nearest, shown

TRUNCATION = ("truncate_prompt_tokens", "truncation_side")
WARPERS = (
    "temperature",
    "top_h",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
)


def read(given: Mapping[str, Any], facts: Facts, *, stream: bool) -> Plan:
    """Check a job's parameters and plan what they ask for.

    Raises RequestError naming the parameter; its type is invalid_parameter,
    unsupported_parameter or deployment_parameter.
    """
    warnings: list[str] = []
    asked = _asked(given, facts, warnings)
    refuse_contradictions(asked)
    asked = _modern(asked)
    own = set(asked)  # what the job itself says, before the model's defaults
    for name, value in inherited.for_request(own, facts, warnings).items():
        asked.setdefault(name, value)
    count = next((n for n in ("num_return_sequences", "n", "best_of") if n in given), "n")
    beams, guidance = _beams(asked, facts, count), _guidance(asked)
    _limit(asked, facts, beams, count)
    samples = _samples(asked, own, facts, beams is not None, warnings)
    warn_idle(asked, own, beams, warnings)
    scores, logits = (
        _count(asked.get(name), name, facts.limits.max_scores)
        for name in ("output_scores", "output_logits")
    )
    if beams or guidance:
        refuse_beside_routine(asked, "num_beams" if beams else "guidance_scale", scores or logits)
    heal = asked.get("token_healing", False)
    order = order_of(asked, facts, samples, bool(beams or guidance), scores, logits)
    if (order or heal) and facts.why_no_chain:
        name = chain_name(asked, order)
        raise deployment_parameter(
            name,
            f"{name} needs the logits processor, which this worker runs without: "
            f"{facts.why_no_chain}",
        )
    if heal and not facts.has_tokenizer:
        raise no_tokenizer("token_healing")
    fields = _fields(asked, facts, samples, order is not None)
    ranked = asked.get("best_of")
    if ranked:
        refuse_beside_ranking(asked)
        # vLLM sums a sequence's log-probability only where some are asked for.
        fields |= {"n": ranked, "logprobs": fields.get("logprobs") or 0}
    if fields.get("n", 1) > 1 and not samples and not beams:
        raise invalid_parameter(
            count,
            f"{count}={fields['n']}: without sampling all answers would be the same. Give a "
            "temperature above 0, do_sample: true, or num_beams.",
        )
    if beams:
        fields["n"] = 1
    if not own & {"max_tokens", "max_new_tokens"}:
        longest = fields["max_tokens"] or facts.limits.default_max_tokens
        fields["max_tokens"] = max(longest, fields.get("min_tokens", 0))
    params = sampling_params.build(fields, stream=stream)
    has_length = bool(own & {"max_tokens", "max_new_tokens", "max_length"})
    return Plan(
        params=params,
        order=order,
        has_length=has_length,
        is_least_inherited=not own & {"min_new_tokens", "min_length"},
        truncate={name: asked[name] for name in TRUNCATION if name in asked},
        max_length=None if own & {"max_new_tokens", "max_tokens"} else asked.get("max_length"),
        beams=beams,
        guidance=guidance,
        heal=heal,
        max_time_s=asked.get("max_time"),
        scores=scores,
        logits=logits,
        ranked=asked.get("n", 1) if ranked else None,
        has_logprobs=asked.get("logprobs") is not None,
        token_ids=asked.get("return_token_ids", False),
        eos=tuple(asked.get("eos_token_id", ())),
        bos=asked.get("bos_token_id"),
        facts=facts,
        warnings=tuple(warnings),
    )


def _asked(given: Mapping[str, Any], facts: Facts, warnings: list[str]) -> dict[str, Any]:
    """Return the parameters under the table's names, each checked."""
    asked: dict[str, Any] = {}
    came_as: dict[str, str] = {}
    for name, value in given.items():
        parameter = BY_NAME.get(name)
        if parameter is None:
            raise unknown(name, "sampling_params")
        if value is None:
            continue
        value = parameter.read(name, value, facts)
        known = came_as.setdefault(parameter.name, name)
        if known != name and asked.get(parameter.name) != value:
            raise contradiction(known, given[known], name, given[name])
        if parameter.name == "use_cache" and value is False:
            warnings.append("use_cache=false has no effect: vLLM always caches.")
        if parameter.kind not in ("deployment", "refused"):
            asked[parameter.name] = value
    return asked


def unknown(name: str, where: str) -> RequestError:
    hint = nearest(name, table.names()) or " The page docs/parameters.md lists them all."
    return unsupported_parameter(name, f"{where} has no parameter {shown(name)}.{hint}")


def _modern(asked: dict[str, Any]) -> dict[str, Any]:
    """Put older names and both dialects' spellings of one thing under one name."""
    asked = dict(asked)
    if "num_return_sequences" in asked:
        asked["n"] = asked.pop("num_return_sequences")
    n, best_of = asked.get("n", 1), asked.get("best_of")
    if best_of is not None and best_of < n:
        raise invalid_parameter(
            "best_of", f"best_of={best_of} is less than the n={n} answers to choose from it."
        )
    if asked.pop("use_beam_search", False):
        width = asked.get("num_beams", best_of or n)
        if width < 2:
            raise invalid_parameter(
                "use_beam_search",
                "use_beam_search needs the number of beams: best_of (or n) of at least 2.",
            )
        asked["num_beams"] = width
        asked.pop("best_of", None)
    elif best_of == n or asked.get("num_beams", 1) > 1:
        asked.pop("best_of", None)
    guided = {
        name.removeprefix("guided_"): asked.pop(name)
        for name in list(asked)
        if name.startswith("guided_")
    }
    if guided.get("json_object") is False:  # as old clients say that they want none
        del guided["json_object"]
    if guided:
        asked["structured_outputs"] = guided
    return asked


def _beams(asked: Mapping[str, Any], facts: Facts, count: str) -> Beams | None:
    width, returned = asked.get("num_beams", 1), asked.get("n", 1)
    if width == 1:
        return None
    most = facts.limits.max_num_beams
    if width > most:
        raise invalid_parameter(
            "num_beams",
            f"num_beams={width} is more than the {most} that this worker allows (MAX_NUM_BEAMS).",
        )
    if returned > width:
        raise invalid_parameter(count, f"{count}={returned} is more than num_beams={width}.")
    return Beams(
        width,
        returned,
        asked.get("length_penalty", 1.0),
        asked.get("early_stopping", False),
        asked.get("do_sample", False),
    )


def _guidance(asked: Mapping[str, Any]) -> Guidance | None:
    scale = asked.get("guidance_scale", 1.0)
    negative = asked.get("negative_prompt", asked.get("negative_prompt_ids"))
    if scale == 1:
        if negative is not None:
            name = "negative_prompt" if "negative_prompt" in asked else "negative_prompt_ids"
            raise invalid_parameter(name, f"{name} needs a guidance_scale other than 1 beside it.")
        return None
    if asked.get("num_beams", 1) > 1:
        raise unsupported_parameter(
            "guidance_scale", "guidance_scale cannot be combined with num_beams."
        )
    return Guidance(scale, negative)


def _limit(asked: Mapping[str, Any], facts: Facts, beams: Beams | None, count: str) -> None:
    limits = facts.limits
    n = max(asked.get("n", 1), asked.get("best_of", 1))
    if n > limits.max_sequences and not beams:
        raise invalid_parameter(
            count,
            f"{count}={n} is more than the {limits.max_sequences:,} answers that one job may have "
            "(MAX_SEQUENCES).",
        )
    words = [
        *asked.get("bad_words_ids", ()),
        *(ids for ids, _ in asked.get("sequence_bias", ())),
    ]
    several = sum(len(ids) > 1 for ids in words)
    if several > limits.max_word_sequences:
        raise invalid_parameter(
            "bad_words_ids" if "bad_words_ids" in asked else "sequence_bias",
            f"bad_words_ids and sequence_bias have {several:,} sequences of several tokens, and "
            f"this worker allows {limits.max_word_sequences:,} (MAX_WORD_SEQUENCES): each costs "
            "time at every token.",
        )


def _samples(
    asked: dict[str, Any],
    own: set[str],
    facts: Facts,
    has_beams: bool,
    warnings: list[str],
) -> bool:
    """Say whether tokens are drawn, and settle `temperature`."""
    do_sample = asked.get("do_sample")
    temperature = asked.get("temperature", facts.defaults.get("temperature", 1.0))
    warpers = [name for name in WARPERS if name in own]
    if do_sample is None:
        if "temperature" in own or not any(name in own for name in CHAIN_WARPERS):
            do_sample = temperature > 0 and not has_beams
        else:
            do_sample = not has_beams
    if do_sample:
        asked["temperature"] = temperature or 1.0
    else:
        idle = [name for name in warpers if name != "temperature" or asked[name] not in (0, 1)]
        if idle:
            warnings.append(f"{', '.join(idle)}: no effect without sampling.")
    return bool(do_sample)


def _count(value: Any, name: str, most: int) -> int:
    if value is None or value is False:
        return 0
    if value is True:
        return most
    if value > most:
        raise invalid_parameter(
            name,
            f"{name}={value} is more than the {most} values for each token that this worker "
            "returns (MAX_SCORES).",
        )
    return int(value)


def _fields(
    asked: Mapping[str, Any], facts: Facts, samples: bool, has_order: bool
) -> dict[str, Any]:
    """Return the fields of vLLM's SamplingParams."""
    fields: dict[str, Any] = {"max_tokens": None} | dict(facts.defaults)
    fields |= {name: value for name, value in asked.items() if name in sampling_params.names()}
    if not samples:  # and what has no effect then cannot be wrong either
        fields |= {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    if "max_new_tokens" in asked:
        fields["max_tokens"] = asked["max_new_tokens"]
    if "stop_strings" in asked:
        fields |= {"stop": asked["stop_strings"], "include_stop_str_in_output": True}
    if "eos_token_id" in asked:
        ids = [*asked["eos_token_id"], *fields.get("stop_token_ids", ())]
        fields |= {"ignore_eos": True, "stop_token_ids": ids}
    if has_order:
        fields |= {
            "temperature": 1.0 if samples else 0.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
    if not facts.has_tokenizer:
        for name in ("stop", "stop_strings", "bad_words", "negative_prompt"):
            if asked.get(name):
                raise no_tokenizer(name)
        fields["detokenize"] = False
    return fields
