"""Which files of a hub repository a model needs."""

import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from worker.errors import StartError

Kind = Literal["model", "draft", "tokenizer", "adapter", "code"]
REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
GGUF = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+):(?P<quant>[\w+-]+)")
# What no engine reads: other frameworks' weights, what training left, pictures, and copies of the
# weights for other programs, which lie in folders of well-known names.
UNNEEDED = [
    *(
        "*.h5",
        "*.msgpack",
        "*.onnx",
        "*.onnx_data",
        "*.ot",
        "*.tflite",
        "*.mlmodel",
        "*.mlpackage/*",
    ),
    *("*.pth", "*.ckpt", "*.ckpt.*", "*.nemo", "*.llamafile", "*.zip", "*.tar", "*.tar.*", "*.tgz"),
    *("*training_args.bin", "*optimizer.bin", "*optimizer.pt", "*scheduler.pt", "*scaler.pt"),
    *("*.png", "*.jpg", "*.jpeg", "*.gif", "*.webp", "*.svg", "*.mp3", "*.mp4", "*.wav", "*.pdf"),
    *("*.parquet", "*.arrow", "*.ipynb", ".git*", "*/.git*", "README.md"),
    *("original/*", "metal/*", "onnx/*", "openvino/*", "coreml/*", "runs/*", "checkpoint-*/*"),
]
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
# Mistral's own layout beside Hugging Face's: LOAD_FORMAT=auto of vLLM 0.32 takes it where it is.
CONSOLIDATED = "consolidated*.safetensors"
FORMATS = {
    "auto": (CONSOLIDATED, "*.safetensors", "*.bin", "*.pt"),
    "bitsandbytes": ("*.safetensors", "*.bin", "*.pt"),
    "hf": ("*.safetensors", "*.bin", "*.pt"),
    "mistral": (CONSOLIDATED,),
    "npcache": ("*.bin",),
    "pt": ("*.pt",),
    **dict.fromkeys(
        ("safetensors", "fastsafetensors", "instanttensor", "runai_streamer"), ("*.safetensors",)
    ),
}


def tokenizer_of(
    model: str, revision: str | None, name: str | None, its_revision: str | None
) -> tuple[str, str | None] | None:
    """Return the tokenizer's repository and revision; None where it is what the model brings.

    As in vLLM each half has a default of its own: the model's name, and for a tokenizer of that
    name the model's revision. A revision means nothing in another repository.
    """
    gguf = GGUF.fullmatch(model)
    repository = gguf["repository"] if gguf else model
    if not name and not its_revision:
        return None
    name = name or repository
    return name, its_revision or (revision if name == repository else None)


def baked_tokenizer(baked: Mapping[str, str]) -> tuple[str, str | None] | None:
    names = ("MODEL_REVISION", "TOKENIZER_NAME", "TOKENIZER_REVISION")
    return tokenizer_of(baked["MODEL_NAME"], *map(baked.get, names))


def formats(name: str, load_format: str = "auto") -> tuple[str, ...] | None:
    """Return the patterns of weights that LOAD_FORMAT reads, the best first; None if unknown."""
    if gguf := GGUF.fullmatch(name):
        quants = (gguf["quant"].upper(), gguf["quant"].lower())
        return tuple(f"*[-.]{quant}{end}.gguf" for quant in quants for end in ("", "-*"))
    return FORMATS.get(load_format)


def choose(files: Iterable[str], patterns: Iterable[str] = FORMATS["auto"]) -> list[str]:
    """Return the files of a repository that are needed: all but what is known not to be.

    Of the weights each folder keeps one format, the first of `patterns` that it really has
    weights in: a `.json` of that name is none.
    """
    kept = [file for file in files if not any(fnmatch(file, pattern) for pattern in UNNEEDED)]
    patterns = tuple(patterns)
    best = {
        folder: next((p for p in patterns if any(fnmatch(_name(file), p) for file in of)), None)
        for folder, of in _by_folder(filter(is_weight, kept)).items()
    }
    return [
        file
        for file in kept
        if not (weight := _weight(file)) or _matches(weight, best.get(_folder(file)))
    ]


def is_weight(file: str) -> bool:
    return any(fnmatch(file, pattern) for pattern in WEIGHTS)


def _weight(file: str) -> str | None:
    """Return the weights that a file holds or is the index of, by name."""
    name = _name(file.removesuffix(".index.json"))
    return name if is_weight(name) else None


def _matches(weight: str, best: str | None) -> bool:
    # A folder's other safetensors are Hugging Face's copy of the consolidated ones, and vice versa.
    if best == "*.safetensors" and fnmatch(weight, CONSOLIDATED):
        return False
    return best is not None and fnmatch(weight, best)


def _by_folder(files: Iterable[str]) -> dict[str, list[str]]:
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(_folder(file), []).append(file)
    return folders


def _folder(file: str) -> str:
    return str(PurePosixPath(file).parent)


def _name(file: str) -> str:
    return PurePosixPath(file).name


def adapters(baked: Mapping[str, str]) -> list[str]:
    """Return the repositories of LORA_MODULES; raises ValueError where it is not understood."""
    value = json.loads(baked.get("LORA_MODULES", "[]"))
    return [adapter["path"] for adapter in (value if isinstance(value, list) else [value])]


ROOT_INDEXES = (
    "model.safetensors.index.json",
    "consolidated.safetensors.index.json",
    "pytorch_model.bin.index.json",
)


def of_kind(kind: Kind, files: Iterable[str], patterns: tuple[str, ...]) -> list[str]:
    match kind:
        case "code":
            return [file for file in files if file.endswith(".py")]
        case "tokenizer":
            return [file for file in choose(files, patterns) if not _weight(file)]
        case "model" | "draft" | "adapter":
            return choose(files, patterns)


def only_indexed(files: list[str], index: str, path: Path) -> list[str]:
    """Leave out weights beside the shards, such as the same ones in one piece."""
    try:
        shards = set(json.loads(path.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError):
        raise StartError(f"{index} is no index of shards") from None
    if lost := sorted(shards - set(files)):
        raise StartError(f"{index} names {lost[0]}, which the repository does not have")
    ours = index.removesuffix(".index.json").rpartition(".")[2]
    return [
        file
        for file in files
        if file in shards or _folder(file) != "." or not file.endswith(f".{ours}")
    ]


def check_weights(name: str, files: list[str], every: Iterable[str], *, is_gguf: bool) -> None:
    if any(is_weight(file) and _folder(file) == "." for file in files):
        return
    ggufs = sorted(file for file in every if file.endswith(".gguf"))
    if is_gguf or ggufs:
        has = f"It has {', '.join(ggufs[:8]) or 'none'}."
        example = (
            "MODEL_NAME=org/name:Q4_K_M names one, and TOKENIZER_NAME the model it was made of"
        )
        what = "has no GGUF file of that quantisation" if is_gguf else "holds GGUF files"
        raise StartError(f"{name} {what}: {example}. {has}")
    raise StartError(f"{name} holds no weights in a format that vLLM reads here")


def code_elsewhere(snapshot: Path) -> set[str]:
    """Return the repositories whose Python code this one's configuration names."""
    found = set()
    for file in snapshot.glob("*config.json"):
        auto_map = json_object(file).get("auto_map") or {}
        for names in auto_map.values() if isinstance(auto_map, dict) else ():
            for name in names if isinstance(names, list) else [names]:
                if isinstance(name, str) and "--" in name:
                    found.add(name.partition("--")[0])
    return found


def json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, and an empty one where there is none."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
