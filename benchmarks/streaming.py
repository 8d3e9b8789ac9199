"""What does the way through RunPod's SDK cost, against calling the engine directly?

64 streams at once of 128 tokens each, on the tiny model: first straight from
`AsyncLLM.generate`, then as jobs through the real SDK and a local endpoint, in turns, on one
engine. The ratio is what counts; the machine's speed is in both.
"""

import asyncio
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import requests

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import models

STREAMS, TOKENS, ROUNDS = 64, 128, 5
LONG = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 1.0}
KINDS = {
    "native": {"prompt": "Hello", "stream": True, "sampling_params": LONG},
    "openai": {
        "openai_route": "/v1/completions",
        "openai_input": LONG | {"prompt": "Hello", "stream": True},
    },
}


class Platform:
    """A local endpoint in its own process, so that its work is not done on the worker's time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "local_endpoint", "--port", "0", "--knob", "record_jobs=0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.environ: dict[str, str] = {}
        for line in self.process.stdout:
            if found := re.search(r"\b([A-Z_a-z]+)='?([^']*?)'?$", line.strip()):
                self.environ[found[1]] = found[2]
            if "RUNPOD_WEBHOOK_PING" in self.environ:
                break
        take = self.environ["RUNPOD_WEBHOOK_GET_JOB"]
        self.url = take.split("/job-take/")[0]
        self.session = requests.Session()
        self.session.headers["Authorization"] = "local-api-key"

    def run(self, given: dict[str, Any]) -> str:
        reply = self.session.post(f"{self.url}/run", json={"input": given}, timeout=10)
        return reply.json()["id"]

    def output(self, job: str) -> list[Any]:
        """Wait for a job's end without asking often: each question costs the endpoint time."""
        url = f"{self.url}/status-sync/{job}?wait=60000"
        reply = self.session.get(url, timeout=70).json()
        assert reply["status"] == "COMPLETED", reply
        return reply["output"]

    def round(self, given: dict[str, Any]) -> tuple[float, float]:
        """Run the streams as jobs; returns tokens a second and posts a job."""
        start_s = time.perf_counter()
        jobs = [self.run(given) for _ in range(STREAMS)]
        outputs = [self.output(job) for job in jobs]
        seconds = time.perf_counter() - start_s
        return STREAMS * TOKENS / seconds, statistics.mean(map(len, outputs))


def main() -> None:
    endpoint = Platform()
    os.environ |= endpoint.environ | {
        "RUNPOD_LOG_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    from worker import engine
    from worker.handler import Worker, leave
    from worker.settings import Settings

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
        for delay in ("0", "100")
    }
    with engine.running(settings["0"].args, "tiny") as ready:
        workers = {delay: Worker(chosen, ready) for delay, chosen in settings.items()}
        current = {"delay": "0"}
        asyncio.run(workers["0"].warm_up())

        async def handle(job: dict[str, Any]) -> AsyncIterator[Any]:
            async for batch in workers[current["delay"]].handle(job):
                yield batch

        def drive() -> None:
            try:
                report(endpoint, ready, current)
            finally:
                endpoint.process.terminate()
                leave(0, ready.children)

        threading.Thread(target=drive).start()
        import runpod.serverless

        runpod.serverless.start(
            {
                "handler": handle,
                "return_aggregate_stream": True,
                "concurrency_modifier": lambda _: 2 * STREAMS,
            }
        )


async def direct(client: Any) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    async def one(index: int) -> None:
        params = SamplingParams(**LONG, output_kind=RequestOutputKind.DELTA)
        async for _ in client.generate("Hello", params, f"direct-{time.monotonic()}-{index}"):
            pass

    await asyncio.gather(*(one(index) for index in range(STREAMS)))


def report(endpoint: Platform, ready: Any, current: dict[str, str]) -> None:
    firsts = []
    for _ in range(20):
        start_s = time.perf_counter()
        endpoint.output(endpoint.run(KINDS["openai"] | {"max_batch_size": 50}))
        firsts.append(time.perf_counter() - start_s)
    rates: dict[str, list[float]] = {"direct": []}
    posts: dict[str, float] = {}
    for _ in range(ROUNDS):
        start_s = time.perf_counter()
        ready.submit(direct(ready.client)).result()
        rates["direct"].append(STREAMS * TOKENS / (time.perf_counter() - start_s))
        for delay in ("0", "100"):
            current["delay"] = delay
            for kind, given in KINDS.items():
                name = f"{kind}, MAX_BATCH_DELAY_MS={delay}"
                rate, posts[name] = endpoint.round(given)
                rates.setdefault(name, []).append(rate)
    print(f"{STREAMS} streams x {TOKENS} tokens, tiny model, {ROUNDS} rounds in turns")
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    print(f"{'':34}{'tokens/s':>9}{'of direct':>10}{'posts/job':>10}{'seconds':>9}")
    base = statistics.median(rates["direct"])
    for name, measured in rates.items():
        rate = statistics.median(measured)
        ratio = statistics.median(a / b for a, b in zip(measured, rates["direct"], strict=True))
        row = f"{name:34}{rate:9.0f}{ratio:10.0%}"
        if name in posts:
            row += f"{posts[name]:10.1f}{STREAMS * TOKENS / rate:9.2f}"
        print(row)
    assert base
    print(f"the first of 20 first jobs took {firsts[0] * 1000:.0f} ms, the tenth {firsts[9] * 1000:.0f} ms")


if __name__ == "__main__":
    main()
