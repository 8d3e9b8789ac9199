"""What does the way through RunPod's SDK cost, against calling the engine directly?

64 streams at once of 128 tokens each, on the tiny model: straight from `AsyncLLM.generate`, and as
jobs through the real SDK and a local endpoint, in turns, on one engine in one process. The ratio
is what counts; the machine's speed is in both. The clock of the jobs runs from the moment the SDK
starts the first of them (`of direct`), or from its take, with the SDK's polling of up to 0.1 s in
it (`from take`), to the last job's end. The endpoint shares the cores, which no real one does.
"""

import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import local_endpoint
from local_endpoint import LocalEndpoint, Record
from worker import request
from worker.batching import Outbox
from worker.configuration.settings import Settings
from worker.engine import server
from worker.engine.facts import facts_of
from worker.generation.turns import Turns
from worker.handler import WHOLE, Worker
from worker.openai.call import RouteCall
from worker.openai.routes import Routes
from worker.start.ending import leave

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import models

STREAMS, TOKENS, ROUNDS = 64, 128, 12
LONG = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 1.0}
KINDS = {
    "native": {"prompt": "Hello", "stream": True, "sampling_params": LONG},
    "openai": {
        "openai_route": "/v1/completions",
        "openai_input": LONG | {"prompt": "Hello", "stream": True},
    },
}
DELAYS = ("0", "100")


def main() -> None:
    """Be the platform: hand out the jobs, and read the times in its records."""
    with tempfile.TemporaryDirectory() as home, local_endpoint.serve() as endpoint:
        environ = endpoint.worker_environ("worker-1", Path(home)) | {"RUNPOD_LOG_LEVEL": "ERROR"}
        worker = subprocess.Popen(
            [sys.executable, str(Path(__file__)), "worker"],
            env=os.environ | environ | {"VLLM_CPU_KVCACHE_SPACE": "1"},
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            endpoint.wait_ready(timeout_s=240)
            report(endpoint)
        finally:
            worker.terminate()


def report(endpoint: LocalEndpoint) -> None:
    firsts = [seconds(run(endpoint, [KINDS["openai"]])) * 1000 for _ in range(20)]
    run(endpoint, [{"starts": True}])
    rates: dict[str, list[float]] = {"AsyncLLM.generate": []}
    from_take: dict[str, list[float]] = {}
    posts: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):
        (done,) = run(endpoint, [{"direct": STREAMS}])
        rates["AsyncLLM.generate"].append(STREAMS * TOKENS / done.done[-1].value["output"][0])
        (done,) = run(endpoint, [{"no sdk": STREAMS}])
        rates.setdefault("openai, without SDK and posts", []).append(
            STREAMS * TOKENS / done.done[-1].value["output"][0]
        )
        for delay in DELAYS:
            run(endpoint, [{"delay": delay}])
            for kind, given in KINDS.items():
                name = f"{kind}, MAX_BATCH_DELAY_MS={delay}"
                records = run(endpoint, [given] * STREAMS)
                (starts,) = run(endpoint, [{"starts": True}])
                start_s = min(starts.done[-1].value["output"][0])
                rates.setdefault(name, []).append(STREAMS * TOKENS / seconds(records, start_s))
                from_take.setdefault(name, []).append(STREAMS * TOKENS / seconds(records))
                a_job = statistics.mean(len(record.stream) for record in records)
                posts[name] = a_job, a_job / statistics.mean(seconds([r]) for r in records)
    print(f"{STREAMS} streams x {TOKENS} tokens, tiny model, medians of {ROUNDS} rounds in turns;")
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    print(f"{'':32}{'tokens/s':>9}{'of direct':>10}{'from take':>10}{'posts/job':>10}{'/s':>6}")
    direct = rates["AsyncLLM.generate"]
    for name, measured in rates.items():
        row = f"{name:32}{statistics.median(measured):9.0f}{ratio(measured, direct):10.0%}"
        if name in posts:
            a_job, a_second = posts[name]
            row += f"{ratio(from_take[name], direct):10.0%}{a_job:10.1f}{a_second:6.1f}"
        print(row)
    print(
        f"of the first 20 jobs the first took {firsts[0]:.0f} ms and the tenth {firsts[9]:.0f} ms"
    )


def run(endpoint: LocalEndpoint, inputs: list[dict[str, Any]]) -> list[Record]:
    jobs = [endpoint.submit(given) for given in inputs]
    return [endpoint.wait_for_end(job, 120) for job in jobs]


def seconds(records: list[Record], start_s: float | None = None) -> float:
    """Return the time to the last end, from `start_s` or from the first take."""
    taken = [record.taken_s for record in records if record.taken_s is not None]
    ended = [record.done_s for record in records if record.done_s is not None]
    return max(ended) - (min(taken) if start_s is None else start_s)


def ratio(measured: list[float], base: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(measured, base, strict=True))


def worker() -> None:
    """Be a worker whose jobs may also be: call the engine directly, or use another delay."""
    settings = {
        delay: Settings.from_env(
            {
                "MODEL_NAME": str(models.path("tiny")),
                "DTYPE": "float32",
                "ENFORCE_EAGER": "true",
                "MAX_MODEL_LEN": "512",
                "MAX_BATCH_DELAY_MS": delay,
            }
        )
        for delay in DELAYS
    }
    with server.running(settings["0"].args, "tiny") as ready:
        workers = {delay: Worker(chosen, ready) for delay, chosen in settings.items()}
        chosen = workers["0"]
        starts: list[float] = []
        asyncio.run(chosen.warm_up())

        async def handle(job: Mapping[str, Any]) -> AsyncIterator[Any]:
            nonlocal chosen
            if "direct" in job["input"]:
                start_s = time.perf_counter()
                await asyncio.wrap_future(ready.submit(direct(ready.client)))
                yield time.perf_counter() - start_s
            elif "no sdk" in job["input"]:
                start_s = time.perf_counter()
                await asyncio.wrap_future(ready.submit(without_sdk(ready)))
                yield time.perf_counter() - start_s
            elif "delay" in job["input"]:
                chosen = workers[job["input"]["delay"]]
                yield "ok"
            elif "starts" in job["input"]:
                yield starts.copy()
                starts.clear()
            else:
                starts.append(time.monotonic())
                async for batch in chosen.handle(job):
                    yield batch

        import runpod.serverless
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        runpod.serverless.start(
            {
                "handler": handle,
                "return_aggregate_stream": True,
                "concurrency_modifier": lambda _: 2 * STREAMS,
            }
        )
        leave(0, ready.children)


async def direct(client: Any) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    async def one(index: int) -> None:
        params = SamplingParams(**LONG, output_kind=RequestOutputKind.DELTA)
        async for _ in client.generate("Hello", params, f"direct-{time.monotonic()}-{index}"):
            pass

    await asyncio.gather(*(one(index) for index in range(STREAMS)))


async def without_sdk(ready: server.Engine) -> None:
    """Answer the OpenAI jobs as the worker does, and post nothing."""
    routes = Routes(ready.app, ())
    rules = facts_of(ready.client.vllm_config), Turns(STREAMS, STREAMS)

    async def one(index: int) -> None:
        job = {"id": f"app-{time.monotonic()}-{index}", "input": KINDS["openai"]}
        asked = request.read(job, WHOLE)
        assert isinstance(asked, request.RouteRequest)
        call = RouteCall(asked, ready, routes, *rules, model=str(models.path("tiny")), raw=True)
        await call.answer(Outbox(WHOLE))

    await asyncio.gather(*(one(index) for index in range(STREAMS)))


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
