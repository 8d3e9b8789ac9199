"""What the worker counts, beside vLLM's own metrics and in the same exposition.

Nothing here is written once a token: a job's counts are added up when it ends (`worker.record`).
"""

import asyncio
import threading
import time
from http.server import ThreadingHTTPServer

from prometheus_client import Counter, Gauge, Histogram, MetricsHandler

from worker.errors import StartError

LAG_EVERY_S = 0.25
_LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

JOBS = Counter(
    "worker_jobs",
    "Jobs that ended, by dialect (native, openai, huggingface, ollama, batch), outcome (completed, "
    "failed, cancelled, lost: with the engine) and, where it failed, error: its type.",
    ["dialect", "outcome", "error"],
)
RUNNING = Gauge(
    "worker_jobs_running",
    "Jobs that run, by dialect and state (waiting: nothing of the answer has left; answering).",
    ["dialect", "state"],
)
DURATION = Histogram(
    "worker_job_duration_seconds",
    "From a job's arrival to its end, by dialect.",
    ["dialect"],
    buckets=_LONG_S,
)
FIRST_POST = Histogram(
    "worker_first_post_seconds",
    "From a stream's arrival to its first post with output, by dialect.",
    ["dialect"],
    buckets=_LONG_S,
)
POSTS = Counter("worker_posts", "Posts of jobs that ended, by dialect.", ["dialect"])
POSTED = Counter("worker_posted_bytes", "What these posts carried, by dialect.", ["dialect"])
BATCH_WAIT = Counter(
    "worker_batch_wait_seconds",
    "How long the oldest part of each of these posts had waited to leave, by dialect.",
    ["dialect"],
)
TURN_WAIT = Histogram(
    "worker_turn_wait_seconds",
    "How long requests that need a turn waited for it, by limit (MAX_CHAINS, MAX_COSTLY_CHAINS).",
    ["limit"],
    buckets=_LONG_S,
)
LINES = Counter(
    "worker_batch_lines",
    "Lines of batches that ended, by outcome (completed, failed).",
    ["outcome"],
)
UNDELIVERED = Counter(
    "worker_undelivered_posts", "Posts that RunPod did not take, however often they were tried."
)
LOOP_LAG = Histogram(
    "worker_loop_lag_seconds",
    f"How late the event loop was, asked each {LAG_EVERY_S} s.",
    buckets=_SHORT_S,
)
START = Gauge("worker_start_phase_seconds", "How long each phase of the start took.", ["phase"])


def serve(port: int) -> None:
    """Serve all metrics of this process on a port, on threads. Raises StartError."""
    try:
        server = ThreadingHTTPServer(("", port), _Plain)
    except OSError as error:
        raise StartError(f"METRICS_PORT={port} cannot be opened: {error.strerror}.") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


class _Plain(MetricsHandler):
    """Answers in the plain format, whatever is asked for.

    As OpenMetrics prometheus_client 0.26 writes vllm_… for vllm:…, which no dashboard asks for.
    """

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        del self.headers["Accept"]
        super().do_GET()


def begin() -> None:
    """Forget the jobs of the warm-up, and show those that may come as none so far."""
    for metric in (JOBS, DURATION, FIRST_POST, POSTS, POSTED, BATCH_WAIT, TURN_WAIT):
        metric.clear()
    for limit in ("MAX_CHAINS", "MAX_COSTLY_CHAINS"):
        TURN_WAIT.labels(limit)
    for outcome in ("completed", "failed"):
        LINES.labels(outcome)
    for dialect in ("native", "openai", "batch"):
        for outcome in ("completed", "cancelled", "lost"):
            JOBS.labels(dialect, outcome, "")
        for metric in (DURATION, FIRST_POST, POSTS, POSTED, BATCH_WAIT):
            metric.labels(dialect)


async def watch_loop() -> None:
    """Sample the lag of the loop that this runs on, until it is cancelled."""
    while True:
        asked_s = time.monotonic()
        await asyncio.sleep(LAG_EVERY_S)
        LOOP_LAG.observe(max(time.monotonic() - asked_s - LAG_EVERY_S, 0.0))
