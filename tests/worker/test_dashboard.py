"""The dashboard in docs/ asks for metrics that there are, in queries that Prometheus takes."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

import models
from local_endpoint.process import free_port
from served import serve
from waiting import wait_until

pytestmark = pytest.mark.timeout(180)

DOCS = Path(__file__).parents[2] / "docs"
PANELS = json.loads((DOCS / "grafana-dashboard.json").read_text())["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
# All metrics of a worker without its engine: vLLM's own logger of them, and two jobs' records.
METRICS = f"""
import asyncio, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.metrics.loggers import PrometheusStatLogger
from worker import metrics
from worker.batching import WHOLE, Outbox
from worker.errors import RequestError
from worker.record import Record, Usage
from worker.request import NativeRequest

class Call:
    usage = Usage()

async def jobs():
    for error in (None, RequestError("No.")):
        outbox = Outbox(WHOLE)
        with Record(NativeRequest("job", WHOLE, stream=True, model=None), Call()) as record:
            outbox.sent_tokens = 1
            record.posted(outbox)
            if error:
                record.failed(error)

config = EngineArgs({str(models.path("tiny"))!r}, dtype="float32").create_engine_config()
PrometheusStatLogger(config)
metrics.begin()
metrics.START.labels("loading the model").set(1)
asyncio.run(jobs())
metrics.serve(int(sys.argv[1]))
print("serving", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port on which all metrics are served."""
    port = free_port()
    with running(sys.executable, "-c", METRICS, str(port)) as process:
        assert process.stdout is not None
        assert any(line == b"serving\n" for line in process.stdout)
        yield port


def test_it_asks_for_what_there_is(port: int) -> None:
    """Each name in its queries is that of a series of vLLM's or the worker's."""
    found = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
    there = set(re.findall(r"^([a-z_:]+)[ {]", found, re.MULTILINE))
    asked = {name for query in QUERIES for name in re.findall(r"\b(?:worker_|vllm:)\w+", query)}

    assert set() == asked - there
    assert {"worker_jobs_total", "vllm:kv_cache_usage_perc"} <= asked


@pytest.fixture(scope="module")
def workers_port() -> Iterator[int]:
    """The port of a real worker's metrics, after a stream, an answer in one piece and a mistake."""
    port = free_port()
    with serve({"MODEL_NAME": str(models.path("tiny")), "METRICS_PORT": str(port)}) as served:
        for given in ({"prompt": "Hello", "stream": True}, {"prompt": "Hello"}, {"prompt": 5}):
            served.run(given)
        yield port


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not shutil.which("prometheus"), reason="there is no Prometheus")
@pytest.mark.parametrize("source", ["port", "workers_port"])
def test_prometheus_answers(request: pytest.FixtureRequest, source: str, tmp_path: Path) -> None:
    """A real Prometheus that asks METRICS_PORT has an answer to each of its queries."""
    port = request.getfixturevalue(source)
    config = tmp_path / "prometheus.yml"
    scrape = {"job_name": "worker", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    interval = {"scrape_interval": "1s"}
    config.write_text(json.dumps({"global": interval, "scrape_configs": [scrape]}))  # JSON is YAML
    own = f"127.0.0.1:{free_port()}"

    def answer(query: str) -> list[Any]:
        query = query.replace("$__rate_interval", "30s").replace("$instance", ".*")
        with contextlib.suppress(requests.ConnectionError):  # it is starting
            url = f"http://{own}/api/v1/query"
            reply = requests.get(url, params={"query": query}, timeout=30)
            if reply.status_code != 503:  # the same
                assert 200 == reply.status_code, reply.text
                result: list[Any] = reply.json()["data"]["result"]
                return result
        return []

    with running(
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={own}",
    ):
        wait_until(lambda: answer("count_over_time(worker_loop_lag_seconds_count[1m]) > 2"), 90)
        silent = [query for query in QUERIES if not answer(query)]

    assert [] == silent
