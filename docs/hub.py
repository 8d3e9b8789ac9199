"""What RunPod's Hub shows of this worker: .runpod/hub.json and tests.json, from the same tables.

The format is that of RunPod's Hub publishing guide, docs.runpod.io/hub/publishing-guide.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from worker.configuration.variables import ALIASES, VARIABLES, Variable
from worker.engine import command_line
from worker.engine.command_line import Option

ROOT = Path(__file__).parent.parent
# vLLM's options that the form shows, the first ones openly. All others can be typed in by name.
OPEN = (
    *("MODEL_NAME", "HF_TOKEN", "SERVED_MODEL_NAME", "MAX_MODEL_LEN", "QUANTIZATION"),
    *("ENABLE_AUTO_TOOL_CHOICE", "TOOL_CALL_PARSER", "REASONING_PARSER"),
)
FOLDED = (
    *("MODEL_REVISION", "TOKENIZER_NAME", "TOKENIZER_REVISION", "CUSTOM_CHAT_TEMPLATE"),
    *("TRUST_REMOTE_CODE", "DTYPE", "LOAD_FORMAT", "KV_CACHE_DTYPE", "GPU_MEMORY_UTILIZATION"),
    *("MAX_NUM_SEQS", "MAX_NUM_BATCHED_TOKENS", "TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE"),
    *("ENFORCE_EAGER", "ENABLE_PREFIX_CACHING", "LORA_MODULES", "MAX_LORAS", "MAX_LORA_RANK"),
    *("LIMIT_MM_PER_PROMPT", "SPECULATIVE_CONFIG", "HF_OVERRIDES", "GENERATION_CONFIG"),
    *("ENABLE_LOG_REQUESTS", "DISABLE_LOG_STATS", "SEED"),
)
TOOLS = {"ENABLE_AUTO_TOOL_CHOICE": True}
# What people deploy now, with the parsers that the models' makers and vLLM name for them.
PRESETS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-9B": {**TOOLS, "TOOL_CALL_PARSER": "qwen3_coder", "REASONING_PARSER": "qwen3"},
    "Qwen/Qwen3-8B": {**TOOLS, "TOOL_CALL_PARSER": "hermes", "REASONING_PARSER": "qwen3"},
    "openai/gpt-oss-20b": {**TOOLS, "TOOL_CALL_PARSER": "openai"},
    "meta-llama/Llama-3.1-8B-Instruct": {
        **TOOLS,
        "TOOL_CALL_PARSER": "llama3_json",
        "MAX_MODEL_LEN": 32768,
    },
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": {
        **TOOLS,
        "TOOL_CALL_PARSER": "mistral",
        "MAX_MODEL_LEN": 32768,
    },
    "Qwen/Qwen3-Embedding-0.6B": {},
}
WORDS = {"hf": "HF", "gpu": "GPU", "kv": "KV", "openai": "OpenAI", "lora": "LoRA", "loras": "LoRAs"}
WORDS |= {"vllm": "vLLM", "mm": "multimodal", "mb": "(MB)", "ms": "(ms)", "s": "(s)"}
TEST_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
TEST_S = 300  # the first test waits for a cold start


def listing() -> str:
    """Return hub.json: the listing, the form with its variables, and presets."""
    known = command_line.by_variable()
    own = {variable.name: variable for variable in VARIABLES if not variable.http}  # a queue's form
    named = [name for name in (*OPEN, *FOLDED) if name not in own]
    shown: dict[str, Option | Variable] = {
        **{name: known[ALIASES.get(name, name)] for name in named},
        **own,
    }
    names = [*OPEN, *FOLDED, *(name for name in own if name not in OPEN)]
    return _json(
        {
            "title": "vLLM",
            "description": "Any Hugging Face language model as an OpenAI-compatible endpoint",
            "type": "serverless",
            "category": "language",
            "config": {
                "runsOn": "GPU",
                "containerDiskInGb": 150,
                "gpuCount": 1,
                "gpuIds": "ADA_80_PRO,AMPERE_80",
                "allowedCudaVersions": [_cuda()],
                "presets": [
                    {"name": name, "defaults": {"MODEL_NAME": name, **more}}
                    for name, more in PRESETS.items()
                ],
                "env": [_field(name, shown[name]) for name in names],
            },
        }
    )


def tests() -> str:
    """Return tests.json: what the Hub runs on a release before it publishes it."""
    question = {"messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    jobs = {
        "native": {**question, "sampling_params": {"max_tokens": 50}},
        "openai_chat": {
            "openai_route": "/v1/chat/completions",
            "openai_input": {**question, "max_tokens": 50},
        },
        "openai_models": {"openai_route": "/v1/models"},
    }
    return _json(
        {
            "tests": [
                {"name": name, "input": job, "timeout": TEST_S * 1000} for name, job in jobs.items()
            ],
            "config": {
                "gpuTypeId": "NVIDIA GeForce RTX 4090",
                "gpuCount": 1,
                "env": [{"key": "MODEL_NAME", "value": TEST_MODEL}],
                "allowedCudaVersions": [_cuda()],
            },
        }
    )


def _cuda() -> str:
    """Return the CUDA of the image that the Hub builds, which is the Dockerfile's default."""
    bake = (ROOT / "docker-bake.hcl").read_text()
    found = re.search(r'variable "CUDA" \{\s*default = "([\d.]+)"', bake)
    assert found
    return found[1]


def _field(name: str, of: Option | Variable) -> dict[str, Any]:
    """Return one field of the form.

    A default is given only where leaving it out would mean the same: the form sends what it shows.
    """
    field: dict[str, Any] = {
        "name": _title(name),
        **_input(of),
        "description": " ".join(of.meaning.split()),
    }
    if name == "MODEL_NAME":
        field |= {"type": "huggingface", "required": True}
        field["description"] = "A Hugging Face repository."
    if name not in OPEN:
        field["advanced"] = True
    return {"key": name, "input": field}


def _title(name: str) -> str:
    words = " ".join(WORDS.get(word, word) for word in name.lower().split("_"))
    return words[0].upper() + words[1:] if words.split()[0] != "vLLM" else words


def _input(of: Option | Variable) -> dict[str, Any]:
    default = of.default
    if of.kind == "switch" and isinstance(default, bool):
        return {"type": "boolean", "default": default, "trueValue": "true", "falseValue": "false"}
    if of.kind == "switch":
        return {"type": "string", "options": _choices(["true", "false"])}
    if isinstance(of, Option) and of.kind == "choice":
        shown = of.shown_default
        given = {"default": shown} if shown in of.choices else {}
        return {"type": "string", "options": _choices(of.choices, optional=not given), **given}
    if of.kind in ("whole number", "number") and isinstance(default, int | float):
        return {"type": "number", "default": default}
    if isinstance(of, Variable) and of.word:
        return {"type": "string", "default": str(default)}
    # A number without a default is text: an empty number field would send 0.
    return {"type": "string"}


def _choices(values: Iterable[str], *, optional: bool = True) -> list[dict[str, str]]:
    unset = [{"label": "vLLM decides", "value": ""}] if optional else []
    return [*unset, *({"label": value, "value": value} for value in values)]


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
