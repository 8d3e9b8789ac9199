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
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from vllm.model_executor.models import registry
from vllm.v1.engine import coordinator, utils

from worker.lifetime import die_with_parent, fork_server


def install(args: argparse.Namespace) -> None:
    """Let vLLM make them so, if there is a fork server.

    Binding a process to memory (`--numa-bind`) is done by the command that it begins with.
    """
    if fork_server() and not args.numa_bind:
        context = multiprocessing.get_context("forkserver")
        utils.get_mp_context = coordinator.get_mp_context = lambda: context
        registry._run_in_subprocess = _run_in_child


def _run_in_child(function: Callable[[], Any]) -> Any:
    context = multiprocessing.get_context("forkserver")
    dies = partial(die_with_parent, fork_server())
    with ProcessPoolExecutor(1, context, initializer=dies) as pool:
        return pool.submit(_call, cloudpickle.dumps(function)).result()


def _call(function: bytes) -> Any:
    return cloudpickle.loads(function)()
