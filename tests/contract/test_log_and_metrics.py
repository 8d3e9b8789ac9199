"""What a real worker tells of its jobs: a line in its log, and metrics."""

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import models
from served import CHAT, Served, cancel, serve
from waiting import wait_until

pytestmark = pytest.mark.timeout(300)

LONG = {
    "prompt": "Hello",
    "stream": True,
    "sampling_params": {"max_tokens": 400, "ignore_eos": True},
}
COMPLETION = {"prompt": "Hello", "max_tokens": 5, "ignore_eos": True}
# Printed, not logged: libraries in C++, an interpreter that vLLM starts, bars, the SDK's banner.
FOREIGN = ("[Gloo]", "[W", "Triton is installed", "Loading safetensors", "--- Starting")
FAILING: dict[str, Any] = {
    "unreadable": {"prompt": 7},
    "refused before the engine": {"prompt": "Hello", "sampling_params": {"top_p": 7}},
    "too long": {"prompt": "Hello " * 2000},
    "no such model": {"prompt": "Hello", "model": "nobody"},
    "no such route": {"route": "/nowhere"},
    "refused by vLLM": {"openai_route": "/v1/completions", "openai_input": {"prompt": 7.5}},
    "a stream": {
        "openai_route": "/v1/chat/completions",
        "openai_input": CHAT | {"stream": True, "model": "nobody"},
    },
}


def lines_of(served: Served, job_id: str) -> list[str]:
    """Return the worker's own lines about a job, when there is one."""

    def found() -> list[str]:
        return [x for x in served.log().splitlines() if x.startswith(f"worker: job {job_id} ")]

    wait_until(lambda: bool(found()), 30)
    return found()


def exposition(served: Served) -> str:
    text = served.run({"route": "/metrics"}).done[-1].value["output"][0]
    assert isinstance(text, str)
    return text


def test_what_the_start_measured(tiny: Served) -> None:
    """One line has the cache that vLLM logs and the phases, but nothing that a CPU lacks."""
    lines = re.findall(r"^measured: (.*)$", tiny.log(), re.MULTILINE)
    figures = json.loads(lines[0])
    logged = re.search(r"KV cache size: ([\d,]+) tokens,.*request: ([\d.]+)x", tiny.log())

    assert 1 == len(lines)
    assert logged
    assert logged.groups() == (f"{figures['tokens']:,}", f"{figures['at_once']:.2f}")
    assert ("cpu", 512) == (figures["card"], figures["max_model_len"])
    assert 0 < figures["phases_s"]["loading the model"]
    assert not {"weights", "activations", "graphs", "cache"} & figures.keys()


@pytest.mark.parametrize("kind", FAILING)
def test_a_failed_job_is_found_by_its_id(tiny: Served, kind: str) -> None:
    """Exactly one line has its id, with the sentence and type that the caller got."""
    job_id = tiny.endpoint.submit(FAILING[kind])
    record = tiny.endpoint.wait_for_end(job_id, 60)
    error = json.loads(record.done[-1].value["error"])["error"]
    (line,) = lines_of(tiny, job_id)

    assert f"job {job_id} failed, {error['type']}: {error['message']} (" in line


def test_what_a_line_says(tiny: Served) -> None:
    """Dialect, route and adapter, and the tokens where a reply or a stream tells their number."""
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    said = {}
    for name, given in {
        "native": {"prompt": [5, 6, 7], "sampling_params": {"max_tokens": 5, "ignore_eos": True}},
        "reply": {"openai_route": "/v1/completions", "openai_input": COMPLETION},
        "stream": {"openai_route": "/v1/completions", "openai_input": COMPLETION | usage},
        "messages": {"openai_route": "/v1/messages", "openai_input": CHAT | {"stream": True}},
        "responses": {
            "openai_route": "/v1/responses",
            "openai_input": {"input": "Hello", "max_output_tokens": 5, "stream": True},
        },
        "adapter": {"prompt": "Hello", "model": "adapter", "stream": True},
        "no usage": {
            "openai_route": "/v1/completions",
            "openai_input": COMPLETION | {"stream": True},
        },
    }.items():
        job_id = tiny.endpoint.submit(given)
        tiny.endpoint.wait_for_end(job_id, 60)
        (said[name],) = lines_of(tiny, job_id)

    assert "Hello" not in "".join(said.values())
    assert all(" completed: " in line for line in said.values())
    assert 'dialect="native" prompt_tokens=3 output_tokens=5 ' in said["native"]
    for name in ("reply", "stream"):
        assert re.search(r'route="/v1/completions" prompt_tokens=\d+ output_tokens=5 ', said[name])
    for name in ("messages", "responses"):
        assert re.search(r" prompt_tokens=\d+ output_tokens=\d+ first_output_s=", said[name]), said
    assert 'model="adapter"' in said["adapter"]
    assert "_tokens=" not in said["no usage"]
    assert all(re.search(r" duration_s=[\d.]+ .*posts=\d+ bytes=\d+$", x) for x in said.values())


def test_a_stopped_job(tiny: Served) -> None:
    """It is counted and told as cancelled, and vLLM counts its abort."""
    job_id = tiny.endpoint.submit(LONG)
    wait_until(lambda: bool(tiny.endpoint.record(job_id).stream), 30)
    cancel(tiny, job_id)
    (line,) = lines_of(tiny, job_id)

    assert f"job {job_id} cancelled: " in line
    assert re.search(
        r'^worker_jobs_total\{dialect="native",error="",outcome="cancelled"\} [1-9]',
        exposition(tiny),
        re.MULTILINE,
    )


def test_the_route_has_both_kinds(tiny: Served) -> None:
    """`/metrics` shows vLLM's own metrics and the worker's, and of the latter no warm-up."""
    tiny.run({"prompt": "Hello"})
    found = exposition(tiny)

    assert re.search(r"^vllm:num_requests_running\{", found, re.MULTILINE)
    assert re.search(
        r'^worker_jobs_total\{dialect="native",.*"completed"\} [1-9]', found, re.MULTILINE
    )
    assert re.search(
        r'^worker_start_phase_seconds\{phase="loading the model"\}', found, re.MULTILINE
    )
    assert re.search(r"^worker_loop_lag_seconds_count [1-9]", found, re.MULTILINE)
    jobs = sum(map(float, re.findall(r"^worker_jobs_total\{.*\} ([\d.]+)$", found, re.MULTILINE)))
    ends = re.findall(
        r"^worker: job (?!warm-up)\S+ (?:failed|completed|cancelled)", tiny.log(), re.MULTILINE
    )
    assert jobs <= len(ends)


@pytest.fixture(scope="module")
def json_worker() -> Iterator[tuple[Served, int]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "LOG_FORMAT": "json",
        "METRICS_PORT": str(port),
        "PROMETHEUS_MULTIPROC_DIR": "/proc/nothing/can/be/made/here",
    }
    with serve(environ) as served:
        yield served, port


@pytest.mark.slow
def test_json(json_worker: tuple[Served, int]) -> None:
    """Every line is an object, those of the engine's processes too, but what is no Python's log."""
    served, _ = json_worker
    job_id = served.endpoint.submit({"prompt": 7})
    served.endpoint.wait_for_end(job_id, 60)
    wait_until(lambda: f'"job": "{job_id}"' in served.log(), 30)
    lines = [x for x in served.log().splitlines() if x and not x.startswith(FOREIGN)]
    assert [] == [x for x in lines if not x.startswith("{")]
    said = [json.loads(x) for x in lines]
    (line,) = [one for one in said if one.get("job") == job_id]

    assert ("failed", "BadRequestError") == (line["outcome"], line["error_type"])
    assert "prompt" in line["error"]
    assert {"worker", "vllm"} <= {one.get("logger", "").partition(".")[0] for one in said}
    assert 1 < len({one["process"] for one in said if "process" in one})
    assert any("PROMETHEUS_MULTIPROC_DIR is ignored" in one["message"] for one in said)


@pytest.mark.slow
def test_the_port(json_worker: tuple[Served, int]) -> None:
    """METRICS_PORT serves what the route shows."""
    served, port = json_worker
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        by_port = reply.read().decode()

    def names(text: str) -> set[str]:
        return set(re.findall(r"^# TYPE ((?:worker_|vllm:)\S+)", text, re.MULTILINE))

    assert names(exposition(served)) == names(by_port)
    assert "worker_jobs_total" in names(by_port)
