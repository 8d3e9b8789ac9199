"""What vLLM would plan for a configuration on the platform of this process, without a weight.

The model is built as vLLM builds it, but of tensors without memory (torch's `meta`): its parameters
say how much the weights take on each GPU, and its layers say how they keep their cache. vLLM's own
planner makes blocks of it. The same on a card that is not here (`card`) and on a CPU.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.config import CompilationMode, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext

from worker.engine.causes import sentence
from worker.engine.probe import refuse_idle_quantization
from worker.errors import StartError

# What is left of a 16-bit weight that vLLM quantises while it loads, by the method's name.
_ONLINE = {"Fp8": 1 / 2, "Int8": 1 / 2, "Mxfp8": 33 / 64, "Mxfp4": 17 / 64, "Nvfp4": 9 / 32}


@dataclass(frozen=True)
class Capacity:
    """A cache: how many tokens it holds, and how many requests of the longest context at once."""

    tokens: int
    at_once: float
    max_model_len: int
    blocks: int


@dataclass(frozen=True)
class Plan:
    """One configuration as vLLM takes it; sizes are bytes on each GPU, the fullest of them.

    `specs` are the layers' caches, by layer, for each stage of a pipeline; `model` is vLLM's, of
    the last stage, of tensors without memory.
    """

    config: Any
    model: Any
    weights: int
    specs: tuple[dict[str, Any], ...]

    @property
    def max_model_len(self) -> int:
        return int(self.config.model_config.max_model_len)

    @property
    def token_bytes(self) -> int:
        """What one more token of a long request takes, in all layers that grow with it."""
        tokens = (
            sum(
                spec.page_size_bytes // spec.block_size
                for spec in stage.values()
                if "Full" in type(spec).__name__ or "MLA" in type(spec).__name__
            )
            for stage in self.specs
        )
        return int(max(tokens))

    def capacity(self, available: int, length: int | None = None) -> Capacity | str:
        """Plan a cache of `available` bytes a GPU for requests of `length` tokens each.

        Returns vLLM's sentence where not even one such request fits.
        """
        return _capacity(self, available, length or self.max_model_len, is_auto=False)

    def longest(self, available: int) -> int:
        """Return the longest context that fits, of at most the configured one; 0 if none does."""
        found = _capacity(self, available, self.max_model_len, is_auto=True)
        return found.max_model_len if isinstance(found, Capacity) else 0


class UnplannedError(Exception):
    """The model cannot be built without its card. The text says why."""


def plan(args: argparse.Namespace) -> Plan:
    """Return vLLM's plan for its arguments.

    Raises StartError with a sentence where vLLM refuses the configuration, and UnplannedError where
    only the card itself could tell.
    """
    registry._run_in_subprocess = lambda function: function()  # there is no card to keep it from
    try:
        engine_args = AsyncEngineArgs.from_cli_args(args)
        config = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)
        refuse_idle_quantization(args.quantization, config.model_config)
    except StartError:
        raise
    except Exception as error:
        raise StartError(sentence(error)) from error
    try:
        model, weights, specs = _stages(config)
    except Exception as error:
        if isinstance(error, ValueError) and "attention backend" not in str(error):
            raise StartError(sentence(error)) from error
        why = sentence(error).rstrip(".!")
        raise UnplannedError(f"vLLM cannot build the model without its card ({why}).") from error
    return Plan(config, model, weights, specs)


def _stages(config: Any) -> tuple[Any, int, tuple[dict[str, Any], ...]]:
    """Build each stage of the pipeline; return a model, the largest weights, and all caches."""
    from vllm.v1.attention.backends.utils import record_kv_cache_layout, resolve_kv_cache_layout
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.worker_base import WorkerBase

    register_all_kvcache_specs(config)
    runner = SimpleNamespace(vllm_config=config, shared_kv_cache_layers={})
    weights, stages, layouts = 0, [], []
    for stage in range(config.parallel_config.pipeline_parallel_size):
        config.compilation_config.static_forward_context.clear()
        with _one_of_many(config, stage):
            model, *draft = _models(config)
            weights = max(weights, sum(map(_bytes, (model, *draft))))
            if not stage:
                current_platform.update_block_size_for_backend(config)
            stages.append(GPUModelRunner.get_kv_cache_spec(runner))
            if stages[-1]:
                layouts.append(WorkerBase.get_supported_kv_cache_layouts(runner))
    if layouts:
        every = [spec for specs in stages for spec in specs.values()]
        layout = resolve_kv_cache_layout(config, layouts, every)
        record_kv_cache_layout(config.cache_config, layout.name)
    return model, weights, tuple(stages)


def _models(config: Any) -> Iterator[Any]:
    """Build the model, and the draft model that guesses for it."""
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_default_torch_dtype(config.model_config.dtype), _EmptyWithoutMemory():
        yield initialize_model(config)
        target, draft = config.model_config, None
        if config.speculative_config is not None:
            draft = config.speculative_config.draft_model_config
        # Without a model of its own a method such as ngram has the target's.
        if draft and (draft.model, draft.architectures) != (target.model, target.architectures):
            yield initialize_model(config, prefix="draft_model", model_config=draft)


class _EmptyWithoutMemory(TorchFunctionMode):  # type: ignore[misc]
    """Tensors that a file will fill are made without memory; some models compute with others."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        return func(*args, **({"device": "meta"} | given if func is torch.empty else given))


@contextmanager
def _one_of_many(config: Any, stage: int) -> Iterator[None]:
    """Be the first GPU of a stage, without the others. Nothing is compiled."""
    parallel, compilation = config.parallel_config, config.compilation_config
    tensor, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    everywhere = tensor * parallel.data_parallel_size
    parallel_state._WORLD = _group(tensor * stages, stage * tensor)
    parallel_state._TP = parallel_state._ETP = _group(tensor)
    parallel_state._PP = _group(stages, stage)
    parallel_state._DP = _group(parallel.data_parallel_size)
    parallel_state._EP = parallel_state._EPLB = _group(everywhere)
    parallel_state._DCP = _group(parallel.decode_context_parallel_size)
    parallel_state._PCP = _group(parallel.prefill_context_parallel_size)
    meta, platform, device = torch.device("meta"), vars(current_platform), config.device_config
    before = compilation.mode, device.device, dict(platform)
    compilation.mode, device.device = CompilationMode.NONE, meta
    # Where layers name the device themselves.
    platform.update(device_type=meta.type, current_device=lambda: meta)
    try:
        with set_current_vllm_config(config):
            yield
    finally:
        compilation.mode, device.device, kept = before
        platform.clear()
        platform.update(kept)


def _group(size: int, rank: int = 0) -> Any:
    """Return what a model asks of a group of processes while it is built."""
    processes = SimpleNamespace(size=lambda: size, rank=lambda: rank)
    return SimpleNamespace(
        world_size=size,
        rank_in_group=rank,
        rank=rank,
        local_rank=rank,
        ranks=list(range(size)),
        is_first_rank=rank == 0,
        is_last_rank=rank == size - 1,
        device_group=processes,
        cpu_group=processes,
        device_communicator=None,
        unique_name="",
    )


def _bytes(model: Any) -> int:
    """Return what a model takes in memory, once it is loaded."""
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.quantization import online

    total = float(sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())))
    for layer in model.modules():
        method = type(getattr(layer, "quant_method", None))
        if method.__module__.startswith(online.__name__):
            kind = next(kind for kind in _ONLINE if method.__name__.startswith(kind))
            weights = [one.nbytes for one in layer.parameters(recurse=False) if one.dim() > 1]
            total -= sum(weights) * (1 - _ONLINE[kind])
        if isinstance(layer, MLAAttention):  # has these weights a second time, for decoding
            dtype = get_current_vllm_config().model_config.dtype
            total += layer.kv_b_proj.weight.numel() * dtype.itemsize
        if isinstance(layer, LinearBase):
            total += _slots(layer)
    return int(total)


def _slots(layer: Any) -> int:
    """Return what the slots of adapters take beside a layer."""
    from vllm.config import get_current_vllm_config

    lora = get_current_vllm_config().lora_config
    if lora is None:
        return 0
    inner = getattr(layer, "input_size_per_partition", layer.input_size)
    outer = getattr(layer, "output_size_per_partition", layer.output_size)
    return int(lora.max_loras * lora.max_lora_rank * (inner + outer) * lora.lora_dtype.itemsize)


def _capacity(plan: Plan, available: int, length: int, *, is_auto: bool) -> Capacity | str:
    from vllm.v1.core import kv_cache_utils

    model = plan.config.model_config
    if not any(plan.specs):
        return Capacity(0, float(plan.config.scheduler_config.max_num_seqs), length, 0)
    before = model.max_model_len, model.original_max_model_len
    model.max_model_len, model.original_max_model_len = length, -1 if is_auto else length
    try:
        specs = [dict(stage) for stage in plan.specs]
        configs = kv_cache_utils.get_kv_cache_configs(plan.config, specs, [available] * len(specs))
        whole = kv_cache_utils.generate_scheduler_kv_cache_config(configs)
        tokens, at_once = kv_cache_utils.get_kv_cache_capacity(plan.config, whole)
        return Capacity(tokens, at_once, model.max_model_len, whole.num_blocks)
    except ValueError as error:
        return sentence(error)
    finally:
        model.max_model_len, model.original_max_model_len = before
