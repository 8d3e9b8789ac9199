"""A job's `sampling_params` become a plan: vLLM's `SamplingParams` and what goes around them.

Names and ranges are the table's (`parameters`). What is not given comes from the model's
`generation_config.json`: what vLLM reads of it as vLLM reads it, of the rest the parameters of the
chain and of the routines as transformers has them; then from DEFAULT_MAX_TOKENS and from vLLM.
As soon as a request needs the chain, everything that transformers orders runs in the chain, and
vLLM's own fields stay neutral.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from worker import parameters
from worker.engine import sampling_params
from worker.errors import (
    RequestError,
    deployment_parameter,
    invalid_parameter,
    no_tokenizer,
    unsupported_parameter,
)
from worker.facts import Deployment
from worker.parameters import BY_NAME, NEUTRAL
from worker.sentences import nearest, shown

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

    from worker.chain import Order

# Given in both dialects with two values, each of these pairs contradicts itself.
SAME_THING = (
    ("max_tokens", "max_new_tokens"),
    ("max_tokens", "max_length"),
    ("min_tokens", "min_new_tokens"),
    ("min_tokens", "min_length"),
    ("n", "num_return_sequences"),
    ("stop", "stop_strings"),
)
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
CHAIN_WARPERS = ("top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
# vLLM's fields that mean nothing to requests of one token each, which the routines send.
NOT_IN_ROUTINES = (
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "logprobs",
    "logprob_token_ids",
    "prompt_logprobs",
    "prompt_logprob_token_ids",
    "structured_outputs",
    "repetition_detection",
    "thinking_token_budget",
    "bad_words",
)
# Raises vLLM's lower bound, below which it changes a temperature without a word.
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 2.0


@dataclass(frozen=True)
class Beams:
    """A beam search: `width` beams, of which the `returned` best come back."""

    width: int
    returned: int
    length_penalty: float
    early_stopping: bool | str
    do_sample: bool


@dataclass(frozen=True)
class Guidance:
    """Classifier-free guidance; `negative` is a text, token ids, or the prompt's last token."""

    scale: float
    negative: str | list[int] | None


@dataclass(frozen=True)
class Plan:
    """What a native job asks of the engine, but for what depends on the prompt's length.

    `params` is for one request; `order` is None where vLLM's own fields do it all. `scores` and
    `logits` are the values of each token that the reply holds. `ranked` answers remain of best_of.
    `eos` is what the job itself says. `is_least_inherited`: not the job but the
    model asks for a least length, which then gives way to the job's.
    """

    params: "SamplingParams"
    order: "Order | None"
    has_length: bool
    is_least_inherited: bool
    max_length: int | None
    beams: Beams | None
    guidance: Guidance | None
    heal: bool
    max_time_s: float | None
    scores: int
    logits: int
    ranked: int | None
    token_ids: bool
    eos: tuple[int, ...]
    bos: int | None
    deployment: Deployment
    warnings: tuple[str, ...]

    @property
    def sequences(self) -> int:
        """How many answers there are for each prompt."""
        if self.beams:
            return self.beams.returned
        return self.ranked or int(self.params.n)

    @property
    def is_dear(self) -> bool:
        """Whether a watermark is asked for whose every token costs thousands of operations."""
        watermark = (self.order.fields if self.order else {}).get("watermarking_config") or {}
        return "keys" in watermark or watermark.get("seeding_scheme") == "selfhash"

    def max_tokens(self, prompt_tokens: int) -> int:
        """Return how many tokens an answer to a prompt of this length may have.

        Raises RequestError where max_length or min_length leaves no room.
        """
        wanted = self.params.max_tokens
        assert wanted is not None
        if self.max_length is not None:
            if prompt_tokens >= self.max_length:
                raise invalid_parameter(
                    "max_length",
                    f"max_length={self.max_length} counts the prompt, which has {prompt_tokens} "
                    "tokens already. max_new_tokens counts the answer alone.",
                )
            wanted = self.max_length - prompt_tokens
        fields = self.order.fields if self.order else {}
        least = fields.get("min_new_tokens") or fields.get("min_length", 0) - prompt_tokens
        if least > wanted:
            if self.has_length and not self.is_least_inherited:
                name = "min_new_tokens" if fields.get("min_new_tokens") else "min_length"
                raise invalid_parameter(
                    name,
                    f"{name}={fields[name]} asks for more tokens than the {wanted} that the "
                    "answer may have.",
                )
            wanted = wanted if self.has_length else least
        return int(min(wanted, self.deployment.max_model_len - prompt_tokens))


def read(given: Mapping[str, Any], deployment: Deployment, *, stream: bool) -> Plan:
    """Check a job's parameters and plan what they ask for.

    Raises RequestError naming the parameter; its type is invalid_parameter,
    unsupported_parameter or deployment_parameter.
    """
    from vllm.sampling_params import RequestOutputKind

    warnings: list[str] = []
    asked = _asked(given, deployment, warnings)
    _refuse_contradictions(asked)
    asked = _modern(asked)
    own = set(asked)  # what the job itself says, before the model's defaults
    for name, value in _model_defaults(own, deployment, warnings).items():
        asked.setdefault(name, value)
    count = next((n for n in ("num_return_sequences", "n", "best_of") if n in given), "n")
    beams, guidance = _beams(asked, deployment, count), _guidance(asked)
    _limit(asked, deployment, beams, count)
    samples = _samples(asked, own, deployment, beams is not None, warnings)
    _warn_idle(asked, own, beams, warnings)
    scores, logits = (
        _count(asked.get(name), name, deployment.limits.max_scores)
        for name in ("output_scores", "output_logits")
    )
    if beams or guidance:
        _refuse_beside_routine(asked, "num_beams" if beams else "guidance_scale", scores or logits)
    heal = asked.get("token_healing", False)
    order = _order(asked, deployment, samples, bool(beams or guidance), scores, logits)
    if (order or heal) and deployment.no_chain:
        name = _chain_name(asked, order)
        raise deployment_parameter(
            name,
            f"{name} needs the logits processor, which this worker runs without: "
            f"{deployment.no_chain}",
        )
    if heal and not deployment.has_tokenizer:
        raise no_tokenizer("token_healing")
    fields = _fields(asked, deployment, samples, order is not None)
    ranked = asked.get("best_of")
    if ranked:
        _refuse_beside_ranking(asked)
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
        longest = fields["max_tokens"] or deployment.default_max_tokens
        fields["max_tokens"] = max(longest, fields.get("min_tokens", 0))
    params = sampling_params.build(fields)
    params.output_kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    has_length = bool(own & {"max_tokens", "max_new_tokens", "max_length"})
    return Plan(
        params=params,
        order=order,
        has_length=has_length,
        is_least_inherited=not own & {"min_new_tokens", "min_length"},
        max_length=None if own & {"max_new_tokens", "max_tokens"} else asked.get("max_length"),
        beams=beams,
        guidance=guidance,
        heal=heal,
        max_time_s=asked.get("max_time"),
        scores=scores,
        logits=logits,
        ranked=asked.get("n", 1) if ranked else None,
        token_ids=asked.get("return_token_ids", False),
        eos=tuple(asked.get("eos_token_id", ())),
        bos=asked.get("bos_token_id"),
        deployment=deployment,
        warnings=tuple(warnings),
    )


def _model_defaults(
    own: set[str], deployment: Deployment, warnings: list[str]
) -> Mapping[str, Any]:
    """Return what the model's own configuration adds to what the job says itself."""
    inherited = dict(deployment.inherited)
    if own & {"min_new_tokens", "min_tokens", "min_length"}:
        inherited.pop("min_length", None)
    if "min_tokens" in own:
        inherited.pop("min_new_tokens", None)
    if inherited and deployment.no_chain:
        warnings.append(
            f"{', '.join(inherited)} of the model's generation_config.json: no effect, since the "
            "logits processor does not run here."
        )
        return {}
    return inherited


# What a body of these routes may say of the same things.
BODY_ROUTES = ("/v1/chat/completions", "/v1/completions")
SHARED = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "n", "min_tokens"),
    *("stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output"),
)
# Of vLLM's own, what these routes have as a field of the same meaning.
OF_THE_BODY = (
    *("presence_penalty", "frequency_penalty", "seed", "logit_bias", "allowed_token_ids"),
    *("bad_words", "structured_outputs", "skip_special_tokens", "spaces_between_special_tokens"),
)


def read_body(
    body: Mapping[str, Any], path: str, deployment: Deployment
) -> tuple[dict[str, Any], Plan]:
    """Turn `generation_parameters` in an OpenAI body into fields that vLLM's route knows.

    Returns the new body, without what carries the chain's order, and the plan. Raises RequestError
    for a route that has no such field, for a name that needs a routine, and for a contradiction
    between the two ways to say a thing.
    """
    given = body["generation_parameters"]
    given = {} if given is None else given
    if path not in BODY_ROUTES:
        raise _not_here(f"{path} takes no generation_parameters; {' and '.join(BODY_ROUTES)} do.")
    if not isinstance(given, dict):
        raise _not_here(f"generation_parameters={shown(given)} must be an object.")
    for name in given:
        parameter = BY_NAME.get(name)
        if parameter is None:
            raise _unknown(name, "generation_parameters")
        if (
            parameter.kind in ("routine", "output")
            or name in ("max_length", "bos_token_id")
            or (
                name in sampling_params.names()
                and name not in (*SHARED, *OF_THE_BODY, "max_tokens")
            )
        ):
            raise _not_here(f"{name} cannot be one of the generation_parameters of {path}.", name)
    if body.get("use_beam_search"):
        raise _not_here("use_beam_search on this route is vLLM's own, which takes no chain.")
    said = {name: body[name] for name in SHARED if body.get(name) is not None}
    longest = [body.get(name) for name in ("max_completion_tokens", "max_tokens")]
    if longest != [None, None]:
        said["max_tokens"] = longest[1] if longest[0] is None else longest[0]
    given = {name: value for name, value in given.items() if value is not None}
    there = {name: body[name] for name in OF_THE_BODY if body.get(name) is not None} | said
    for name, value in given.items():
        known = "structured_outputs" if name.startswith("guided_") else name
        if there.get(known, value) != value:
            raise _contradiction(known, there[known], f"generation_parameters.{name}", value)
    # A routine that the model's configuration names has no place on these routes.
    inherited = {
        name: value for name, value in deployment.inherited.items() if BY_NAME[name].kind == "chain"
    }
    plan = read(
        said | given, replace(deployment, inherited=inherited), stream=bool(body.get("stream"))
    )
    if body.get("vllm_xargs") is not None and plan.order is not None:
        raise _not_here("vllm_xargs cannot be combined with these generation_parameters.")
    fields = {name: getattr(plan.params, name) for name in SHARED}
    if plan.has_length:
        fields["max_tokens"] = plan.params.max_tokens
    guided = {
        name.removeprefix("guided_"): value
        for name, value in given.items()
        if name.startswith("guided_") and value is not False
    }
    if guided:
        fields["structured_outputs"] = guided
    fields |= {
        name: value if name == "structured_outputs" else getattr(plan.params, name)
        for name, value in given.items()
        if name in OF_THE_BODY
    }
    gone = ("generation_parameters", "max_completion_tokens" if plan.has_length else "")
    return {name: value for name, value in body.items() if name not in gone} | fields, plan


def _not_here(sentence: str, name: str = "generation_parameters") -> RequestError:
    return unsupported_parameter(name, sentence)


def _asked(given: Mapping[str, Any], deployment: Deployment, warnings: list[str]) -> dict[str, Any]:
    """Return the parameters under the table's names, each checked."""
    asked: dict[str, Any] = {}
    came_as: dict[str, str] = {}
    for name, value in given.items():
        parameter = BY_NAME.get(name)
        if parameter is None:
            raise _unknown(name, "sampling_params")
        if value is None:
            continue
        value = parameter.read(name, value, deployment)
        known = came_as.setdefault(parameter.name, name)
        if known != name and asked.get(parameter.name) != value:
            raise _contradiction(known, given[known], name, given[name])
        if parameter.name == "use_cache" and value is False:
            warnings.append("use_cache=false has no effect: vLLM always caches.")
        if parameter.kind not in ("deployment", "refused"):
            asked[parameter.name] = value
    return asked


def _unknown(name: str, where: str) -> RequestError:
    hint = nearest(name, parameters.names()) or " The page docs/parameters.md lists them all."
    return unsupported_parameter(name, f"{where} has no parameter {shown(name)}.{hint}")


def _contradiction(one: str, value: Any, other: str, other_value: Any) -> RequestError:
    return invalid_parameter(
        other,
        f"{one}={shown(value)} and {other}={shown(other_value)} contradict each other: give one "
        "of them.",
    )


def _refuse_contradictions(asked: Mapping[str, Any]) -> None:
    for one, other in SAME_THING:
        # max_length and min_length count the prompt, so the same number is another length.
        differ = asked.get(one) != asked.get(other) or other.endswith("_length")
        if one in asked and other in asked and differ:
            raise _contradiction(one, asked[one], other, asked[other])
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
            raise _contradiction(one, value, other, asked[other])
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
        if not loses and asked.get(low, 0) > asked.get(high, parameters.MOST):
            raise _contradiction(low, asked[low], high, asked[high])
    if "exponential_decay_length_penalty" in asked and asked.get("ignore_eos"):
        raise _contradiction(
            "ignore_eos",
            True,
            "exponential_decay_length_penalty",
            asked["exponential_decay_length_penalty"],
        )


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


def _beams(asked: Mapping[str, Any], deployment: Deployment, count: str) -> Beams | None:
    width, returned = asked.get("num_beams", 1), asked.get("n", 1)
    if width == 1:
        return None
    most = deployment.limits.max_num_beams
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


def _limit(
    asked: Mapping[str, Any], deployment: Deployment, beams: Beams | None, count: str
) -> None:
    limits = deployment.limits
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
    deployment: Deployment,
    has_beams: bool,
    warnings: list[str],
) -> bool:
    """Say whether tokens are drawn, and settle `temperature`."""
    do_sample = asked.get("do_sample")
    temperature = asked.get("temperature", deployment.defaults.get("temperature", 1.0))
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


def _warn_idle(
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


def _refuse_beside_routine(asked: Mapping[str, Any], routine: str, values: int) -> None:
    names = [
        name
        for name in (*NOT_IN_ROUTINES, "best_of")
        if asked.get(name) or (name.endswith("logprobs") and asked.get(name) == 0)
    ]
    if values and routine == "num_beams":
        names += [name for name in ("output_scores", "output_logits") if asked.get(name)]
    if names:
        raise unsupported_parameter(names[0], f"{names[0]} cannot be combined with {routine}.")


def _refuse_beside_ranking(asked: Mapping[str, Any]) -> None:
    for name in ("max_time", "output_scores", "output_logits"):
        if asked.get(name):
            raise unsupported_parameter(name, f"{name} cannot be combined with best_of.")


def _order(
    asked: Mapping[str, Any],
    deployment: Deployment,
    samples: bool,
    is_routine: bool,
    scores: int,
    logits: int,
) -> "Order | None":
    """Return what the chain has to do, or None where vLLM's own fields are enough."""
    fields = {
        parameter.name: asked[parameter.name]
        for parameter in parameters.PARAMETERS
        if parameter.kind == "chain"
        and parameter.name in asked
        and (samples or parameter.name not in CHAIN_WARPERS)
        and asked[parameter.name] != NEUTRAL.get(parameter.name)
    }
    if not (
        fields or is_routine or scores or logits or (samples and _beyond_vllm(asked, deployment))
    ):
        return None
    from worker.chain import Order

    defaults = deployment.defaults
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
    eos = asked.get("eos_token_id", deployment.eos)
    if asked.get("ignore_eos"):
        eos = ()
    if not eos and fields.pop("exponential_decay_length_penalty", None) and not deployment.eos:
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


def _beyond_vllm(asked: Mapping[str, Any], deployment: Deployment) -> bool:
    """Say whether vLLM would refuse or change what transformers understands."""
    temperature = asked["temperature"]
    top_p, min_p = (asked.get(name, deployment.defaults.get(name)) for name in ("top_p", "min_p"))
    in_another_order = top_p is not None and top_p < 1 and min_p
    return bool(
        temperature > MOST_TEMPERATURE
        or temperature < LEAST_TEMPERATURE
        or top_p == 0
        # Where the model itself says both, it means what vLLM makes of them.
        or (in_another_order and ("top_p" in asked or "min_p" in asked))
    )


def _chain_name(asked: Mapping[str, Any], order: "Order | None") -> str:
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


def _fields(
    asked: Mapping[str, Any], deployment: Deployment, samples: bool, has_order: bool
) -> dict[str, Any]:
    """Return the fields of vLLM's SamplingParams."""
    fields: dict[str, Any] = {"max_tokens": None} | dict(deployment.defaults)
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
    if not deployment.has_tokenizer:
        for name in ("stop", "stop_strings", "bad_words", "negative_prompt"):
            if asked.get(name):
                raise no_tokenizer(name)
        fields["detokenize"] = False
    return fields
