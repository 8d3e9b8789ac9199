"""Tiny random models, one of each kind, made in seconds with their own tokenizers and processors.

python -m family.making sliding-window mla ...
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import models

GGUF_PLUGIN = models.CACHE.parent / "plugins" / "vllm-gguf-plugin==0.0.5"  # of `make test-all`

TEXT = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "initializer_range": 0.2,  # wide, so that greedy text does not fall into one token
}
PARTS_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<image>"
    "{% elif part.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>{% else %}"
    "{{ part.text }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def random(
    folder: Path,
    architecture: str,
    config: str,
    sizes: dict[str, Any],
    dtype: str = "float32",
) -> None:
    """Save a model of transformers' own with random weights, and a byte-level BPE tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    made = getattr(transformers, config)(**sizes)
    model = getattr(transformers, architecture)(made)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    models.tokenizer(folder)
    if config == "BertConfig":
        _joins_pairs(folder / "tokenizer.json")


def _joins_pairs(file: Path) -> None:
    """Let a tokenizer put its marks around a text, and between the two of a pair."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.post_processor = TemplateProcessing(
        single="<|system|> $A <|end|>",
        pair="<|system|> $A <|end|> $B:1 <|end|>:1",
        special_tokens=[("<|system|>", 2), ("<|end|>", 1)],
    )
    tokenizer.save(str(file))


def text(architecture: str, config: str, **more: Any) -> Callable[[Path], None]:
    return partial(random, architecture=architecture, config=config, sizes=TEXT | more)


CALM = {"initializer_range": 0.05}  # for fewer bits, whose errors would grow
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 512,  # with the next the only size that vLLM's kernels know
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "head_dim": 64,
    "first_k_dense_replace": 2,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LINEAR_ATTENTION = {
    "shared_expert_intermediate_size": 64,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 128,  # vLLM's CPU kernel has none for 32
    "linear_value_head_dim": 128,
}
BERT = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}


# What sees and hears


PLACES = [
    *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *(f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)),
]


def sees(folder: Path) -> None:
    """Make an Idefics3, which cuts large pictures into parts; its processor needs Pillow alone."""
    import torch
    from transformers import Idefics3Config
    from transformers import Idefics3ForConditionalGeneration as Idefics3

    special = [*models.SPECIAL_TOKENS, *PLACES]
    models.tokenizer(folder, PARTS_TEMPLATE, special)
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        "initializer_range": 0.2,
    }
    torch.manual_seed(0)
    config = Idefics3Config(
        vision_config=vision,
        text_config=TEXT | {"model_type": "llama"},
        image_token_id=special.index("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )
    Idefics3(config).float().save_pretrained(folder)
    processor = {
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
        "do_image_splitting": True,
        "max_image_size": {"longest_edge": 56},
        "size": {"longest_edge": 112},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    prepared = {"processor_class": "Idefics3Processor", "image_seq_len": 4}
    (folder / "processor_config.json").write_text(json.dumps(prepared))


def needs_torchvision(folder: Path) -> None:
    """Make a LLaVA, which vLLM imports torchvision for."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig
    from transformers import LlavaForConditionalGeneration as Llava

    sees = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    made = LlavaConfig(
        vision_config=CLIPVisionConfig(**sees, num_attention_heads=2),
        text_config=LlamaConfig(**TEXT),
    )
    Llava(made).float().save_pretrained(folder)
    models.tokenizer(folder)


def hears(folder: Path) -> None:
    """Make a Whisper with its languages, tasks and times."""
    import torch
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperProcessor,
        WhisperTokenizer,
    )
    from transformers import WhisperForConditionalGeneration as Whisper
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    words = [*("<|endoftext|>", "<|startoftranscript|>"), *(f"<|{one}|>" for one in LANGUAGES)]
    words += [*("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>")]
    words += ["<|nospeech|>", "<|notimestamps|>", *(f"<|{i * 0.02:.2f}|>" for i in range(1501))]
    bpe = models.trained(2000, [])
    parts = json.loads(bpe.to_str())["model"]
    tokenizer = WhisperTokenizer(vocab=parts["vocab"], merges=[tuple(m) for m in parts["merges"]])
    tokenizer.add_tokens(words, special_tokens=True)
    extractor = WhisperFeatureExtractor(feature_size=80)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    end, start = tokenizer.convert_tokens_to_ids(words[:2])
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        init_std=0.2,
        decoder_start_token_id=start,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    model = Whisper(config).float()
    model.generation_config = GenerationConfig(
        decoder_start_token_id=start, eos_token_id=end, pad_token_id=end, bos_token_id=end
    )
    model.save_pretrained(folder)


def listens(folder: Path) -> None:
    """Make a Qwen2-Audio, which takes recordings in a conversation."""
    import torch
    from transformers import Qwen2AudioConfig, WhisperFeatureExtractor
    from transformers import Qwen2AudioForConditionalGeneration as Qwen2Audio

    special = [*models.SPECIAL_TOKENS, "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"]
    models.tokenizer(folder, PARTS_TEMPLATE, special)
    heard = {
        "num_mel_bins": 80,
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 128,
        "initializer_range": 0.2,
    }
    torch.manual_seed(0)
    config = Qwen2AudioConfig(
        audio_config=heard,
        text_config=TEXT | {"model_type": "qwen2"},
        audio_token_index=special.index("<|AUDIO|>"),
    )
    Qwen2Audio(config).float().save_pretrained(folder)
    _as_published(folder / "model.safetensors")
    WhisperFeatureExtractor(feature_size=80, processor_class="Qwen2AudioProcessor").save_pretrained(
        folder
    )


def _as_published(file: Path) -> None:
    """Name the weights as Qwen's own files do: transformers 5 saves one `model.` too many."""
    from safetensors.torch import load_file, save_file

    twice = "language_model.model.model."
    weights = load_file(file)
    named = {name.replace(twice, "language_model.model."): weights[name] for name in weights}
    save_file(named, file, metadata={"format": "pt"})


# Its own code

OWN_CONFIGURATION = """\
from transformers import LlamaConfig


class OwnConfig(LlamaConfig):
    model_type = "own"
"""
OWN_MODEL = """\
from torch.nn.functional import relu
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaMLP, LlamaModel

from .configuration_own import OwnConfig


class OwnMLP(LlamaMLP):
    def forward(self, x):
        return self.down_proj(relu(self.gate_proj(x)) ** 2 * self.up_proj(x))


class OwnModel(LlamaModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers:
            layer.mlp = OwnMLP(config)
        self.post_init()


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = OwnModel(config)
        self.post_init()
"""


def own_code(folder: Path) -> None:
    """Make a Llama with an activation of its own, whose code lies in the repository."""
    random(folder, "LlamaForCausalLM", "LlamaConfig", TEXT)
    (folder / "configuration_own.py").write_text(OWN_CONFIGURATION)
    (folder / "modeling_own.py").write_text(OWN_MODEL)
    config = json.loads((folder / "config.json").read_text())
    own = {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModel": "modeling_own.OwnModel",
        "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    }
    config |= {"model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": own}
    (folder / "config.json").write_text(json.dumps(config))


# Tokenizers


def sentencepiece(folder: Path) -> None:
    """Make a Llama whose tokenizer is sentencepiece's file alone."""
    import sentencepiece as spm

    random(folder, "LlamaForCausalLM", "LlamaConfig", TEXT | {"vocab_size": 2048})
    lines = "\n".join(models.pydoc_data.topics.topics.values()).splitlines()
    with (folder / "tokenizer.model").open("wb") as file:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(line for line in lines if line.strip()),
            model_writer=file,
            vocab_size=2048,
            model_type="bpe",
            byte_fallback=True,
            minloglevel=2,
        )
    (folder / "tokenizer.json").unlink()
    given = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": models.CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(given))


def ranks() -> list[bytes]:
    """Return the tokens of a byte-level BPE as bytes: each byte, and then what was merged."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {char: byte for byte, char in bytes_to_unicode().items()}
    vocab = json.loads(models.trained(2000, []).to_str())["model"]["vocab"]
    words = (bytes(map(byte_of.__getitem__, word)) for word in sorted(vocab, key=vocab.__getitem__))
    return [*(bytes([byte]) for byte in range(256)), *(word for word in words if len(word) > 1)]


PATTERN = r"\s?\p{L}+|\s?\p{N}|\s?[^\s\p{L}\p{N}]+|\s+"


def tiktoken(folder: Path) -> None:
    """Make a Llama whose tokenizer is tiktoken's file of ranks."""
    import base64

    words = ranks()
    size = {"vocab_size": len(words) + len(models.SPECIAL_TOKENS)}
    random(folder, "LlamaForCausalLM", "LlamaConfig", TEXT | size)
    lines = (f"{base64.b64encode(word).decode()} {rank}\n" for rank, word in enumerate(words))
    (folder / "tiktoken.model").write_text("".join(lines))
    (folder / "tokenizer.json").unlink()
    given = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "additional_special_tokens": models.SPECIAL_TOKENS[2:],
        "chat_template": models.CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(given))


def tekken(folder: Path) -> None:
    """Make a Mistral whose tokenizer is Mistral's tekken.json."""
    import base64

    words = ranks()
    sizes = TEXT | {"vocab_size": len(words) + 100, "eos_token_id": 2}
    random(folder, "MistralForCausalLM", "MistralConfig", sizes)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / file).unlink()
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
        for rank, word in enumerate(words)
    ]
    config = {
        "pattern": PATTERN,
        "num_vocab_tokens": len(vocab),
        "default_vocab_size": len(vocab) + 100,
        "default_num_special_tokens": 100,
        "version": "v3",
    }
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}))


# Formats


def sharded(folder: Path) -> None:
    """Make the sliding window's model again, in shards of a megabyte."""
    import transformers

    whole = path("kind-sliding-window")
    model = transformers.AutoModelForCausalLM.from_pretrained(whole)
    model.save_pretrained(folder, max_shard_size="1MB")
    models.tokenizer(folder)


def pickled(folder: Path) -> None:
    """Make the sliding window's model again, as PyTorch's own .bin."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path("kind-sliding-window"))
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    models.tokenizer(folder)


GROUP = 64
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def rounded(weight: Any, group: int, most: int) -> tuple[Any, Any]:
    """Return whole numbers of the weight's shape, and the scale of each group of a row."""
    rows = weight.reshape(weight.shape[0], -1, group)
    scales = rows.abs().amax(-1, keepdim=True) / most
    return (rows / scales).round().clamp(-most - 1, most).reshape(weight.shape), scales[..., 0]


def quantised(folder: Path, method: str) -> None:
    """Make a Llama of whole numbers, stored as `method` has it; `plain` is the same as floats."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    group, most = (0, 127) if method.startswith("int8") else (GROUP, 7)
    dtype = torch.bfloat16  # which the kernels of fewer bits want on a CPU
    model = LlamaForCausalLM(LlamaConfig(**TEXT | CALM)).to(dtype)
    weights = {}
    for name, weight in model.state_dict().items():
        if not any(f".{part}." in name for part in LINEAR):
            weights[name] = weight.clone()
            continue
        whole, scales = rounded(weight.float(), group or weight.shape[1], most)
        scales = scales.to(dtype)
        stem = name.removesuffix("weight")
        match method:
            case "plain" | "int8-plain":
                each = scales.repeat_interleave(group or weight.shape[1], 1)
                weights[name] = (whole * each).to(dtype)
            case "int8":
                weights[name] = whole.to(torch.int8)
                weights[f"{stem}weight_scale"] = scales
            case "gptq":
                weights[f"{stem}qweight"] = packed((whole.T + 8).int(), 0, range(8))
                weights[f"{stem}qzeros"] = packed(torch.full_like(scales.T, 7).int(), 1, range(8))
                weights[f"{stem}scales"] = scales.T.contiguous()
                weights[f"{stem}g_idx"] = (torch.arange(weight.shape[1]) // GROUP).int()
            case "awq":
                order = (0, 2, 4, 6, 1, 3, 5, 7)
                weights[f"{stem}qweight"] = packed((whole.T + 8).int(), 1, order)
                weights[f"{stem}qzeros"] = packed(torch.full_like(scales.T, 8).int(), 1, order)
                weights[f"{stem}scales"] = scales.T.contiguous()
    if "lm_head.weight" in weights and model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    if "plain" not in method:
        config["quantization_config"] = QUANTISED[method]
    (folder / "config.json").write_text(json.dumps(config))
    models.tokenizer(folder)


def packed(numbers: Any, axis: int, order: Any) -> Any:
    """Pack eight numbers of four bits along an axis into each int32, in an order."""
    import torch

    numbers = numbers.movedim(axis, -1).reshape(*numbers.movedim(axis, -1).shape[:-1], -1, 8)
    word = torch.zeros(numbers.shape[:-1], dtype=torch.int64)
    for place, index in enumerate(order):
        word |= numbers[..., index].long() << (4 * place)
    return ((word + 2**31) % 2**32 - 2**31).int().movedim(-1, axis).contiguous()


QUANTISED: dict[str, dict[str, Any]] = {
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
    },
    "awq": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": GROUP,
        "zero_point": True,
        "version": "gemm",
    },
    "int8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 8,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "channel",
                    "dynamic": False,
                },
                "input_activations": {
                    "num_bits": 8,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "token",
                    "dynamic": True,
                },
            }
        },
    },
}


def gguf(folder: Path) -> None:
    """Make a Llama as a GGUF file of 8 bits, beside the configuration that it was made of."""
    import gguf as library
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**TEXT)
    model = LlamaForCausalLM(config).float()
    models.tokenizer(folder)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    writer = library.GGUFWriter(folder / "tiny-Q8_0.gguf", "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = sorted(vocab["vocab"], key=vocab["vocab"].__getitem__)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in models.SPECIAL_TOKENS else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in vocab["merges"]])
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    names = library.get_tensor_name_map(library.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        stem, _, end = name.rpartition(".")
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if "q_proj" in name or "k_proj" in name:  # llama.cpp turns neighbours, not halves
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            halves = weight.reshape(heads, 2, -1, weight.shape[1])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        rows, kind = weight.contiguous().numpy(), library.GGMLQuantizationType.F32
        if rows.ndim == 2:
            kind = library.GGMLQuantizationType.Q8_0
            rows = library.quantize(rows, kind)
        writer.add_tensor(f"{names.get_name(stem)}.{end}", rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


MAKERS: dict[str, Callable[[Path], None]] = {
    "kind-sliding-window": text("MistralForCausalLM", "MistralConfig", sliding_window=24),
    "kind-mla": partial(
        random,
        architecture="DeepseekV3ForCausalLM",
        config="DeepseekV3Config",
        sizes=TEXT | MLA | CALM,
        dtype="bfloat16",
    ),
    "kind-moe": text("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **EXPERTS),
    "kind-hybrid": text(
        "Lfm2ForCausalLM",
        "Lfm2Config",
        layer_types=["conv", "full_attention"],
        block_ff_dim=256,
        block_dim=128,
        conv_dim=128,
    ),
    "kind-hybrid-mamba": text(
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        layer_types=["mamba", "attention"],
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=256,
        mamba_n_heads=8,
        mamba_d_head=32,
        mamba_d_state=32,
    ),
    "kind-hybrid-linear": partial(
        random,
        architecture="Qwen3NextForCausalLM",
        config="Qwen3NextConfig",
        sizes=TEXT | EXPERTS | LINEAR_ATTENTION | CALM,
        dtype="bfloat16",
    ),
    "kind-decoder-embedding": text("Qwen3ForCausalLM", "Qwen3Config"),
    "kind-cross-encoder": partial(
        random,
        architecture="BertForSequenceClassification",
        config="BertConfig",
        sizes=BERT | {"num_labels": 1},
    ),
    "kind-classifier": partial(
        random,
        architecture="BertForSequenceClassification",
        config="BertConfig",
        sizes=BERT | {"id2label": {0: "bad", 1: "fair", 2: "good"}},
    ),
    "kind-token-classifier": partial(
        random,
        architecture="BertForTokenClassification",
        config="BertConfig",
        sizes=BERT | {"num_labels": 3},
    ),
    "kind-reward": text("Qwen2ForSequenceClassification", "Qwen2Config", num_labels=1),
    "kind-transformers-only": text("Olmo2ForCausalLM", "Olmo2Config"),
    "kind-own-code": own_code,
    "kind-sees": sees,
    "kind-needs-torchvision": needs_torchvision,
    "kind-hears": hears,
    "kind-listens": listens,
    "kind-sentencepiece": sentencepiece,
    "kind-tiktoken": tiktoken,
    "kind-tekken": tekken,
    "kind-sharded": sharded,
    "kind-pickled": pickled,
    "kind-gguf": gguf,
    "kind-gptq": partial(quantised, method="gptq"),
    "kind-awq": partial(quantised, method="awq"),
    "kind-four-bits-plain": partial(quantised, method="plain"),
    "kind-int8": partial(quantised, method="int8"),
    "kind-int8-plain": partial(quantised, method="int8-plain"),
}


def path(name: str) -> Path:
    """Return the folder of a model, making it first where it is missing."""
    return models.path(name, MAKERS)


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")
    for name in sys.argv[1:] or MAKERS:
        print(path(name))
