"""A worker without an engine: a loop of its own, a task on it, then RunPod's SDK by `worker.start`.

The first argument says what it is to be: `plain`; `published` is without PromptJobLoop; `renamed`
runs on an SDK that counts in another way, `own-loop` on one that makes its own loop; `failed` could
not start, and says SENTENCE. CONCURRENCY is the number of jobs at once. A job yields `yields`
numbers with `pause_s` between them, and after the first waits for a file called `gate`.
"""

import asyncio
import logging
import os
import sys

import uvloop
from prometheus_client import REGISTRY
from runpod.serverless.modules import rp_scale

from worker.errors import WorkerError
from worker.start import sdk
from worker.start.ending import leave


def main(kind: str) -> int:
    logging.basicConfig(level=logging.INFO, format="worker: %(message)s")
    if kind == "failed":
        sdk.fail_one_job(os.environ["SENTENCE"])
        print("error:", os.environ["SENTENCE"], flush=True)
        return 1
    if kind == "published":
        sdk._counts_fresh_jobs_twice = lambda: False
    if kind == "renamed":
        rp_scale.JobScaler.current_occupancy = lambda self: self.job_progress.get_job_count()
    if kind == "own-loop":
        sdk.JobLoop.start = rp_scale.JobScaler.start
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        engine = runner.run(begin())
        try:
            sdk.serve(engine.handle, runner.get_loop(), int(os.environ.get("CONCURRENCY", "100")))
        except WorkerError as error:
            print("error:", error, flush=True)
            return 1
        print(f"after serve: {runner.run(engine.end())}", flush=True)
    lost = REGISTRY.get_sample_value("worker_undelivered_posts_total")
    print(f"undelivered: {lost}", flush=True)
    print("closed", flush=True)
    return 0


async def begin() -> "Engine":
    return Engine()


class Engine:
    """What lives on the loop before the SDK starts."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.beaten = asyncio.Event()
        self.task = asyncio.create_task(self.beat())

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.beaten.set()

    async def end(self) -> str:
        self.beaten.clear()
        await asyncio.wait_for(self.beaten.wait(), 5)
        return "alive" if not self.task.done() else "dead"

    async def handle(self, job):
        task = asyncio.current_task()
        task.add_done_callback(
            lambda _: print(f"job {job['id']} {'stopped' if task.cancelled() else 'ended'}")
        )
        order = job["input"]
        if "variable" in order:
            yield os.environ.get(order["variable"])
            return
        if order.get("probe"):
            same = asyncio.get_running_loop() is self.loop
            yield {"same_loop": same, "uvloop": isinstance(self.loop, uvloop.Loop)}
            self.beaten.clear()
            await self.beaten.wait()
            yield {"task_runs": not self.task.done()}
            return
        for number in range(order["yields"]):
            yield number
            while "gate" in order and not os.path.exists(order["gate"]):  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.02)
            await asyncio.sleep(order.get("pause_s", 0))


if __name__ == "__main__":
    leave(main(sys.argv[1]))
