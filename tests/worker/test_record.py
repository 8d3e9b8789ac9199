"""What is told of each job when it ends, whatever its end is."""

import asyncio
import logging
import re
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest

from worker import metrics
from worker.batching import BatchSizes, Outbox
from worker.errors import EngineDied, RequestError, StartError
from worker.handler import Handler
from worker.record import Usage

pytestmark = pytest.mark.timeout(60)

CHAT = {"messages": [], "model": "a\nb", "stream": True}
ROUTE = {"openai_route": "/v1/chat/completions", "openai_input": CHAT}


class Dialect:
    """Three tokens, and then whatever `end` does."""

    usage = Usage(prompt=4, output=3)

    def __init__(self, end: Any) -> None:
        self._end = end

    async def answer(self, outbox: Outbox[Any]) -> None:
        for item in range(3):
            outbox.put(item, 1, 10)
        await self._end()

    def join(self, items: list[Any]) -> Any:
        return items

    def failure(self, error: RequestError) -> list[Any]:
        return [error.told()]


async def ends() -> None: ...


async def refuses() -> None:
    raise RequestError("One\nsentence.", code=404)


async def breaks() -> None:
    raise LookupError("our own fault")


async def dies() -> None:
    raise EngineDied


async def waits() -> None:
    await asyncio.Event().wait()


def jobs(end: Any) -> Handler:
    return Handler(lambda _: Dialect(end), BatchSizes(max_delay_s=0), 1000)


def job(**given: Any) -> dict[str, Any]:
    return {"id": "job-9", "input": given or {"prompt": "Hello", "stream": True}}


async def drain(yields: AsyncIterator[Any]) -> None:
    async for _ in yields:
        pass


def count(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="worker")


@pytest.mark.parametrize(
    ("end", "outcome", "error"),
    [
        (ends, "completed", ""),
        (refuses, "failed", "NotFoundError"),
        (breaks, "failed", "InternalServerError"),
        (dies, "lost", ""),
    ],
)
@pytest.mark.parametrize("dialect", ["native", "openai"])
def test_each_end(
    end: Any, outcome: str, error: str, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted once under its dialect and outcome, is one line, and nothing runs on."""
    labels = {"dialect": dialect, "outcome": outcome, "error": error}
    before = count("worker_jobs_total", **labels)
    seconds = count("worker_job_duration_seconds_count", dialect=dialect)
    given = job() if dialect == "native" else job(**ROUTE)
    asyncio.run(drain(jobs(end).handle(given)))
    (line,) = [one for one in caplog.records if "job-9" in one.getMessage()]
    said = vars(line)

    assert before + 1 == count("worker_jobs_total", **labels)
    assert seconds + 1 == count("worker_job_duration_seconds_count", dialect=dialect)
    for state in ("waiting", "answering"):
        assert 0 == count("worker_jobs_running", dialect=dialect, state=state)
    assert ("job-9", outcome, dialect) == (said["job"], said["outcome"], said["dialect"])
    assert (4, 3) == (said["prompt_tokens"], said["output_tokens"])
    assert f'dialect="{dialect}"' in line.getMessage()
    assert "\n" not in line.getMessage()
    assert "Hello" not in line.getMessage()
    assert (outcome in ("failed", "lost")) == ("error" in said)


def test_posts_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Posts, their bytes and a stream's first output are in its line and in the metrics."""
    names = ("worker_posts_total", "worker_posted_bytes_total", "worker_first_post_seconds_count")
    before = [count(name, dialect="native") for name in names]
    asyncio.run(drain(jobs(ends).handle(job())))
    after = [count(name, dialect="native") for name in names]
    (line,) = caplog.records
    said = vars(line)

    assert [2, 30, 1] == [now - then for now, then in zip(after, before, strict=True)]
    assert (2, 30) == (said["posts"], said["bytes"])
    assert 0 <= said["first_output_s"] <= said["duration_s"]


@pytest.mark.parametrize("given", [{"prompt": 7}, {"openai_route": 7}])
def test_a_job_that_cannot_be_read(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It has its line and its count too, under the dialect that it seems to be of."""
    asyncio.run(drain(jobs(ends).handle(job(**given))))
    (line,) = caplog.records

    assert "job job-9 failed, " in line.getMessage()
    assert 0 == vars(line)["posts"]


def test_a_job_that_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    """Stopped while it is posted it never leaves its block, and still is told as cancelled."""
    kept = []

    async def main() -> None:
        posting = asyncio.Event()

        async def consume() -> None:
            kept.append(jobs(waits).handle(job()))  # it is not thrown away, and so never closed
            async for _ in kept[0]:
                posting.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(consume())
        await posting.wait()
        assert 1 == count("worker_jobs_running", dialect="native", state="answering")
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert 0 == count("worker_jobs_running", dialect="native", state="answering")

    asyncio.run(main())

    assert ["cancelled"] == [vars(line)["outcome"] for line in caplog.records]


def test_a_lag_is_seen() -> None:
    """A loop that is held up shows in the histogram of its lag."""

    async def main() -> None:
        watching = asyncio.create_task(metrics.watch_loop())
        await asyncio.sleep(0)
        time.sleep(3 * metrics.LAG_EVERY_S)  # noqa: ASYNC251 - hold the loop up
        await asyncio.sleep(0.05)  # the sample is overdue
        watching.cancel()

    lag = count("worker_loop_lag_seconds_sum")
    asyncio.run(main())

    assert count("worker_loop_lag_seconds_sum") - lag > metrics.LAG_EVERY_S


def test_a_port_that_is_taken() -> None:
    """METRICS_PORT ends the start with a sentence where it cannot be had."""
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"METRICS_PORT={port} cannot be opened: .*in use"):
            metrics.serve(port)


def test_the_warm_up_is_forgotten() -> None:
    """At the start every count of jobs is there, and zero."""
    asyncio.run(drain(jobs(refuses).handle(job())))
    metrics.begin()
    found = generate_latest().decode()
    values = re.findall(r"^worker_(?:jobs|posts)_total\{.*\} (.*)$", found, re.MULTILINE)

    assert {"0.0"} == set(values)
    assert 12 == len(values)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is Debian's prometheus")
def test_promtool_has_no_complaint() -> None:
    """The worker's names, types and units are as Prometheus' rules want them."""
    asyncio.run(drain(jobs(refuses).handle(job())))
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=generate_latest(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    said = (done.stdout + done.stderr).decode().splitlines()

    assert [] == [line for line in said if "worker_" in line or "error" in line]
