"""Traces: a job, and in it each request of the engine, at a receiver in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import models
from served import serve
from waiting import wait_until

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

RECEIVER = Path(__file__).parents[1] / "trace_receiver.py"


@contextmanager
def receiving(folder: Path) -> Iterator[tuple[str, Path]]:
    """Give the address of a receiver, and the file that its spans go to."""
    spans = folder / "spans"
    with (
        spans.open("w") as file,
        subprocess.Popen([sys.executable, RECEIVER], stdout=file) as process,
    ):
        wait_until(lambda: spans.read_text().endswith("\n"))
        try:
            yield f"http://127.0.0.1:{spans.read_text().strip()}", spans
        finally:
            process.kill()


def read(spans: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in spans.read_text().splitlines()[1:]]


def test_a_job_and_its_requests_are_one_trace(tmp_path: Path) -> None:
    """Each request that the engine answers is a part of its job's trace, on every path."""
    with receiving(tmp_path) as (address, spans):
        environ = {"MODEL_NAME": str(models.path("tiny")), "OTLP_TRACES_ENDPOINT": address}
        with serve(environ) as served:
            records = {
                "native": served.run({"prompt": "Hello"}),
                "beams": served.run(
                    {"prompt": "Hello", "sampling_params": {"num_beams": 2, "max_tokens": 2}}
                ),
                "openai": served.run(
                    {
                        "openai_route": "/v1/completions",
                        "openai_input": {"prompt": "Hello", "max_tokens": 2},
                    }
                ),
                "failed": served.run({"prompt": "Hello", "sampling_params": {"nope": 1}}),
            }
            served.process.terminate()
            assert 0 == served.process.wait(60)
        found = read(spans)

    jobs = {one["attributes"]["job"]: one for one in found if one["name"] == "job"}
    for kind, record in records.items():
        job = jobs[record.job_id]
        inner = [one for one in found if one["parent"] == job["id"]]
        assert {job["trace"]} >= {one["trace"] for one in inner}
        assert {"native": 1, "beams": 3, "openai": 1, "failed": 0}[kind] == len(inner)
