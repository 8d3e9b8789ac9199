"""What every request is judged by before the engine sees it, whatever route it came by."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from vllm import SamplingParams, envs
from vllm.exceptions import VLLMValidationError

from worker.facts import Limits
from worker.processor.order import KEY, SEAL

# What vLLM 0.32's V2 runner takes of these; more ends the engine. Nothing checks it before.
V2_MOST_IDS = 1024
V2_MOST_STOP_IDS = 128
V2_INT32 = ("min_tokens", "thinking_token_budget")
TEXTS = ("stop", "bad_words")
IDS = ("stop_token_ids", "logit_bias", "allowed_token_ids", "logprob_token_ids")


@dataclass(frozen=True)
class Rules:
    """What of the running engine a request is judged by."""

    is_v2: bool = False
    has_tokenizer: bool = True
    has_prompt_logprobs: bool = True  # not with adapters on a CPU
    tokenizer: Any = None
    vocab_size: int = 2**31
    model_stop_ids: int = 0  # vLLM adds the model's own after the judgement
    limits: Limits = field(default_factory=Limits)


def install(client: Any, rules: Rules) -> None:
    """Judge each request of vLLM's client where vLLM 0.32 itself begins to, for every route."""
    processor = client.input_processor
    validate = processor._validate_params

    def judged(params: Any, *others: Any) -> Any:
        if isinstance(params, SamplingParams):
            judge(params, rules)
        return validate(params, *others)

    def judge_token_ids(ids: Sequence[int], *, parameter: str | None = None) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < rules.vocab_size:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise VLLMValidationError(
                f"Token id {wrong} is out of vocabulary: this model's are 0 to "
                f"{rules.vocab_size - 1:,}.",
                parameter=parameter,
            )

    processor._validate_params = judged
    if not rules.has_tokenizer:  # else vLLM judges them by the tokenizer too
        client.renderer.validate_token_ids = judge_token_ids


def judge(sampling_params: SamplingParams, rules: Rules) -> None:
    """Refuse what would end the engine, hold up others, or be ignored without a word.

    Raises VLLMValidationError.
    """
    _judge_amounts(sampling_params, rules.limits)
    text = (sampling_params.extra_args or {}).get(KEY)
    if text is not None and (not isinstance(text, str) or f'"seal": "{SEAL}"' not in text):
        raise VLLMValidationError(f"{KEY} is the worker's own and must not be sent.")
    if not rules.has_tokenizer:
        for name in TEXTS:
            if getattr(sampling_params, name):
                raise VLLMValidationError(
                    f"{name} needs a tokenizer, and this worker runs without one "
                    "(SKIP_TOKENIZER_INIT).",
                    parameter=name,
                )
    if sampling_params.prompt_logprobs is not None and not rules.has_prompt_logprobs:
        # vLLM 0.32 applies the adapters of the batch's rows to the prompt's, and dies of it.
        raise VLLMValidationError(
            "prompt_logprobs cannot be had from a worker with adapters (ENABLE_LORA) on a CPU.",
            parameter="prompt_logprobs",
        )
    if not rules.is_v2:
        return
    for name in ("logit_bias", "allowed_token_ids"):
        given = len(getattr(sampling_params, name) or ())
        if given > V2_MOST_IDS:
            raise VLLMValidationError(
                f"{name} has {given:,} entries, and vLLM takes {V2_MOST_IDS:,}.",
                parameter=name,
            )
    stops = len(sampling_params.all_stop_token_ids) + rules.model_stop_ids
    if sampling_params.min_tokens and stops > V2_MOST_STOP_IDS:
        raise VLLMValidationError(
            f"min_tokens goes with {V2_MOST_STOP_IDS} stop ids at most, and there are {stops}.",
            parameter="min_tokens",
        )
    words = sampling_params.bad_words or ()
    # Each comes once more with a space before it, if that takes as many tokens.
    tokens = 2 * sum(len(rules.tokenizer.encode(w, add_special_tokens=False)) for w in words)
    if tokens > envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS:
        raise VLLMValidationError(
            f"bad_words may take {tokens:,} tokens together, and vLLM takes "
            f"{envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS:,} (VLLM_MAX_BAD_WORDS_TOTAL_TOKENS).",
            parameter="bad_words",
        )
    for name in V2_INT32:
        value = getattr(sampling_params, name) or 0
        if value >= 2**31:
            raise VLLMValidationError(
                f"{name}={value} must be less than 2,147,483,648.", parameter=name
            )


def _judge_amounts(params: SamplingParams, limits: Limits) -> None:
    _most("n", params.n, "answers", limits, "max_sequences")
    for name in TEXTS:
        texts = getattr(params, name) or []
        _most(name, len(texts), "texts", limits, "max_stop_strings")
        _most(name, sum(map(len, texts)), "characters together", limits, "max_stop_characters")
    for name in IDS:
        _most(name, len(getattr(params, name) or ()), "token ids", limits, "max_token_ids")
    if params.structured_outputs is not None:
        _judge_structured(params.structured_outputs, limits)


def _judge_structured(asked: Any, limits: Limits) -> None:
    """Bound what the engine compiles, which nothing can stop, one after another."""
    name = "structured_outputs"
    choices = asked.choice if isinstance(asked.choice, list) else []
    _most(name, len(choices), "choices", limits, "max_choices")
    kinds = (asked.json, asked.regex, asked.choice, asked.grammar, asked.structural_tag)
    sizes = (len(msgspec.json.encode(kind)) for kind in kinds if kind is not None)
    _most(name, sum(sizes), "bytes", limits, "max_grammar_bytes")
    for kind in (asked.json, asked.structural_tag):
        try:
            schema = json.loads(kind) if isinstance(kind, str) else kind
        except (ValueError, RecursionError):  # which vLLM puts into words
            continue
        optional, lengths = _costs(schema)
        _most(name, optional, "optional properties", limits, "max_optional_properties")
        _most(name, lengths, "different lengths of strings", limits, "max_string_lengths")


def _costs(schema: Any) -> tuple[int, int]:
    """Return how many properties may be left out, and how many bounds strings have.

    The time to compile grows with the square of the first, and by up to seconds with each bound.
    """
    optional, bounds, waiting = 0, set(), [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            properties, required = node.get("properties"), node.get("required")
            if isinstance(properties, dict):
                needed = len(required) if isinstance(required, list) else 0
                optional += max(len(properties) - needed, 0)
            bounds.add((str(node.get("minLength")), str(node.get("maxLength"))))
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return optional, len(bounds - {("None", "None")})


def _most(name: str, given: int, what: str, limits: Limits, limit: str) -> None:
    most = getattr(limits, limit)
    if given > most:
        raise VLLMValidationError(
            f"{name} asks for {given:,} {what}, and this worker takes {most:,} ({limit.upper()}).",
            parameter=name,
        )
