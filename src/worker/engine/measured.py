"""What vLLM measured while it started; its workers know it, and tell it when they are asked."""

from typing import Any

from vllm import envs
from vllm.platforms import current_platform
from vllm.v1.worker.worker_base import WorkerBase

ASK = "worker_vllm_measured"
TIMEOUT_S = 10.0


def listen() -> None:
    """Let vLLM's workers that begin in this process, or are forked from it, answer `ask`."""
    setattr(WorkerBase, ASK, _measured)


async def ask(client: Any) -> dict[str, Any]:
    """Return what is known, by name: bytes on the fullest GPU, and what the cache holds.

    What was not measured is left out: on a CPU all but the cache, and the pass that measures where
    KV_CACHE_MEMORY_BYTES says the size.
    """
    config, told = client.vllm_config, list[dict[str, int]]([{}])
    if config.parallel_config.distributed_executor_backend != "ray":  # whose workers are not ours
        told = await client.collective_rpc(ASK, timeout=TIMEOUT_S)
    fullest = max(told, key=lambda one: one.get("weights", 0))
    cache = {
        "blocks": config.cache_config.num_gpu_blocks,
        "tokens": config.cache_config.kv_cache_size_tokens,
        "at_once": config.cache_config.kv_cache_max_concurrency,
        "max_model_len": config.model_config.max_model_len,
    }
    return {**fullest, **{name: value for name, value in cache.items() if value}}


def card() -> str:
    """Return the name of the GPU here; `cpu` where there is none."""
    if not current_platform.is_cuda_alike():
        return "cpu"
    return str(current_platform.get_device_name())


def _measured(worker: Any) -> dict[str, int]:
    """In vLLM's worker: what it keeps of its own measuring, in bytes."""
    graphs = getattr(worker, "cudagraph_memory_estimate", None)
    activations = getattr(worker, "peak_activation_memory", None)
    if activations is not None and envs.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS:
        activations -= graphs or 0  # vLLM has added them
    found = {
        "weights": getattr(worker.model_runner, "model_memory_usage", None),
        "weights_and_beside_torch": getattr(worker, "total_consumed", None),
        "activations": activations,
        "graphs": graphs,
        "cache": getattr(worker, "available_kv_cache_memory_bytes", None),
    }
    return {name: int(value) for name, value in found.items() if value is not None}
