"""What the engine tells of a job's requests: how long they waited, and what its cache had."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from worker import __version__
from worker.engine import command_line

_receipt: ContextVar["Receipt | None"] = ContextVar("receipt", default=None)


@dataclass
class Receipt:
    """The notes of one job's requests; times count from when it was made."""

    began_s: float = field(default_factory=time.monotonic)
    _stats: dict[int, Any] = field(default_factory=dict)
    _cached: dict[str, int] = field(default_factory=dict)

    def note(self, output: Any) -> None:
        """Note what one of vLLM's outputs knows of its request."""
        stats = getattr(output, "metrics", None)  # of generating models, and not without statistics
        if stats is not None:
            self._stats[id(stats)] = stats
        self._cached[output.request_id] = getattr(output, "num_cached_tokens", None) or 0

    def said(self) -> dict[str, Any]:
        """Return seconds in the worker's queue and until the first token, tokens a second of the
        engine, and prompt tokens that its cache had."""
        # vLLM's are times of the engine's process, by the same clock of the machine.
        stats = [one for one in self._stats.values() if one.first_token_ts]
        found: dict[str, Any] = {"cached_tokens": sum(self._cached.values())}
        if not stats:
            return found
        first_s = min(one.first_token_ts for one in stats)
        took_s = max(one.last_token_ts for one in stats) - first_s
        later = sum(one.num_generation_tokens for one in stats) - len(stats)
        return found | {
            "queue_s": round(min(one.scheduled_ts for one in stats) - self.began_s, 4),
            "first_token_s": round(first_s - self.began_s, 4),
            "engine_tokens_per_s": round(later / took_s, 1) if took_s > 0 else None,
        }


@contextmanager
def kept(*, wanted: bool) -> Iterator[Receipt | None]:
    """Keep a receipt of what is asked of the engine in this context, if it is wanted."""
    receipt = Receipt() if wanted else None
    token = _receipt.set(receipt)
    try:
        yield receipt
    finally:
        _receipt.reset(token)


def current() -> Receipt | None:
    return _receipt.get()


def versions() -> dict[str, str]:
    """Return the versions that an answer depends on."""
    runpod = metadata.version("runpod")
    return {"worker": __version__, "vllm": command_line.version(), "runpod": runpod}
