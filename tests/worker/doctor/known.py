"""Well-known models' configurations, and what one token of each takes in the cache.

Every value has a public source. Those of LLAMA and QWEN are the models' own config.json as
https://github.com/citsjtu2020/LLM-Prof/blob/8434c8d/sglang/Model_Config.md prints them. DEFAULTS
are those of transformers 5.19's classes, which follow the checkpoint that each class names and are
not claimed to be its.
Bytes a token are by hand: 2 (key and value) x layers x key-value heads x head size x 2 (bfloat16);
for MLA layers x (latent + rope) x 2.
"""

from typing import Any

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
# model_type: (architecture, more than the defaults, bytes a token of the layers that grow)
DEFAULTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "mixtral": ("MixtralForCausalLM", {}, 2 * 32 * 8 * 128 * 2),
    "mistral": ("MistralForCausalLM", {}, 0),  # every layer looks back 4,096 tokens
    "phi3": ("Phi3ForCausalLM", {}, 2 * 32 * 32 * 96 * 2),
    "gemma2": ("Gemma2ForCausalLM", {}, 2 * 13 * 4 * 256 * 2),  # every second layer
    "gpt2": ("GPT2LMHeadModel", {}, 2 * 12 * 12 * 64 * 2),
    "gpt_oss": ("GptOssForCausalLM", {}, 2 * 18 * 8 * 64 * 2),  # every second layer
    "jamba": ("JambaForCausalLM", {}, 2 * 4 * 8 * 128 * 2),  # 4 of 32 layers
    "qwen3_next": ("Qwen3NextForCausalLM", {}, 2 * 12 * 2 * 256 * 2),  # 12 of 48 layers
    "falcon_h1": ("FalconH1ForCausalLM", {}, 2 * 32 * 8 * 128 * 2),
    "mamba2": ("Mamba2ForCausalLM", {}, 0),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {"topk_method": "noaux_tc"}, 61 * (512 + 64) * 2),
}
