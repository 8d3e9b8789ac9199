"""What does the local endpoint cost, against the worker it measures?

The echo worker of the tests, with the real SDK, streams jobs of many posts, one after the other
and many at once. CPU time is read from the kernel, for the endpoint's process and for the worker's
own, not its heartbeat's. The goal: the endpoint needs less than 1 ms a post, and less than the
worker, so that it hardly bends what is measured through it. `recorded` is with values and requests
kept, as tests have it; `plain` is the command line's default.
"""

import os
import platform
import sys
import time
from pathlib import Path

import psutil

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint

ECHO = Path(__file__).parents[1] / "tests" / "local_endpoint" / "echo_worker.py"
POSTS = 100  # a job
SIZES = {"1 event, 200 B": 200, "50 events, 10 KB": 10_000}
AT_ONCE = (1, 16)
JOBS = {1: 8, 16: 64}


def main() -> None:
    command = ["env", "RUNPOD_LOG_LEVEL=ERROR", "ECHO_CONCURRENCY=32", sys.executable, str(ECHO)]
    print("CPU time of one stream post; the echo worker with the real SDK, on loopback;")
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, ",
        end="",
    )
    print(f"load before {os.getloadavg()[0]:.1f}; a job has {POSTS} posts")
    print(f"{'':20}{'at once':>8}{'':>10}{'endpoint':>10}{'worker':>9}{'posts/s':>9}")
    with local_endpoint.serve(Knobs(record_jobs=64), command=command) as endpoint:
        run(endpoint, 200, 1, 1)
        for name, size in SIZES.items():
            for at_once in AT_ONCE:
                for mode in ("recorded", "plain"):
                    endpoint.set_recording(mode == "recorded")
                    own_ms, worker_ms, rate = run(endpoint, size, at_once, JOBS[at_once])
                    row = f"{name:20}{at_once:8}{mode:>10}"
                    print(f"{row}{own_ms:7.2f} ms{worker_ms:6.2f} ms{rate:9.0f}")


def run(endpoint: LocalEndpoint, size: int, at_once: int, jobs: int) -> tuple[float, float, float]:
    """Give the CPU milliseconds of a post at the endpoint and at the worker, and posts a second."""
    text = "data: " + "x" * (size - 22) + "\n\n"
    worker = psutil.Process(endpoint.state()["workers"][0]["pid"])
    own = psutil.Process()
    before = cpu_s(own), cpu_s(worker), time.monotonic()
    for _ in range(jobs // at_once):
        started = [endpoint.submit({"yields": [text] * POSTS}) for _ in range(at_once)]
        for job in started:
            while not endpoint.record(job).status.is_final:
                time.sleep(0.02)
    after = cpu_s(own), cpu_s(worker), time.monotonic()
    own_s, worker_s, wall_s = (b - a for a, b in zip(before, after, strict=True))
    posts = jobs * POSTS
    return own_s / posts * 1000, worker_s / posts * 1000, posts / wall_s


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
