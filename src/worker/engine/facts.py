"""vLLM's configuration becomes the facts that requests are judged by."""

from typing import Any

from worker.facts import Facts


def facts_of(config: Any, **others: Any) -> Facts:
    """Read the facts of vLLM's VllmConfig; `others` are the fields that it does not know."""
    model = config.model_config
    eos = _generation_config(model).get(
        "eos_token_id", getattr(model.hf_text_config, "eos_token_id", None)
    )
    defaults = model.get_diff_sampling_param()
    speculative = config.speculative_config
    return Facts(
        vocab_size=model.get_vocab_size(),
        max_model_len=model.max_model_len,
        # As vLLM 0.32's routes read it (`override_max_tokens`).
        most_tokens=defaults.get("max_tokens")
        if model.generation_config not in ("auto", "vllm")
        else model.override_generation_config.get("max_new_tokens"),
        eos=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        has_tokenizer=not model.skip_tokenizer_init,
        parses_reasoning=bool(config.structured_outputs_config.reasoning_parser),
        engine_options={
            "enforce_eager": model.enforce_eager,
            "kv_cache_dtype": config.cache_config.cache_dtype,
            "speculative_config": speculative
            and {
                name: getattr(speculative, name, None)
                for name in ("method", "num_speculative_tokens", "prompt_lookup_max")
            },
        },
        defaults=defaults,
        **others,
    )


def room(config: Any) -> int:
    """Return how many requests run at once when each fills a quarter of the context."""
    scheduler, cache = config.scheduler_config, config.cache_config
    tokens = (cache.num_gpu_blocks or 0) * cache.block_size  # of all data-parallel engines
    engines = config.parallel_config.data_parallel_size
    fitting = 4 * tokens // config.model_config.max_model_len
    return max(1, int(min(scheduler.max_num_seqs * engines, fitting)))


def model_defaults(config: Any) -> dict[str, Any]:
    """Return the generation parameters of the model's own that the deployment lets count."""
    model = config.model_config
    if model.generation_config == "vllm":
        return dict(model.override_generation_config)
    return _generation_config(model)


def _generation_config(model: Any) -> dict[str, Any]:
    return {**model.try_get_generation_config(), **model.override_generation_config}
