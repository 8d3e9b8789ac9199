"""Many jobs, many streams, and what remains of them: the echo worker with the real SDK."""

import asyncio
import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import psutil
import pytest
from workers import ECHO

import local_endpoint
from local_endpoint import LocalEndpoint

MB = 2**20


@contextmanager
def echoing(workers: int, concurrency: int) -> Iterator[LocalEndpoint]:
    """Run a number of echo workers, each of which takes `concurrency` jobs at once."""
    command = ["env", f"ECHO_CONCURRENCY={concurrency}", *ECHO]
    with local_endpoint.serve(command=command, min_workers=workers) as endpoint:
        yield endpoint


def test_streams_at_once(echo: LocalEndpoint) -> None:
    """Many streams at once each get their own words, in order, once; all are open together."""
    stream(echo, 12, 3)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_hundred_streams() -> None:
    """The same is true of two hundred streams of one worker."""
    with echoing(1, 400) as endpoint:
        stream(endpoint, 200, 20)


def stream(endpoint: LocalEndpoint, streams: int, yields: int) -> None:
    texts = asyncio.run(ask(endpoint, streams, yields))
    records = endpoint.records()[-streams:]

    expected = ["".join(f"{n}-{word} " for word in range(yields)) for n in range(streams)]
    assert texts == expected
    first_end_s = min(record.done_s for record in records)
    assert all(record.taken_s < first_end_s for record in records)


def test_every_job_once_and_in_full(echo: LocalEndpoint) -> None:
    """Of many jobs over several workers every one is delivered once, whole, and by one worker."""
    deliver(echo, 24)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_jobs() -> None:
    """The same is true of a thousand jobs over four workers."""
    with echoing(4, 8) as endpoint:
        deliver(endpoint, 1000)


def deliver(endpoint: LocalEndpoint, jobs: int) -> None:
    given = {endpoint.submit({"yields": [n, f"ü{n}", n]}): [n, f"ü{n}", n] for n in range(jobs)}
    records = [endpoint.wait_for_end(job, timeout_s=240) for job in given]

    for record in records:
        assert [str(status) for _, status in record.states] == [
            "IN_QUEUE",
            "IN_PROGRESS",
            "COMPLETED",
        ]
        assert [post.value for post in record.stream] == given[record.job_id]
        assert [post.value for post in record.done] == [{"output": given[record.job_id]}]
        assert record.late == ()
        assert len({post.worker_id for post in record.stream + record.done}) == 1
    assert len({record.done[0].worker_id for record in records}) == len(endpoint.workers())


async def ask(endpoint: LocalEndpoint, streams: int, yields: int) -> list[str]:
    """Ask for streams through the OpenAI route, all at once, and give their texts."""
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    timeout = aiohttp.ClientTimeout(total=240)
    connector = aiohttp.TCPConnector(limit=0)

    async def one(session: aiohttp.ClientSession, n: int) -> str:
        words = " ".join(f"{n}-{word}" for word in range(yields))
        body = {"messages": [{"role": "user", "content": words}], "stream": True, "pause_s": 0.3}
        async with session.post(f"{endpoint.openai_url}/chat/completions", json=body) as answer:
            events = [line async for line in answer.content if line.startswith(b"data: {")]
        deltas = (json.loads(event[6:])["choices"][0]["delta"] for event in events)
        return "".join(delta["content"] for delta in deltas)

    async with aiohttp.ClientSession(
        headers=headers, timeout=timeout, connector=connector
    ) as session:
        return await asyncio.gather(*(one(session, n) for n in range(streams)))


@pytest.mark.parametrize(
    "jobs", [400, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_memory(house, jobs: int) -> None:
    """Memory does not grow with the number of jobs, once there are as many as are kept."""
    endpoint = house.serve(retain_jobs=jobs // 20, record_jobs=jobs // 20)
    process = psutil.Process(os.getpid())
    asyncio.run(work(endpoint, jobs // 4))
    gc.collect()
    before = process.memory_info().rss
    asyncio.run(work(endpoint, jobs - jobs // 4))
    gc.collect()
    grown = process.memory_info().rss - before

    assert house.customer().get("health").json()["jobs"]["completed"] == jobs
    assert len(endpoint.records()) == jobs // 20
    assert grown < 8 * MB


async def work(endpoint: LocalEndpoint, jobs: int, at_once: int = 8) -> None:
    """Be customer and worker of a number of jobs, each with a stream post and 20 KB of output."""
    customer = {"Authorization": f"Bearer {endpoint.api_key}"}
    worker = {"Authorization": endpoint.worker_key}
    value = "x" * 10_000

    async def one(session: aiohttp.ClientSession, name: str, count: int) -> None:
        url = endpoint.url
        for _ in range(count):
            async with session.post(f"{url}/run", json={"input": value}, headers=customer) as sent:
                assert sent.status == 200
            async with session.get(f"{url}/job-take/{name}", headers=worker) as taken:
                job_id = (await taken.json())["id"]
            for route, message in (
                ("job-stream", {"output": value}),
                ("job-done", {"output": [value]}),
            ):
                async with session.post(
                    f"{url}/{route}/{name}/{job_id}", json=message, headers=worker
                ) as posted:
                    assert posted.status == 200

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        await asyncio.gather(
            *(one(session, f"w{n}", jobs // at_once + (n < jobs % at_once)) for n in range(at_once))
        )
