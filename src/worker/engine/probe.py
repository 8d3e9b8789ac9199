"""Does vLLM accept this configuration, and does the logits processor really run?"""

import argparse
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.config import ParallelConfig
from vllm.config.quantization import ONLINE_QUANT_SHORTHAND_NAMES
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform, vllm_version_matches_substr
from vllm.platforms.interface import in_wsl
from vllm.sampling_params import RequestOutputKind

from worker.engine.admission import Rules
from worker.engine.causes import sentence
from worker.errors import StartError
from worker.facts import Limits
from worker.processor.order import Order
from worker.processor.processor import PATH
from worker.processor.reports import Folder


def with_chain(args: argparse.Namespace) -> tuple[argparse.Namespace, str]:
    """Register the chain, where vLLM can load it; else say why not.

    vLLM refuses to start with a custom processor on a pooling model, and on the V1 runner with
    speculation. Registered as a plugin instead of an argument it would be handed placeholders
    where tokens belong (V1, asynchronous scheduling).
    """
    _refuse_pipeline_on_cpu(args)
    engine_args = AsyncEngineArgs.from_cli_args(args)
    try:
        model_config = engine_args.create_model_config()
        refuse_idle_quantization(args.quantization, model_config)
        if model_config.runner_type == "pooling":
            return args, "it serves a pooling model."
        speculates = args.speculative_config or args.spec_method or args.spec_model
        if speculates and not engine_args.create_engine_config().use_v2_model_runner:
            return args, "vLLM's V1 model runner takes no logits processor beside speculation."
    except Exception as error:
        raise StartError(sentence(error)) from error
    changed = argparse.Namespace(**vars(args))
    changed.logits_processors = [*(args.logits_processors or ()), PATH]
    return changed, ""


def rules_of(client: Any, limits: Limits) -> Rules:
    """Return what of the running engine requests are judged by at admission."""
    config = client.vllm_config
    has_tokenizer = not config.model_config.skip_tokenizer_init
    on_cpu = config.device_config.device_type == "cpu"
    eos = config.model_config.try_get_generation_config().get("eos_token_id")
    return Rules(
        is_v2=config.use_v2_model_runner,
        has_tokenizer=has_tokenizer,
        has_prompt_logprobs=config.lora_config is None or not on_cpu,
        tokenizer=client.get_tokenizer() if has_tokenizer else None,
        vocab_size=config.model_config.get_vocab_size(),
        limits=limits,
        model_stop_ids=1 + len(eos if isinstance(eos, list) else []),
    )


async def why_not_live(client: Any, reports: Folder, died: Path) -> str:
    """Ask for a token, then forbid it: return why the chain does not run, or nothing.

    A processor that was not loaded would be missing without a word.
    """

    async def token(name: str, **others: Any) -> int:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **others,
        )
        async for output in client.generate({"prompt_token_ids": [1, 2, 3]}, params, name):
            return int(output.outputs[0].token_ids[0])
        raise StartError("The engine gave no answer to its first request.")

    try:
        free = await token("chain-check-1")
        with reports.report() as report:
            fields = {"suppress_tokens": [free], "do_sample": False}
            order = Order(fields=fields, scores=1)
            forbidden = await token("chain-check-2", extra_args=order.extra_args(report.path))
            records = report.read()
    except StartError:
        raise
    except Exception as error:
        raise StartError(sentence(error, died)) from error
    if forbidden == free:
        return "the engine did not load it."
    if not any("scores" in record for record in records):
        return "the engine's processes share no memory with it."
    return ""


def check(args: argparse.Namespace) -> str:
    """Let vLLM judge the whole configuration without loading a weight.

    Returns what was not judged, or nothing. Raises StartError with a sentence.
    """
    _refuse_pipeline_on_cpu(args)
    try:
        engine_args = AsyncEngineArgs.from_cli_args(args)
        if _lacks_its_gpu():
            current_platform.verify_quantization = lambda _: None  # the GPU's to say
            model_config = engine_args.create_model_config()
        else:
            model_config = engine_args.create_engine_config().model_config
    except Exception as error:
        raise StartError(sentence(error)) from error
    refuse_idle_quantization(args.quantization, model_config)
    if _lacks_its_gpu():
        return (
            "No GPU is here: memory, kernels, quantisation and parallelism cannot be judged "
            "without it."
        )
    return ""


def _lacks_its_gpu() -> bool:
    """Whether vLLM was built for a GPU and only reads a configuration, for want of one."""
    return bool(current_platform.is_cpu()) and not vllm_version_matches_substr("cpu")


def _refuse_pipeline_on_cpu(args: argparse.Namespace) -> None:
    """Refuse what vLLM 0.32 fails of at the first token: its CPU runner passes nothing on."""
    if args.pipeline_parallel_size > 1 and current_platform.is_cpu() and not _lacks_its_gpu():
        raise StartError(
            f"PIPELINE_PARALLEL_SIZE={args.pipeline_parallel_size} needs GPUs: vLLM's CPU runner "
            "has no pipeline. TENSOR_PARALLEL_SIZE shares a model on a CPU too."
        )


def idle_gpus(args: argparse.Namespace, count: int) -> str:
    """Say that more GPUs are there than the worker uses; nothing where it uses them."""
    used = args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size
    if used > 1 or count < 2:
        return ""
    return f"{count} GPUs are here, and one is used: TENSOR_PARALLEL_SIZE={count} uses all of them."


def gpus() -> int:
    return int(current_platform.device_count()) if current_platform.is_cuda_alike() else 0


def gpu_memory() -> int:
    """Return the bytes of the largest GPU here; 0 where nothing says them for certain.

    They are asked of NVML: torch would begin to use the GPU for it. Below Windows a GPU may borrow
    the host's memory.
    """
    if not current_platform.is_cuda() or in_wsl():
        return 0
    if type(current_platform).__name__ == "NonNvmlCudaPlatform":
        return 0
    try:
        return max(map(current_platform.get_device_total_memory, range(gpus())), default=0)
    except Exception:  # NVML's: the GPU has no memory of its own to tell of
        return 0


def refuse_parallelism(args: argparse.Namespace, heads: int) -> None:
    """Refuse more GPUs than are here, and attention heads that they cannot share.

    As vLLM does when it has the model's files. `heads` is 0 where nobody knows.
    Raises StartError.
    """
    tensor, stages = args.tensor_parallel_size, args.pipeline_parallel_size
    try:
        if args.nnodes == 1 and args.distributed_executor_backend is None:
            ParallelConfig(tensor_parallel_size=tensor, pipeline_parallel_size=stages)
        if heads % tensor:
            raise ValueError(
                f"Total number of attention heads ({heads}) must be divisible by tensor parallel "
                f"size ({tensor})."
            )
    except ValueError as error:
        raise StartError(sentence(error)) from error


def refuse_idle_quantization(scheme: str | None, model_config: Any) -> None:
    """Refuse a scheme for experts alone on a model without any: vLLM only logs "0 layers"."""
    wanted = model_config.quantization_config
    if scheme not in ONLINE_QUANT_SHORTHAND_NAMES or wanted is None or model_config.is_moe:
        return
    if wanted.linear is None and wanted.targets is None:
        raise StartError(
            f"QUANTIZATION={scheme} quantises nothing here: it is for the experts of a "
            "mixture-of-experts model, and this model has none. fp8_per_channel quantises any "
            "model while it is loaded."
        )
