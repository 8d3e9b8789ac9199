"""How smoothly does a stream arrive while the worker is full, and how soon while it is idle?

The real worker (`python -m worker`: the tiny model, eager, 1,024 tokens, else its defaults and the
variables of this command's caller) answers bursts of streams of 128 greedy tokens. The loads are
run in turns, after one turn that warms up, for one version of RunPod's SDK after the other. In the
same turns stands the mark: `AsyncLLM.generate` in a plain process, each output taken as a post.
Nothing in front of the engine can be smoother.

The first token counts from the job's push. `worst` is of all runs, the rest are medians of them. A
round trip is added to loopback. The platform shares the cores, as no real one does: its share is
printed, and as root it runs before all else (`keeps time`), since a busy machine else delays it.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import uvloop

from _stand_in import Platform, Stream, keep_time, serving

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import models

SDKS = ("1.12.0", "2.0.0rc2")
TOKENS = 128  # of each stream
LONG = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
STREAM = {"prompt": "Hello", "stream": True}
INPUTS = {
    "openai": {
        "openai_route": "/v1/completions",
        "openai_input": STREAM | LONG | {"stream_options": {"include_usage": True}},
    },
    "native": STREAM | {"sampling_params": LONG},
}
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1"}
IDLE_RUNS = 3  # of one stream, for each run of many


@dataclass(frozen=True)
class Load:
    """So many streams at once, over such a round trip; `kind` is their job's, or the mark."""

    kind: str
    streams: int
    round_trip_ms: int = 0


MARK = Load("AsyncLLM.generate", 64)
IDLE = Load("openai", 1)
QUICK = (MARK, IDLE, Load("openai", 64), Load("openai", 64, 50))
FULL = (*QUICK, Load("openai", 100), Load("openai", 100, 50), Load("native", 64))


async def measure(
    loads: tuple[Load, ...], runs: int, sdk: str, mark: ProcessPoolExecutor
) -> dict[Load, list[list[Stream]]]:
    measured: dict[Load, list[list[Stream]]] = {load: [] for load in loads}
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "ENFORCE_EAGER": "1",
        "MAX_MODEL_LEN": "1024",
    }
    async with serving(environ | CPU, sdk) as stand_in:
        for load in loads:
            await run(load, stand_in, mark)
        before_s = time.monotonic(), time.process_time()
        for load in loads * runs:
            for _ in range(IDLE_RUNS if load == IDLE else 1):
                measured[load].append(await run(load, stand_in, mark))
        wall_s, cpu_s = time.monotonic() - before_s[0], time.process_time() - before_s[1]
        print(f"SDK {sdk}; the platform took {cpu_s / wall_s:.0%} of a core")
    return measured


async def run(load: Load, stand_in: Platform, mark: ProcessPoolExecutor) -> list[Stream]:
    await stand_in.is_asked.wait()
    # SDK 1.12.0 looks for jobs every 0.1 s: each run is to meet it at another moment.
    await asyncio.sleep(random.uniform(0.2, 0.3))
    if load == MARK:
        return await asyncio.get_running_loop().run_in_executor(mark, generate, load.streams)
    return await stand_in.run(INPUTS[load.kind], load.streams, TOKENS, load.round_trip_ms)


@contextlib.contextmanager
def plain_process() -> Iterator[ProcessPoolExecutor]:
    """Give a process for `generate`, and end its engine."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        try:
            yield process
        finally:
            process.submit(end).result()


def generate(streams: int) -> list[Stream]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    runner, engine = plain_engine()
    params = SamplingParams(**LONG, output_kind=RequestOutputKind.DELTA)

    async def one(name: str) -> Stream:
        stream = Stream()
        async for _ in engine.generate("Hello", params, name):
            stream.posts_s.append(time.monotonic())
        return stream

    async def every() -> list[Stream]:
        return await asyncio.gather(*(one(f"{time.monotonic()}-{i}") for i in range(streams)))

    return runner.run(every())


def end() -> None:
    if plain_engine.cache_info().currsize:
        plain_engine()[1].shutdown()


@functools.cache
def plain_engine() -> tuple[asyncio.Runner, Any]:
    os.environ |= CPU | {"VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    args = AsyncEngineArgs(str(models.path("tiny")), enforce_eager=True, max_model_len=1024)

    async def start() -> AsyncLLM:
        return AsyncLLM.from_engine_args(args)

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    return runner, runner.run(start())


def figures(streams: list[Stream]) -> dict[str, float]:
    """Return what one run shows."""
    first_s = [stream.posts_s[0] - stream.asked_s for stream in streams]
    waits_s = (b - a for stream in streams for a, b in itertools.pairwise(stream.posts_s))
    total_s = max(stream.posts_s[-1] for stream in streams) - streams[0].asked_s
    return {
        "tokens_per_s": len(streams) * TOKENS / total_s,
        "posts_per_job": statistics.mean(len(stream.posts_s) for stream in streams),
        "first_p50_ms": 1000 * statistics.median(first_s),
        "first_worst_ms": 1000 * max(first_s),
        "longest_wait_ms": 1000 * max(waits_s),
    }


def row(load: Load, runs: list[list[Stream]]) -> dict[str, Any]:
    """Print one line of the table, and return it with the figures of each run."""
    each = [figures(streams) for streams in runs]
    median = {name: statistics.median(one[name] for one in each) for name in each[0]}
    worst = {name: max(one[name] for one in each) for name in ("first_worst_ms", "longest_wait_ms")}
    print(
        f"{load.kind:18}{load.round_trip_ms:8} ms{load.streams:9}{median['tokens_per_s']:10.0f}"
        f"{median['posts_per_job']:11.1f}{median['first_p50_ms']:11.0f}"
        f"{worst['first_worst_ms']:7.0f}{median['longest_wait_ms']:13.0f}"
        f"{worst['longest_wait_ms']:7.0f}"
    )
    return dataclasses.asdict(load) | {"median": median, "worst": worst, "runs": each}


def conditions() -> dict[str, Any]:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "Python": platform.python_version(),
        "vLLM": metadata.version(metadata.packages_distributions()["vllm"][0]),
        "load before": round(os.getloadavg()[0], 1),
        "platform keeps time": "yes" if keep_time() else "no",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sdk", nargs="+", default=SDKS, help="versions of RunPod's SDK")
    parser.add_argument("--quick", action="store_true", help="fewer loads, two runs of each")
    parser.add_argument("--json", type=Path, help="the file for the table and each run's figures")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # ends the worker
    loads, runs = (QUICK, 2) if options.quick else (FULL, 5)
    about, rows = conditions(), []
    print(f"streams of {TOKENS} tokens, {runs} runs in turns, {runs * IDLE_RUNS} of one stream;")
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"{'':49}{'first token, ms':>29}{'longest wait, ms':>20}")
    print(f"{'':18} round trip  streams  tokens/s  posts/job        p50  worst       median  worst")
    with plain_process() as mark:
        for sdk in options.sdk:
            try:
                measured = uvloop.run(measure(loads, runs, sdk, mark))
            except subprocess.CalledProcessError:
                print(f"SDK {sdk} cannot be fetched, and is left out")
                continue
            rows += [{"sdk": sdk} | row(load, measured[load]) for load in loads]
    about["load after"] = round(os.getloadavg()[0], 1)
    print(f"load after {about['load after']}")
    if options.json:
        options.json.write_text(json.dumps({"conditions": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
