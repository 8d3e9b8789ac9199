"""Batches on a real engine, behind the real SDK: their answers, their neighbours, their end."""

import concurrent.futures
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from signal import SIGKILL
from typing import Any

import psutil
import pytest

import models
from local_endpoint import Knobs, Record, Status
from served import ENVIRON, Served, cancel, metric, serve
from waiting import wait_until

pytestmark = pytest.mark.timeout(300)

BATCH = {"batch": {"input": "in.jsonl", "output": "out.jsonl"}}
GREEDY = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}


def chat(i: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Tell me of the number {i}."}]
    body = {"messages": messages} | GREEDY | more
    return {"custom_id": f"c{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def of_each_route(i: int) -> dict[str, Any]:
    """Return line number i: each route in its turn."""
    text = f"Tell me of the number {i}."
    body = {"prompt": text} | GREEDY
    kinds: list[dict[str, Any]] = [
        chat(i),
        {"method": "POST", "url": "/v1/completions", "body": body},
        {"method": "POST", "url": "/tokenize", "body": {"prompt": text}},
        {"prompt": text, "sampling_params": GREEDY | {"no_repeat_ngram_size": 2}},
        {"messages": [{"role": "user", "content": text}], "sampling_params": GREEDY},
        {"method": "GET", "url": "/v1/models", "body": None},
        {"method": "POST", "url": "/v1/nothing", "body": body},
        {"method": "POST", "url": "/v1/completions", "body": body | {"temperature": "hot"}},
    ]
    return kinds[i % len(kinds)] | {"custom_id": f"c{i}"}


def jsonl(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in lines)


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(one) for one in path.read_text().splitlines()]


def summary(record: Record) -> dict[str, Any]:
    assert Status.COMPLETED == record.status, record.done[-1].value
    return dict(record.done[-1].value["output"][-1]["batch"])


def without_times(value: Any) -> Any:
    """Return a body without what differs from answer to answer."""
    if isinstance(value, list):
        return [without_times(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {k: without_times(v) for k, v in value.items() if k not in ("id", "created")}


@pytest.mark.parametrize("number", [80, pytest.param(2000, marks=pytest.mark.slow)])
def test_lines_are_answered_as_jobs_are(tiny: Served, batch_folder: Path, number: int) -> None:
    """Every route's line has the answer that the same request has as a job of its own."""
    lines = [of_each_route(i) for i in range(number)]
    (batch_folder / "mixed.jsonl").write_text(jsonl(lines))
    batch = {"input": "mixed.jsonl", "output": f"mixed.{number}.jsonl", "ordered": True}
    said = summary(tiny.run({"batch": batch}, 200))
    found = results(batch_folder / f"mixed.{number}.jsonl")

    assert [f"c{i}" for i in range(number)] == [one["custom_id"] for one in found]
    assert (number, number // 4) == (said["done"], said["failed"])
    assert all(bool(one["error"]) == (i % 8 > 5) for i, one in enumerate(found))
    for line, result in zip(lines[:8], found, strict=False):
        if "url" in line:
            given = {"route": line["url"], "method": line["method"], "body": line["body"]}
        else:
            given = {key: value for key, value in line.items() if key != "custom_id"}
        job = tiny.run(given)
        if result["error"]:
            told = json.loads(job.done[-1].value["error"])
            assert told == result["response"]["body"]
            assert told["error"]["code"] == result["response"]["status_code"]
        else:
            alone = job.done[-1].value["output"][0]
            assert without_times(alone) == without_times(result["response"]["body"])


def test_a_batch_streams(tiny: Served) -> None:
    """Without output the lines are what the job streams, and its log line counts their tokens."""
    job = tiny.endpoint.submit({"batch": {"input": [chat(i) for i in range(30)]}})
    record = tiny.endpoint.wait_for_end(job, 60)
    pieces = [post.value for post in record.stream]

    assert 30 == len({one["custom_id"] for piece in pieces for one in piece["lines"]})
    assert 120 == summary(record)["output_tokens"]
    assert "output_tokens=120" in next(
        line for line in tiny.log().splitlines() if f"job {job} completed" in line
    )


def test_chats_beside_a_batch(tiny: Served, batch_folder: Path) -> None:
    """While a batch runs chats come through it: twenty are over long before it is."""
    lines = [chat(i, max_tokens=32) for i in range(2000)]
    (batch_folder / "long.jsonl").write_text(jsonl(lines))
    job = tiny.endpoint.submit({"batch": {"input": "long.jsonl", "output": "long.out.jsonl"}})
    out = batch_folder / "long.out.jsonl"
    wait_until(lambda: out.exists() and out.stat().st_size)
    talk = {"openai_route": "/v1/chat/completions", "openai_input": chat(0)["body"]}
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        records = list(pool.map(tiny.run, [talk] * 20))
    is_running = not tiny.endpoint.record(job).status.is_final
    cancel(tiny, job)
    done = len(results(out))

    assert is_running
    assert done < 2000
    assert {Status.COMPLETED} == {record.status for record in records}


@pytest.mark.slow
def test_where_the_engine_knows_priorities(tmp_path: Path) -> None:
    """With SCHEDULING_POLICY=priority a batch and the chats beside it are answered alike."""
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "SCHEDULING_POLICY": "priority",
        "MAX_NUM_SEQS": "4",
        "BATCH_FOLDER": str(tmp_path),
    }
    with serve(environ) as served:
        job = endless(served, tmp_path, 200)
        talk = {"openai_route": "/v1/chat/completions", "openai_input": chat(0)["body"]}
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            records = list(pool.map(served.run, [talk] * 5))
        said = summary(served.endpoint.wait_for_end(job, 120))

    assert {Status.COMPLETED} == {record.status for record in records}
    assert (200, 0) == (said["done"], said["failed"])


def endless(served: Served, folder: Path, number: int) -> str:
    lines = [chat(i, max_tokens=8) for i in range(number)]
    (folder / "in.jsonl").write_text(jsonl(lines))
    return served.endpoint.submit(BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.timeout(600)
def test_a_killed_batch_goes_on(tmp_path: Path, seed: int) -> None:
    """Whatever is killed, and when: in the end every line is there once.

    None was computed twice but those under way, as vLLM's own count of requests says.
    """
    number, at_once = 600, 16
    chance = random.Random(seed)
    who = ("worker", "engine", "cancel")[seed % 3]
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "BATCH_FOLDER": str(tmp_path),
        "MAX_NUM_SEQS": str(at_once),
        "BATCH_RESERVED_SLOTS": "0",
    }
    out = tmp_path / "out.jsonl"
    with serve(environ) as served:
        job = endless(served, tmp_path, number)
        wait_until(lambda: out.exists() and out.stat().st_size)
        time.sleep(chance.uniform(0, 1.5))
        if who == "worker":
            served.process.send_signal(SIGKILL)
            served.process.wait(10)
        elif who == "engine":
            family = psutil.Process(served.process.pid).children(recursive=True)
            next(p for p in family if "EngineCore" in "".join(p.cmdline())).kill()
            served.process.wait(20)
        else:
            cancel(served, job)
            wait_until(lambda: f"job {job} cancelled" in served.log())
            assert number == summary(served.run(BATCH, 120))["done"]
    before = out.read_bytes().splitlines()
    with serve(environ) as served:
        warm_up = metric(served, "request_success_total")
        said = summary(served.run(BATCH, 120))
        computed = metric(served, "request_success_total") - warm_up
    names = Counter(one["custom_id"] for one in results(out))

    assert {f"c{i}": 1 for i in range(number)} == names
    assert number == said["done"]
    assert computed <= number - len(before) + 1  # whose line was cut off


@pytest.mark.slow
def test_the_platform_tries_again(tmp_path: Path) -> None:
    """A worker that is lost with its batch has a successor, which goes on with the same job."""
    environ = {"MODEL_NAME": str(models.path("tiny")), "BATCH_FOLDER": str(tmp_path)}
    out = tmp_path / "out.jsonl"
    knobs = Knobs(stop_hold_s=5, take_hold_s=5, worker_lost_s=3)
    with serve(environ, knobs) as served:
        job = endless(served, tmp_path, 1000)
        wait_until(lambda: out.exists() and out.stat().st_size)
        served.process.send_signal(SIGKILL)
        served.process.wait(10)
        left = len(out.read_bytes().splitlines())
        wait_until(lambda: served.endpoint.record(job).status == Status.IN_QUEUE, 30)
        kept = {k: v for k, v in os.environ.items() if k.startswith(("PATH", "LANG", "PYTHONPATH"))}
        second = served.endpoint.worker_environ("worker-2", served.home / "two")
        process = subprocess.Popen(
            [sys.executable, "-m", "worker"], env=kept | ENVIRON | second | environ
        )
        try:
            record = served.endpoint.wait_for_end(job, 240)
        finally:
            process.kill()
            process.wait(10)

    assert 0 < left < 1000
    assert 1000 == summary(record)["done"]
    assert 1000 == len({one["custom_id"] for one in results(out)}) == len(results(out))
