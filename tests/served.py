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
from local_endpoint.process import free_port
from waiting import is_alive, wait_until

START_S = 240.0  # a cold machine compiles kernels; a warm one needs 20 s
JOB_S = 60.0
LOG = "worker.log"
DOOR_KEY = "the-doors-key"
ORIGIN = "https://page.example"  # whose pages may ask the door

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
        return family_of(self.process)


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
        process = stack.enter_context(
            _running(endpoint.worker_environ("worker-1", home) | dict(environ), home, program)
        )
        served = Served(endpoint, process, home / LOG, home)
        stack.callback(served.client.close)
        yield served


@contextlib.contextmanager
def joined(served: Served, name: str, environ: Mapping[str, str], home: Path) -> Iterator[Served]:
    """Start one more worker of the same endpoint, and wait until it takes jobs."""
    own = served.endpoint.worker_environ(name, home) | dict(environ)
    with _running(own, home, ("-m", "worker")) as process:
        neighbour = Served(served.endpoint, process, home / LOG, home)
        _wait_ready(neighbour)
        yield neighbour


@dataclass(frozen=True)
class Door:
    """A worker that answers HTTP requests itself."""

    url: str
    process: subprocess.Popen[bytes]
    log_file: Path

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client, with its own retries."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1", timeout=JOB_S, **{"api_key": DOOR_KEY} | options
        )

    def health(self) -> int:
        """The status of the health check, 0 where nobody answers."""
        try:
            return requests.get(f"{self.url}/ping", timeout=5).status_code
        except (requests.ConnectionError, requests.Timeout):
            return 0

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")


@contextlib.contextmanager
def start_door(environ: Mapping[str, str]) -> Iterator[Door]:
    """Start a worker with WORKER_MODE=load_balancer; afterwards nothing of it is left."""
    port = str(free_port())
    own = {
        "WORKER_MODE": "load_balancer",
        "PORT": port,
        "API_KEY": DOOR_KEY,
        "ALLOWED_ORIGINS": f'["{ORIGIN}"]',
    }
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        everything = {"HOME": folder, **own, **environ}
        with _running(everything, home, ("-m", "worker")) as process:
            yield Door(f"http://127.0.0.1:{port}", process, home / LOG)


@contextlib.contextmanager
def serve_door(environ: Mapping[str, str]) -> Iterator[Door]:
    """Start one and wait until it is ready."""
    with start_door(environ) as door:
        wait_until(lambda: door.health() == 200 or door.process.poll() is not None, START_S)
        assert door.process.poll() is None, door.log()[-4000:]
        yield door


@contextlib.contextmanager
def _running(
    environ: Mapping[str, str], home: Path, program: Sequence[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of ours; afterwards nothing of it is left."""
    kept = ("PATH", "LANG", "OPENBLAS", "PYTHONPATH")  # the last: another SDK
    clean = {k: v for k, v in os.environ.items() if k.startswith(kept)}
    with (home / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *program],
            env=clean | ENVIRON | dict(environ),
            cwd=home,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,  # a session would be an autogroup: see local_endpoint/process.py
        )
    family: list[psutil.Process] = []
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = family_of(process)
        process.kill()
        process.wait(10)
        wait_until(lambda: not any(map(is_alive, family)), 5, lambda: [*map(str, family)])


def family_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Every process of a worker: itself, the engine's, the SDK's ping."""
    main = psutil.Process(process.pid)
    return [main, *main.children(recursive=True)]


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
