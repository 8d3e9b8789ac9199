"""What a worker's engine says of itself: vLLM's metrics, at `http://127.0.0.1:METRICS_PORT/metrics`."""

import asyncio
import dataclasses

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
TOKENS = "vllm:generation_tokens_total"
CACHE_USE = "vllm:kv_cache_usage_perc"
NAMES = (RUNNING, WAITING, TOKENS, CACHE_USE)
MAX_BYTES = 4 * 2**20
TIMEOUT = aiohttp.ClientTimeout(total=1)


@dataclasses.dataclass(frozen=True)
class Figures:
    """One moment of an engine; where it has several ranks, of all together."""

    model: str | None
    running: int  # requests
    waiting: int
    tokens: int  # generated since its start
    cache_use: float  # from 0 to 1, of the fullest rank


async def ask(port: int) -> Figures | None:
    """Return the figures at a port of this machine, or None if no engine answers there."""
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT) as session,
            session.get(f"http://127.0.0.1:{port}/metrics") as answer,
        ):
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > MAX_BYTES:
                    return None
            return await asyncio.to_thread(read, body.decode(errors="replace"))
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None  # nobody is there, or somebody else


def read(text: str) -> Figures | None:
    """Read figures from Prometheus' text format; None without vLLM's. Raises `ValueError`."""
    # Most of the text is histograms, and the parser is slow.
    lines = "\n".join(line for line in text.splitlines() if line.startswith(NAMES))
    values: dict[str, list[float]] = {name: [] for name in NAMES}
    model = None
    for family in text_string_to_metric_families(f"{lines}\n"):
        for sample in family.samples:
            if sample.name in values:
                values[sample.name].append(sample.value)
                model = sample.labels.get("model_name", model)
    if not values[RUNNING]:
        return None
    running, waiting, tokens = (round(sum(values[name])) for name in (RUNNING, WAITING, TOKENS))
    return Figures(model, running, waiting, tokens, max(values[CACHE_USE], default=0.0))
