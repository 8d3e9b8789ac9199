"""A card that is not here: vLLM's CUDA platform with the card's memory and capability.

With it vLLM reads a configuration, chooses its kernels and builds a model without memory
(`planner`) as it would where the card is. Nothing can be computed: vLLM's compiled parts are not
loaded, and what it asks them (is this supported?) is answered from the card's capability.
"""

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import vllm.platforms

# vLLM's compiled parts that its CUDA platform imports; a build for the CPU has none of them.
_COMPILED = (
    *("vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch"),
    *("vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C"),
)
# From which capability on they say yes.
_SUPPORTED = {
    "cutlass_scaled_mm_supports_fp8": 89,
    "cutlass_scaled_mm_supports_block_fp8": 90,
    "cutlass_scaled_mm_supports_fp4": 100,
}


def stand_in(name: str, memory: int, capability: tuple[int, int], count: int) -> None:
    """Let vLLM believe that this process has `count` such cards, of `memory` bytes each.

    Before anything else of vLLM is imported; later calls change the card.
    """
    if vllm.platforms._current_platform is None:
        _install()
    platform: Any = type(vllm.platforms.current_platform)
    platform.card = (name, memory, capability, count)


def _install() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # also lets vLLM take Triton for usable
    vllm.platforms.vllm_version_matches_substr = lambda _: False  # it is no build for the CPU
    for name in _COMPILED:
        sys.modules.setdefault(name, ModuleType(name))
    torch.cuda.Stream = torch.cuda.Event = _Nothing
    vllm.platforms._current_platform = _platform()
    ops: Any = importlib.import_module("vllm._custom_ops")
    for question, least in _SUPPORTED.items():
        setattr(ops, question, lambda capability, least=least: capability >= least)
    for namespace in ("_C", "_moe_C"):
        setattr(torch.ops, namespace, _Kernels(getattr(torch.ops, namespace)))


def _platform() -> Any:
    base = importlib.import_module("vllm.platforms.cuda").CudaPlatformBase
    capability = importlib.import_module("vllm.platforms.interface").DeviceCapability

    def asked(answer: Callable[[Any], Any]) -> Any:
        return classmethod(lambda cls, *_, **__: answer(cls.card))

    answers = {
        "get_device_name": asked(lambda card: card[0]),
        "get_device_total_memory": asked(lambda card: card[1]),
        "get_device_capability": asked(lambda card: capability(*card[2])),
        "device_count": asked(lambda card: card[3]),
        # By these kernels choose how they work, and none works here.
        "num_compute_units": asked(lambda _: 108),
        "is_fully_connected": asked(lambda _: True),
        "is_integrated_gpu": asked(lambda _: False),
    }
    return type("AbsentCard", (base,), {"card": ("", 0, (0, 0), 0), **answers})()


class _Nothing:
    """A stream or an event of a card that is not here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class _Kernels:
    """Operators by name, of which any exists and none can be called."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name, None) or _no_kernel


def _no_kernel(*_: Any, **__: Any) -> Any:
    raise RuntimeError("There is no card here to compute on.")
