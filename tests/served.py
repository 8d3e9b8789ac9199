"""A real worker process with a real engine behind a real local endpoint."""

import contextlib
import functools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
import requests

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint, Record
from waiting import is_alive, wait_until

START_S = 240.0  # a cold machine compiles kernels; a warm one needs 20 s
JOB_S = 60.0

# What every engine of the tests has in common: small, exact, quick to start.
ENVIRON = {
    "DTYPE": "float32",
    "ENFORCE_EAGER": "true",
    "MAX_MODEL_LEN": "512",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}

# One job of each kind of route.
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
FIRST_INPUTS = (
    {"openai_route": "/v1/chat/completions", "openai_input": CHAT},
    {"openai_route": "/v1/chat/completions", "openai_input": CHAT | {"stream": True}},
    {"openai_route": "/v1/completions", "openai_input": {"prompt": "Hello", "max_tokens": 5}},
    {"openai_route": "/v1/models"},
    {"openai_route": "/v1/responses", "openai_input": {"input": "Hello", "max_output_tokens": 5}},
    {"openai_route": "/v1/messages", "openai_input": CHAT},
    {"route": "/tokenize", "body": {"prompt": "Hello"}},
    {"route": "/detokenize", "body": {"tokens": [10, 11, 12]}},
    {"route": "/health"},
    {"route": "/metrics"},
)


@dataclass(frozen=True)
class Served:
    """A worker that takes jobs: `endpoint` to give them to, `process` to misuse, `log` to read."""

    endpoint: LocalEndpoint
    process: subprocess.Popen[bytes]
    log_file: Path
    home: Path

    @functools.cached_property
    def client(self) -> openai.OpenAI:
        """The official client; it never retries, so that each failure is seen."""
        return openai.OpenAI(
            base_url=self.endpoint.openai_url,
            api_key=self.endpoint.api_key,
            max_retries=0,
            timeout=JOB_S,
        )

    def run(self, job_input: Any, timeout_s: float = JOB_S) -> Record:
        """Give the worker a job and wait for its end."""
        return self.endpoint.wait_for_end(self.endpoint.submit(job_input), timeout_s)

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """Every process of the worker: itself, the engine's, the SDK's ping."""
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]


@contextlib.contextmanager
def serve(
    environ: Mapping[str, str],
    knobs: Knobs | None = None,
    program: Sequence[str] = ("-m", "worker"),
) -> Iterator[Served]:
    """Start a worker and wait until it takes jobs; afterwards nothing of it is left.

    Raises RuntimeError with the end of its log when it dies or is late.
    """
    with start(environ, knobs, program) as served:
        _wait_ready(served)
        yield served


@contextlib.contextmanager
def start(
    environ: Mapping[str, str],
    knobs: Knobs | None = None,
    program: Sequence[str] = ("-m", "worker"),
) -> Iterator[Served]:
    """Start a worker; afterwards nothing of it is left."""
    with (
        tempfile.TemporaryDirectory() as folder,
        local_endpoint.serve(knobs or Knobs(stop_hold_s=5, take_hold_s=5)) as endpoint,
        contextlib.ExitStack() as stack,
    ):
        home = Path(folder)
        log_file = home / "worker.log"
        kept = ("PATH", "LANG", "OPENBLAS", "PYTHONPATH")  # the last: another SDK
        clean = {k: v for k, v in os.environ.items() if k.startswith(kept)}
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *program],
                env=clean | ENVIRON | endpoint.worker_environ("worker-1", home) | dict(environ),
                cwd=home,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        served = Served(endpoint, process, log_file, home)
        stack.callback(served.client.close)
        family: list[psutil.Process] = []
        try:
            yield served
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                family = served.family()
            process.kill()
            process.wait(10)
            wait_until(lambda: not any(map(is_alive, family)), 5, lambda: [*map(str, family)])


def _wait_ready(served: Served) -> None:
    deadline_s = time.monotonic() + START_S
    # A start that failed talks to the endpoint too: it fails a waiting job.
    while not (served.endpoint.workers() and "phase: ready" in served.log()):
        if served.process.poll() is not None:
            raise RuntimeError(f"the worker died at its start:\n{served.log()[-4000:]}")
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the worker is late:\n{served.log()[-4000:]}")
        time.sleep(0.1)


def text(record: Record) -> str:
    """Join what a native job wrote for its first choice."""
    yields = record.done[-1].value["output"]
    return "".join(token for one in yields for token in one["choices"][0]["tokens"])


def metric(served: Served, name: str) -> int:
    """Return what vLLM itself counts, of all its engines together."""
    metrics = served.run({"route": "/metrics"}).done[-1].value["output"][0]
    found = re.findall(rf"^vllm:{name}\{{.*\}} ([\d.e+]+)$", metrics, re.MULTILINE)
    assert found
    return round(sum(map(float, found)))


def running_requests(served: Served) -> int:
    return metric(served, "num_requests_running")


def cancel(served: Served, job_id: str) -> None:
    """Stop a job as RunPod's clients do."""
    reply = requests.post(
        f"{served.endpoint.url}/cancel/{job_id}",
        headers={"Authorization": f"Bearer {served.endpoint.api_key}"},
        timeout=10,
    )
    assert 200 == reply.status_code
