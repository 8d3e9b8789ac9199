"""What does the local endpoint cost, against the worker it measures?

The echo worker of the tests, with the real SDK, streams jobs of many posts, one after the other
and many at once. CPU time is read from the kernel, for the endpoint's process and for the worker's
own, not its heartbeat's. The goal: the endpoint needs less than 1 ms a post, and less than the
worker, so that it hardly bends what is measured through it. `recorded` is with values and requests
kept, as tests have it; `plain` is the command line's default.
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

import psutil

import _report
import local_endpoint
from local_endpoint import Knobs, LocalEndpoint

ECHO = Path(__file__).parents[1] / "tests" / "local_endpoint" / "echo_worker.py"
POSTS = 100  # a job
SIZES = {"1 event, 200 B": 200, "50 events, 10 KB": 10_000}
AT_ONCE = (1, 16)
JOBS = {1: 8, 16: 64}
COLUMNS = {
    "endpoint_ms": "endpoint, ms/post",
    "worker_ms": "worker, ms/post",
    "posts_per_s": "posts/s",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = _report.options(parser)
    command = ["env", "RUNPOD_LOG_LEVEL=ERROR", "ECHO_CONCURRENCY=32", sys.executable, str(ECHO)]
    about = {"posts of a job": POSTS, "rounds": options.rounds}
    with (
        _report.question(__file__, __doc__, COLUMNS, options, about) as answer,
        local_endpoint.serve(Knobs(record_jobs=64), command=command) as endpoint,
    ):
        run(endpoint, 200, 1, 1)
        loads = list(itertools.product(SIZES, AT_ONCE, ("recorded", "plain")))
        answer.rows = [_report.Row({"post": a, "at once": b, "": c}) for a, b, c in loads]
        for _ in range(options.rounds):
            for (name, at_once, mode), row in zip(loads, answer.rows, strict=True):
                endpoint.set_recording(mode == "recorded")
                row.add(run(endpoint, SIZES[name], at_once, JOBS[at_once]))


def run(endpoint: LocalEndpoint, size: int, at_once: int, jobs: int) -> dict[str, float]:
    """Return the CPU milliseconds of a post on both sides, and the posts a second."""
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
    return {
        "endpoint_ms": own_s / posts * 1000,
        "worker_ms": worker_s / posts * 1000,
        "posts_per_s": posts / wall_s,
    }


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
