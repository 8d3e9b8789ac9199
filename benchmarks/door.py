"""Does the HTTP door cost more than `vllm serve`, which has the same app behind uvicorn?

Both run at once with the tiny model and are asked in turns by one client: STREAMS streams of
TOKENS tokens. Printed are medians of ROUNDS rounds, and the door's share of `vllm serve`.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import aiohttp

MODEL = Path(__file__).parents[1] / ".cache" / "models" / "tiny"
VLLM_SERVE = "vllm.entrypoints.launchers.api_server.entry"  # what `vllm serve` runs
START_S = 300.0


@dataclass(frozen=True)
class Round:
    tokens_per_s: float
    first_s: list[float]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def serving(name: str, command: Sequence[str], port: str, home: str) -> AsyncIterator[str]:
    """Run a server until it is healthy. Raises RuntimeError with the end of its log."""
    url = f"http://127.0.0.1:{port}"
    log = Path(home, f"{name}.log")
    environ = {
        "MODEL_NAME": str(MODEL),
        "SERVED_MODEL_NAME": "tiny",
        "DTYPE": "float32",
        "ENFORCE_EAGER": "true",
        "MAX_MODEL_LEN": "512",
        "MAX_NUM_SEQS": "128",
        "WORKER_MODE": "load_balancer",
        "PORT": port,
    }
    if name == "vllm serve":
        environ = {}
    with log.open("wb") as file:  # noqa: ASYNC230
        process = await asyncio.create_subprocess_exec(
            *command,
            env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HOME": home} | environ,
            stdout=file,
            stderr=file,
        )
    try:
        until_s = time.monotonic() + START_S
        async with aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{url}/health") as reply:
                        if reply.status == 200:
                            break
                if process.returncode is not None or time.monotonic() > until_s:
                    raise RuntimeError(log.read_text(errors="replace")[-4000:])  # noqa: ASYNC240
                await asyncio.sleep(0.2)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def ask(session: aiohttp.ClientSession, url: str, tokens: int) -> float:
    """Read one stream to its end, and return when its first token came, in seconds."""
    body = {
        "model": "tiny",
        "prompt": "Hello",
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    asked_s = time.perf_counter()
    first_s = 0.0
    async with session.post(f"{url}/v1/completions", json=body) as reply:
        reply.raise_for_status()
        async for _ in reply.content.iter_any():
            first_s = first_s or time.perf_counter() - asked_s
    return first_s


async def once(url: str, streams: int, tokens: int) -> Round:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        began_s = time.perf_counter()
        first_s = await asyncio.gather(*(ask(session, url, tokens) for _ in range(streams)))
        return Round(streams * tokens / (time.perf_counter() - began_s), list(first_s))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    ports = free_port(), free_port()
    vllm = [
        *(sys.executable, "-m", VLLM_SERVE, "--model", str(MODEL)),
        *("--served-model-name", "tiny", "--port", ports[1], "--dtype", "float32"),
        *("--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "128"),
        *("--disable-uvicorn-access-log",),
    ]
    worker = [sys.executable, "-m", "worker"]
    rounds: dict[str, list[Round]] = {"the door": [], "vllm serve": []}
    with tempfile.TemporaryDirectory() as home:
        async with (
            serving("the door", worker, ports[0], home) as ours,
            serving("vllm serve", vllm, ports[1], home) as theirs,
        ):
            for number in range(options.rounds + 1):
                pair = [("the door", ours), ("vllm serve", theirs)]
                for name, url in pair if number % 2 else reversed(pair):
                    measured = await once(url, options.streams, options.tokens)
                    if number:  # the first warms both
                        rounds[name].append(measured)
    print(
        f"{options.streams} streams of {options.tokens} tokens, {options.rounds} rounds in turns, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"vLLM {metadata.version('vllm-cpu')}, {time.strftime('%Y-%m-%d')}"
    )
    print(f"{'':<12}{'tokens/s':>10}{'first token, median ms':>24}{'worst ms':>10}")
    for name, measured in rounds.items():
        first_ms = [1000 * one for each in measured for one in each.first_s]
        rate = statistics.median(each.tokens_per_s for each in measured)
        print(f"{name:<12}{rate:>10.0f}{statistics.median(first_ms):>24.0f}{max(first_ms):>10.0f}")
    ratios = [
        ours.tokens_per_s / theirs.tokens_per_s
        for ours, theirs in zip(rounds["the door"], rounds["vllm serve"], strict=True)
    ]
    print(
        f"the door has {statistics.median(ratios):.3f} of vllm serve's tokens/s (median of pairs)"
    )


if __name__ == "__main__":
    asyncio.run(main())
