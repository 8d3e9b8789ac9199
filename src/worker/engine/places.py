"""How much of the engine is taken, and what stands behind the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

LAST = 1_000_000  # a priority behind whatever a caller may name; vLLM's default is 0

_patient: ContextVar["Patient | None"] = ContextVar("patient", default=None)


@dataclass
class Patient:
    """What others may overtake: `sequences` of it have come to the engine."""

    sequences: int = 0


@contextmanager
def behind(patient: Patient) -> Iterator[None]:
    """Let others overtake what is asked of the engine in this context."""
    token = _patient.set(patient)
    try:
        yield
    finally:
        _patient.reset(token)


def install(client: Any) -> None:
    """Let vLLM's client know what is patient, and its scheduler, where it goes by priorities."""
    add_request = client.add_request
    has_priorities = client.vllm_config.scheduler_config.policy == "priority"

    async def added(
        request_id: Any, prompt: Any, params: Any, *args: Any, priority: int = 0, **others: Any
    ) -> Any:
        patient = _patient.get()
        if patient is not None:
            patient.sequences += getattr(params, "n", 1)
            priority += LAST if has_priorities else 0
        return await add_request(request_id, prompt, params, *args, priority=priority, **others)

    client.add_request = added


class Places:
    """The sequences that an engine runs at once: all of them, and how many are taken."""

    def __init__(self, client: Any) -> None:
        scheduler = client.vllm_config.scheduler_config
        engines = client.vllm_config.parallel_config.data_parallel_size
        self.number = int(scheduler.max_num_seqs * engines)
        # Two steps' worth: one is computed, and the next has to be there when it ends.
        self._enough = 2 * scheduler.max_num_batched_tokens * engines
        self._processor = client.output_processor

    @property
    def taken(self) -> int:
        return int(self._processor.get_num_unfinished_requests())

    @property
    def is_busy(self) -> bool:
        """Whether more prompts wait to be read than the engine reads in its next steps."""
        return bool(self._processor.get_num_queued_tokens() >= self._enough)
