"""Names that have lost their meaning, and what they become."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from worker import spelling
from worker.configuration.variables import read_number


@dataclass(frozen=True)
class Retired:
    """A name that has lost its meaning: what to say, and what it becomes where that is plain.

    `becomes` turns the value into values of vLLM's options; dicts for the same one are joined.
    """

    name: str
    advice: str
    becomes: Callable[[str], dict[str, Any]] = lambda _: {}


def _log_requests(text: str) -> dict[str, Any]:
    return {"ENABLE_LOG_REQUESTS": "false" if spelling.boolean(text) else "true"}


def _ray(text: str) -> dict[str, Any]:
    return {"DISTRIBUTED_EXECUTOR_BACKEND": "ray"} if spelling.boolean(text) else {}


def _task(text: str) -> dict[str, Any]:
    runner = {"RUNNER": "pooling"}
    return {
        "generate": {"RUNNER": "generate"},
        "embed": {**runner, "CONVERT": "embed"},
        "embedding": {**runner, "CONVERT": "embed"},
        "classify": {**runner, "CONVERT": "classify"},
        "score": {**runner, "CONVERT": "classify"},
        "reward": runner,
    }.get(text.strip().lower(), {})


def _rope(key: str) -> Callable[[str], dict[str, Any]]:
    def becomes(text: str) -> dict[str, Any]:
        value = spelling.parse_json(text)
        value = value if key == "rope_scaling" else {key: value}
        return {"HF_OVERRIDES": {"rope_parameters": value}} if value else {}

    return becomes


def _speculative(key: str) -> Callable[[str], dict[str, Any]]:
    def becomes(text: str) -> dict[str, Any]:
        if text.strip() == "[ngram]":
            return {"SPECULATIVE_CONFIG": {"method": "ngram"}}
        value = text if key in ("model", "quantization") else read_number(text, int)
        return {"SPECULATIVE_CONFIG": {key: value}} if value else {}

    return becomes


def _gone(advice: str, *names: str) -> tuple[Retired, ...]:
    return tuple(Retired(name, advice) for name in names)


_IN_SPECULATIVE_CONFIG = "it is part of SPECULATIVE_CONFIG now, and applied there"
_ROPE_ADVICE = (
    'it is part of HF_OVERRIDES now, and applied there as {"rope_parameters": …}, '
    "which replaces the model's own: give its rope_theta too"
)
RETIRED = {
    row.name: row
    for row in (
        Retired(
            "DISABLE_LOG_REQUESTS",
            "ENABLE_LOG_REQUESTS says the opposite now, and is set to its inverse",
            _log_requests,
        ),
        Retired("TASK", "RUNNER and CONVERT say it now, and it is applied there", _task),
        Retired("ROPE_SCALING", _ROPE_ADVICE, _rope("rope_scaling")),
        Retired("ROPE_THETA", _ROPE_ADVICE, _rope("rope_theta")),
        Retired(
            "WORKER_USE_RAY", "DISTRIBUTED_EXECUTOR_BACKEND=ray says it now, and is applied", _ray
        ),
        Retired(
            "ENGINE_USE_RAY", "DISTRIBUTED_EXECUTOR_BACKEND=ray says it now, and is applied", _ray
        ),
        *(
            Retired(name, _IN_SPECULATIVE_CONFIG, _speculative(key))
            for name, key in {
                "SPECULATIVE_MODEL": "model",
                "NUM_SPECULATIVE_TOKENS": "num_speculative_tokens",
                "NGRAM_PROMPT_LOOKUP_MAX": "prompt_lookup_max",
                "NGRAM_PROMPT_LOOKUP_MIN": "prompt_lookup_min",
                "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "draft_tensor_parallel_size",
                "SPECULATIVE_MAX_MODEL_LEN": "max_model_len",
                "SPECULATIVE_MODEL_QUANTIZATION": "quantization",
            }.items()
        ),
        *_gone(
            "set SPECULATIVE_CONFIG instead",
            "NUM_LOOKAHEAD_SLOTS",
            "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
            "SPEC_DECODING_ACCEPTANCE_METHOD",
            "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA",
            "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD",
        ),
        *_gone(
            'set STRUCTURED_OUTPUTS_CONFIG instead, such as {"backend": "xgrammar"}',
            "GUIDED_DECODING_BACKEND",
            "GUIDED_DECODING_DISABLE_FALLBACK",
            "GUIDED_DECODING_DISABLE_ANY_WHITESPACE",
            "GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES",
        ),
        *_gone("vLLM swaps no more; KV_OFFLOADING_SIZE is the nearest", "SWAP_SPACE"),
        *_gone("vLLM swaps no more and always recomputes", "PREEMPTION_MODE"),
        *_gone("vLLM finds the device itself", "DEVICE"),
        *_gone("set GPU_MEMORY_UTILIZATION or TENSOR_PARALLEL_SIZE instead", "VLLM_CPU_FRACTION"),
        *_gone(
            "set MAX_CUDAGRAPH_CAPTURE_SIZE instead; it counts sequences, not tokens",
            "MAX_CONTEXT_LEN_TO_CAPTURE",
            "MAX_SEQ_LEN_TO_CAPTURE",
        ),
        *_gone(
            "vLLM schedules by itself; MAX_NUM_BATCHED_TOKENS is the nearest",
            "SCHEDULER_DELAY_FACTOR",
            "NUM_SCHEDULER_STEPS",
            "MULTI_STEP_STREAM_OUTPUTS",
            "MAX_NUM_PARTIAL_PREFILLS",
            "MAX_LONG_PARTIAL_PREFILLS",
        ),
        *_gone(
            "set RENDERER_NUM_WORKERS instead",
            "TOKENIZER_POOL_SIZE",
            "TOKENIZER_POOL_TYPE",
            "TOKENIZER_POOL_EXTRA_CONFIG",
        ),
        *_gone("set REASONING_PARSER alone", "ENABLE_REASONING"),
        *_gone("set POOLER_CONFIG instead", "OVERRIDE_POOLER_CONFIG"),
        *_gone("set CUDAGRAPH_CAPTURE_SIZES instead", "CUDA_GRAPH_SIZES"),
        *_gone("set MM_PROCESSOR_CACHE_GB=0 instead", "DISABLE_MM_PREPROCESSOR_CACHE"),
        *_gone("set LORA_MODULES instead", "QLORA_ADAPTER_NAME_OR_PATH"),
        *_gone(
            "vLLM has dropped it, and nothing replaces it",
            "USE_V2_BLOCK_MANAGER",
            "DISABLE_ASYNC_OUTPUT_PROC",
            "ENABLE_PROMPT_ADAPTER",
            "MAX_PROMPT_ADAPTERS",
            "MAX_PROMPT_ADAPTER_TOKEN",
            "LORA_EXTRA_VOCAB_SIZE",
            "LONG_LORA_SCALING_FACTORS",
            "QUANTIZATION_PARAM_PATH",
        ),
    )
}
