"""A plugin of vLLM's that lets the CPU schedule as a GPU does: asynchronously unless told not to.

Without it vLLM's CPU platform turns asynchronous scheduling off without a word, even where
ASYNC_SCHEDULING asks for it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def register() -> None:
    """Keep what vLLM decided before its CPU platform looked; the log tells what that was."""
    from vllm.logger import init_logger
    from vllm.platforms.cpu import CpuPlatform

    logger = init_logger("vllm.interpreted_cpu")
    check = CpuPlatform.check_and_update_config

    def check_and_update_config(vllm_config: "VllmConfig") -> None:
        decided = vllm_config.scheduler_config.async_scheduling
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = decided
        logger.info("Asynchronous scheduling: %s", decided)

    CpuPlatform.check_and_update_config = staticmethod(check_and_update_config)
