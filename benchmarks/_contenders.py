"""Who is measured, each started by one block and asked in one way.

All have the tiny model, eager, 1,024 tokens, 256 sequences at once and the same requests. A stream
is noted as its pieces arrive: posts of the worker and of the proxy, chunks of `vllm serve`, outputs
of AsyncLLM.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvloop

import _report
from _stand_in import LEAVE_S, START_S, Platform, Stream, keep_time, serving
from local_endpoint.process import free_port
from local_endpoint.usage import output_tokens

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import models

SDK = metadata.version("runpod")
SDKS = (SDK, "1.12.0")
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1"}
OPTIONS = {"max_model_len": 1024, "max_num_seqs": 256}
MODEL = str(models.path("tiny"))
WORKER = CPU | {"MODEL_NAME": MODEL, "ENFORCE_EAGER": "true"}
WORKER |= {name.upper(): str(value) for name, value in OPTIONS.items()}
AT_ONCE = "256"  # jobs, where a burst is to begin at once
SERVER = "vllm.entrypoints.launchers.api_server.entry"  # what `vllm serve` runs
OPENAI, NATIVE = "worker, OpenAI", "worker, native"
EACH, FINAL = "AsyncLLM, token by token", "AsyncLLM, one output"
SERVE, PROXY = "vllm serve", "proxy"

Run = Callable[[int, int, float], Awaitable[list[Stream]]]


@dataclass(frozen=True)
class Contender:
    """`run` asks for so many streams of so many tokens over such a round trip in milliseconds.

    `pids` are its processes, with all of their children.
    """

    name: str
    pids: tuple[int, ...]
    run: Run


def long(tokens: int) -> dict[str, Any]:
    return {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}


def openai(tokens: int) -> dict[str, Any]:
    """Return a job with a stream of so many greedy tokens."""
    body = {"prompt": "Hello", "stream": True, "stream_options": {"include_usage": True}}
    return {"openai_route": "/v1/completions", "openai_input": body | long(tokens)}


def native(tokens: int) -> dict[str, Any]:
    return {"prompt": "Hello", "stream": True, "sampling_params": long(tokens)}


def of_platform(
    name: str, stand_in: Platform, job: Callable[[int], Any], *more_pids: int
) -> Contender:
    async def run(streams: int, tokens: int, round_trip_ms: float) -> list[Stream]:
        await stand_in.is_asked.wait()
        return await stand_in.run(job(tokens), streams, tokens, round_trip_ms)

    return Contender(name, (stand_in.pid, *more_pids), run)


@contextlib.asynccontextmanager
async def worker(sdk: str = SDK, **environ: str) -> AsyncIterator[list[Contender]]:
    """Start the worker. Gives it as it is asked on each path."""
    async with serving(WORKER | environ, sdk) as stand_in:
        yield [of_platform(OPENAI, stand_in, openai), of_platform(NATIVE, stand_in, native)]


@contextlib.asynccontextmanager
async def engine() -> AsyncIterator[list[Contender]]:
    """Start vLLM's AsyncLLM in a process that does nothing else."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        try:
            pid = await loop.run_in_executor(process, _start_engine)

            def contender(name: str) -> Contender:
                async def run(streams: int, tokens: int, _round_trip_ms: float) -> list[Stream]:
                    asked = functools.partial(_generate, streams, tokens, name == FINAL)
                    return await loop.run_in_executor(process, asked)

                return Contender(name, (pid,), run)

            yield [contender(EACH), contender(FINAL)]
        finally:
            await loop.run_in_executor(process, _end_engine)


@functools.cache
def _plain_engine() -> tuple[asyncio.Runner, Any]:
    os.environ |= CPU | {"VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    args = AsyncEngineArgs(MODEL, enforce_eager=True, **OPTIONS)

    async def start() -> AsyncLLM:
        return AsyncLLM.from_engine_args(args)

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    return runner, runner.run(start())


def _start_engine() -> int:
    _plain_engine()
    return os.getpid()


def _end_engine() -> None:
    if _plain_engine.cache_info().currsize:
        _plain_engine()[1].shutdown()
        _plain_engine.cache_clear()


def _generate(streams: int, tokens: int, is_final: bool) -> list[Stream]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    runner, plain = _plain_engine()
    kind = RequestOutputKind.FINAL_ONLY if is_final else RequestOutputKind.DELTA
    params = SamplingParams(**long(tokens), output_kind=kind)

    async def one(name: str) -> Stream:
        stream = Stream()
        count = 0
        async for output in plain.generate("Hello", params, name):
            count += len(output.outputs[0].token_ids)
            stream.posts_s.append(time.monotonic())
        assert count == tokens, f"{count} tokens came of {tokens}"
        return stream

    async def every() -> list[Stream]:
        return await asyncio.gather(*(one(f"{time.monotonic()}-{i}") for i in range(streams)))

    return runner.run(every())


@contextlib.asynccontextmanager
async def over_http(
    name: str, program: list[str], port: str, environ: Mapping[str, str]
) -> AsyncIterator[Contender]:
    """Start a server of OpenAI's routes, and wait until it is healthy.

    Raises RuntimeError with the end of its log.
    """
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as home:
        log = Path(home, "log")
        with log.open("wb") as file:  # noqa: ASYNC230
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *program),
                env=os.environ | CPU | {"TMPDIR": home} | environ,
                stdout=file,
                stderr=file,
                preexec_fn=os.setpgrp,  # a session would be an autogroup
            )
        try:
            # uvicorn closes a connection that was idle for 5 s: it must not be used then.
            unlimited = aiohttp.TCPConnector(limit=0, keepalive_timeout=1)
            async with aiohttp.ClientSession(connector=unlimited) as session:
                until_s = time.monotonic() + START_S
                while not await _is_healthy(session, url):
                    if process.returncode is not None or time.monotonic() > until_s:
                        raise RuntimeError(log.read_text(errors="replace")[-4000:])  # noqa: ASYNC240
                    await asyncio.sleep(0.05)

                async def run(streams: int, tokens: int, _round_trip_ms: float) -> list[Stream]:
                    asked = (_ask(session, url, tokens) for _ in range(streams))
                    return await asyncio.gather(*asked)

                yield Contender(name, (process.pid,), run)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), LEAVE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _is_healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/health") as reply:
            return reply.status == 200
    except aiohttp.ClientError:
        return False


async def _ask(session: aiohttp.ClientSession, url: str, tokens: int) -> Stream:
    job = openai(tokens)
    stream = Stream()
    async with session.post(url + job["openai_route"], json=job["openai_input"]) as reply:
        reply.raise_for_status()
        async for chunk in reply.content.iter_any():
            stream.add(chunk)
    if output_tokens(b"".join(stream.posts).decode()) != tokens:
        raise RuntimeError(f"a stream is not whole: {stream.posts[-1]!r}")
    return stream


@contextlib.asynccontextmanager
async def vllm_serve() -> AsyncIterator[tuple[Contender, str]]:
    """Start vLLM's own server. Gives it, and its URL."""
    port = str(free_port())
    options = (f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items())
    program = ["-m", SERVER, "--model", MODEL, "--port", port, *options]
    program += ["--enforce-eager", "--disable-uvicorn-access-log"]
    async with over_http(SERVE, program, port, {}) as contender:
        yield contender, f"http://127.0.0.1:{port}"


def proxied(url: str) -> contextlib.AbstractAsyncContextManager[Platform]:
    """Start a worker that passes on what this server answers."""
    program = str(Path(__file__).with_name("_proxy.py"))
    return serving({"VLLM_URL": url, "MAX_CONCURRENCY": AT_ONCE}, SDK, program)


def in_rounds(
    file: str,
    doc: str,
    columns: dict[str, str],
    compare: Callable[[int], Coroutine[Any, Any, list[_report.Row]]],
    rounds: int,
) -> None:
    """Answer a question from the command line, with so many rounds where it names no number."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    options = _report.options(parser)
    about = platform() | {"rounds": options.rounds}
    with _report.question(file, doc, columns, options, about) as answer:
        answer.rows = uvloop.run(compare(options.rounds))


def platform() -> dict[str, str]:
    """Let the platform run before all else, and return what is said of it."""
    return {"platform keeps time": "yes" if keep_time() else "no"}


async def measure(
    contender: Contender, streams: int, tokens: int, round_trip_ms: float = 0
) -> dict[str, float]:
    """Run it once, and return what the run shows."""
    # An engine looks for work without sleep for a second after its last step.
    await asyncio.sleep(random.uniform(1.1, 1.2))
    before = host_cpu_s(contender), time.process_time()
    measured = await contender.run(streams, tokens, round_trip_ms)
    own_s = time.process_time() - before[1]  # first: to look at processes costs something
    host_s = host_cpu_s(contender) - before[0]
    per_token = 1e6 / (streams * tokens)
    return times(measured, tokens) | {
        "host_us_per_token": host_s * per_token,
        "platform_us_per_token": own_s * per_token,
    }


def times(streams: list[Stream], tokens: int) -> dict[str, float]:
    first_s = [stream.posts_s[0] - stream.asked_s for stream in streams]
    longest_s = [
        max((b - a for a, b in itertools.pairwise(stream.posts_s)), default=0.0)
        for stream in streams
    ]
    total_s = max(stream.posts_s[-1] for stream in streams) - streams[0].asked_s
    return {
        "tokens_per_s": len(streams) * tokens / total_s,
        "posts": statistics.mean(len(stream.posts_s) for stream in streams),
        "first_p50_ms": 1000 * statistics.median(first_s),
        "first_last_ms": 1000 * max(first_s),
        "wait_p99_ms": 1000 * sorted(longest_s)[int(0.99 * (len(longest_s) - 1))],
        "wait_worst_ms": 1000 * max(longest_s),
    }


def tree(contender: Contender) -> list[psutil.Process]:
    """Return its processes and all of their children."""
    own = [psutil.Process(pid) for pid in contender.pids]
    return [*own, *(child for process in own for child in process.children(recursive=True))]


def host_cpu_s(contender: Contender) -> float:
    """Return the CPU seconds of what is not vLLM's engine core or its workers."""
    total = 0.0
    for process in tree(contender):
        with contextlib.suppress(psutil.NoSuchProcess):
            if not process.name().startswith("VLLM::"):
                used = process.cpu_times()
                total += used.user + used.system
    return total


def memory_mb(contender: Contender) -> float:
    """Return the memory of all of its processes; what they share counts once."""
    return sum(process.memory_full_info().pss for process in tree(contender)) / 1e6
