"""Quantise a baked model: `python builder/quantize.py --from /whole --root /baked`.

QUANTIZE is the scheme, and none needs data: `fp8` (8-bit floats), `int8` (weights and activations),
`w4a16` (4-bit integers for the weights alone, in groups). Runs in a build stage of its own, where
quantize.txt is installed, on a CPU, and needs memory for the whole model. What it leaves below
`--root` is what bake.py would have left, with smaller weights.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"  # bars redraw one line, and a build's log has no such thing
os.environ["TOKENIZERS_PARALLELISM"] = "false"

SCHEMES = {"fp8": "FP8_DYNAMIC", "int8": "W8A8", "w4a16": "W4A16"}
GROUPS = (128, 64, 32)  # the sizes that vLLM's 4-bit kernels have, the smallest file first
# What loses too much, or what vLLM does not read quantised: the head, routers, eyes and ears.
KEPT = [
    *("lm_head", r"re:.*\.gate$", r"re:.*router.*", r"re:.*shared_expert_gate$"),
    *(r"re:.*vis(ion|ual).*", r"re:.*audio.*", r"re:.*projector.*"),
]
BAKED = "etc/worker-vllm/baked.json"
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


def scheme(name: str, sizes: set[int]) -> Any:
    """Return llm-compressor's scheme; `sizes` are the inputs' of the layers to quantise."""
    from compressed_tensors.quantization import preset_name_to_scheme

    found = preset_name_to_scheme(SCHEMES[name], ["Linear"])
    if name == "w4a16":
        group = next((g for g in GROUPS if all(size % g == 0 for size in sizes)), None)
        if group is None:
            raise SystemExit(
                f"error: QUANTIZE=w4a16 does not fit layers with {sorted(sizes)} inputs"
            )
        found.weights.group_size = group
    return found


def quantize(source: Path, target: Path, name: str, *, trust_remote_code: bool) -> None:
    """Write the model in `source`, quantised, to `target`, with everything that belongs to it."""
    import torch
    import transformers
    from compressed_tensors.utils import match_named_modules
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier

    config = json.loads((source / "config.json").read_text())
    if "quantization_config" in config:
        raise SystemExit(f"error: QUANTIZE={name}: the model is quantised already")
    kind = getattr(
        transformers, config.get("architectures", [""])[0], transformers.AutoModelForCausalLM
    )
    model = kind.from_pretrained(source, dtype="auto", trust_remote_code=trust_remote_code)
    layers = [layer for _, layer in match_named_modules(model, ["Linear"], KEPT)]
    sizes = {layer.in_features for layer in layers if isinstance(layer, torch.nn.Linear)}
    print(f"{len(layers)} layers of {kind.__name__} become {SCHEMES[name]}", flush=True)
    groups = {"group_0": scheme(name, sizes)}
    oneshot(model=model, recipe=QuantizationModifier(config_groups=groups, ignore=KEPT))
    model.save_pretrained(target, save_compressed=True)
    for file in source.rglob("*"):
        mine = target / file.relative_to(source)
        weights = file.name.removesuffix(".index.json").endswith(WEIGHTS)
        if file.is_file() and not mine.exists() and not (weights and file.parent == source):
            mine.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, mine)
    for file in target.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)  # weights are saved for their owner alone


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--from", dest="source", type=Path, required=True, help="bake.py's root")
    parser.add_argument("--root", type=Path, required=True, help="where to write the same, smaller")
    options = parser.parse_args()
    name = os.environ.get("QUANTIZE", "").strip().lower()
    if name not in SCHEMES:
        print(f"error: QUANTIZE={name!r} must be one of {', '.join(SCHEMES)}", file=sys.stderr)
        return 1
    baked = json.loads((options.source / BAKED).read_text())
    if not baked or "QUANTIZATION" in baked:
        why = "QUANTIZATION says that it is quantised" if baked else "no model is baked in"
        print(f"error: QUANTIZE={name}: {why}", file=sys.stderr)
        return 1
    cache = Path(baked["BASE_PATH"].lstrip("/")) / "huggingface-cache/hub"
    folder = f"models--{baked['MODEL_NAME'].replace('/', '--')}"
    shutil.copytree(
        options.source,
        options.root,
        symlinks=True,
        dirs_exist_ok=True,
        ignore=lambda _, names: {folder} & set(names),
    )
    whole, small = options.source / cache / folder, options.root / cache / folder
    revision = baked.get("MODEL_REVISION", "main")
    ref = whole / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    # The snapshot gets a name of its own: it is not what the hub has under that commit.
    quantize(
        whole / "snapshots" / commit,
        small / "snapshots" / f"{commit}-{name}",
        name,
        trust_remote_code=os.environ.get("TRUST_REMOTE_CODE", "").lower() in ("1", "true"),
    )
    for other in (whole / "snapshots").iterdir():
        if other.name != commit:  # the tokenizer of another revision
            shutil.copytree(other, small / "snapshots" / other.name)
    refs = {
        file.relative_to(whole): file.read_text().strip()
        for file in whole.glob("refs/**/*")
        if file.is_file()
    } | {Path("refs", revision): commit}
    for file, named in refs.items():
        (small / file).parent.mkdir(parents=True, exist_ok=True)
        (small / file).write_text(f"{commit}-{name}" if named == commit else named)
    print(f"{baked['MODEL_NAME']} is quantised: {SCHEMES[name]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
