"""What a request is judged by before the engine sees it; runs in the worker's process."""

from dataclasses import dataclass
from typing import Any

from vllm import SamplingParams, envs
from vllm.exceptions import VLLMValidationError

from worker.processor.order import KEY, SEAL

# What vLLM 0.32's V2 runner takes of these; more ends the engine. Nothing checks it before.
V2_MOST_IDS = 1024
V2_MOST_STOP_IDS = 128
V2_INT32 = ("min_tokens", "thinking_token_budget")


@dataclass(frozen=True)
class Rules:
    """What of the running engine a request is judged by."""

    is_v2: bool = False
    has_tokenizer: bool = True
    has_prompt_logprobs: bool = True  # not with adapters on a CPU
    tokenizer: Any = None
    model_stop_ids: int = 0  # vLLM adds the model's own after the judgement


def judge(sampling_params: SamplingParams, rules: Rules) -> None:
    """Refuse at admission what would end the engine, or be ignored without a word.

    Raises VLLMValidationError.
    """
    text = (sampling_params.extra_args or {}).get(KEY)
    if text is not None and (not isinstance(text, str) or f'"seal": "{SEAL}"' not in text):
        raise VLLMValidationError(f"{KEY} is the worker's own and must not be sent.")
    if not rules.has_tokenizer:
        for name in ("stop", "bad_words"):
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
