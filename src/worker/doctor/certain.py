"""What is certain of a start to come: it is refused before its weights are fetched.

Known from the configuration's file, the sizes of the weights, and the GPUs that are here; nothing
is built, and what vLLM might still manage is left to vLLM.
"""

import argparse
from pathlib import Path

from worker.doctor import weights
from worker.doctor.estimate import too_large
from worker.engine import probe
from worker.errors import StartError
from worker.model import files

MARGIN = 1.2  # so many times its GPUs' whole memory are weights that no way of counting makes fit
# With any of these, less than the files hold comes to a GPU.
_LESS = (
    *("cpu_offload_gb", "offload_group_size", "language_model_only", "mm_encoder_only"),
    "limit_mm_per_prompt",
)
_AT_LEAST = 1 / 4  # of a 16-bit weight, whatever QUANTIZATION makes of it


def refuse(args: argparse.Namespace, folder: Path) -> None:
    """Raise StartError where the start is certain to fail.

    `args` are vLLM's, `folder` is the model's, with everything in it but perhaps the weights.
    """
    config = files.json_object(folder / "config.json")
    if args.hf_overrides or not config:
        return
    text = config.get("text_config")
    heads = (text if isinstance(text, dict) else config).get("num_attention_heads")
    probe.refuse_parallelism(args, heads if isinstance(heads, int) else 0)
    memory = probe.gpu_memory()
    is_read = files.formats(args.model, args.load_format)
    if not memory or not is_read or any(getattr(args, name) for name in _LESS):
        return
    try:
        found = weights.read(
            args.model,
            args.revision,
            str(folder),
            load_format=args.load_format,
            token=args.hf_token if isinstance(args.hf_token, str) else None,
            heads=False,
        )
    except Exception:  # whatever is wrong with the files: the download or vLLM will say it
        return
    gpus = args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size
    is_shrunk = args.quantization and "quantization_config" not in config
    least = int((found.least if found else 0) * (_AT_LEAST if is_shrunk else 1)) // gpus
    if least > MARGIN * memory:
        raise StartError(
            f"{too_large(least, int(memory * args.gpu_memory_utilization))} Take a larger GPU or "
            "more of them (TENSOR_PARALLEL_SIZE), or a smaller or quantised model (QUANTIZATION); "
            "`python -m worker --doctor` says which GPU fits. (DOCTOR=0 tries it all the same.)"
        )
