"""The engine core is forked from a process that imports vLLM while the worker does.

As vLLM's server makes them, the process that looks up a model's class and then the engine core each
begin with an import of vLLM, one after the other: seconds of every start. The core's own workers
are made as vLLM makes them: on a CPU theirs has to read its threads from the environment.
"""

import argparse
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from vllm.model_executor.models import registry
from vllm.utils import torch_utils
from vllm.v1.engine import coordinator, utils

from worker.lifetime import changed_since, die_with_parent, fork_server

# What vLLM 0.32 and this worker set by themselves, and vLLM reads when it is needed.
READ_LATE = {
    "VLLM_WORKER_MULTIPROC_METHOD",
    "VLLM_RPC_BASE_PATH",
    "VLLM_MEDIA_CONNECTOR",
    "VLLM_DISABLE_SHARED_EXPERTS_STREAM",
    "VLLM_SSM_CONV_STATE_LAYOUT",
    torch_utils.OMP_NUM_THREADS_SET_BY_VLLM,
}
uninspected: list[Exception] = []  # why a model's class could not be looked up: vLLM only logs it
_get_mp_context = utils.get_mp_context


def install(args: argparse.Namespace) -> None:
    """Let vLLM make them so, if there is a fork server.

    Binding a process to memory (`--numa-bind`) is done by the command that it begins with.
    """
    if fork_server() and not args.numa_bind:
        utils.get_mp_context = coordinator.get_mp_context = _context
        registry._run_in_subprocess = _run_in_child


def _context() -> BaseContext:
    """Return how a process is made: as vLLM does, where that has to import vLLM anew.

    Its configuration may have set a variable that decides what its modules are, such as
    VLLM_USE_BREAKABLE_CUDAGRAPH for some models.
    """
    if {name for name in changed_since() if name.startswith("VLLM_")} - READ_LATE:
        context: BaseContext = _get_mp_context()
        return context
    return multiprocessing.get_context("forkserver")


def _run_in_child(function: Callable[[], Any]) -> Any:
    context = multiprocessing.get_context("forkserver")
    dies = partial(die_with_parent, fork_server())
    with ProcessPoolExecutor(1, context, initializer=dies) as pool:
        try:
            return pool.submit(_call, cloudpickle.dumps(function)).result()
        except Exception as error:
            uninspected.append(error)
            raise


def _call(function: bytes) -> Any:
    return cloudpickle.loads(function)()
