"""What the fork server imports, so that the engine's processes begin with it."""

import gc
import importlib
from contextlib import suppress

import setproctitle

import worker.__main__  # noqa: F401 - what it does for logs
from worker.lifetime import be_fork_server

be_fork_server()
setproctitle.getproctitle()  # notes where the title stands, before a child's environment moves
with suppress(Exception):  # the process that needs it will say so
    from vllm.platforms import current_platform

    importlib.import_module("worker.engine.death")
    importlib.import_module(
        f"vllm.v1.worker.{'cpu' if current_platform.is_cpu() else 'gpu'}_worker"
    )
gc.freeze()  # else a child's first collection would copy every page
