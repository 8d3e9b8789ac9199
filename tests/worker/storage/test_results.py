"""Results that are too large to be posted: where they are put, and what is said without a place."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import requests

from worker.batching import BatchSizes, Outbox, weight
from worker.errors import RequestError
from worker.handler import Handler
from worker.record import Usage
from worker.storage.bucket import Keys
from worker.storage.folder import Folder
from worker.storage.stores import Stores

pytestmark = pytest.mark.timeout(120)

LARGE = {"choices": [{"tokens": ["x" * 60_000_000]}]}


class Dialect:
    """A dialect whose answer is one large value."""

    usage = Usage(3, 2)

    async def answer(self, outbox: Outbox[Any]) -> None:
        outbox.put(LARGE, 1, weight(LARGE))

    def join(self, items: list[Any]) -> Any:
        return items[0]

    def failure(self, error: RequestError) -> list[Any]:
        return [error.told()]


def result(stores: Stores, *, stream: bool = False, **job: Any) -> Any:
    async def only() -> Any:
        sizes, most = BatchSizes(max_delay_s=0), 10_000_000
        handler = Handler(lambda _: Dialect(), sizes, most, keep=stores.keep)
        given = {"id": "job/1", "input": {"prompt": "Hello", "stream": stream}} | job
        (one,) = [one async for one in handler.handle(given)]
        return one

    return asyncio.run(only())


def nowhere(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "no" / "volume"))


@pytest.mark.parametrize("whose", ["worker's", "job's"])
def test_a_large_result_is_in_a_bucket(tmp_path: Path, s3: str, whose: str) -> None:
    """A result of 60 MB lies in the bucket, where a signed link of it can be read."""
    own = Keys(s3, "a", "b", home="home/jobs", is_bound=True, may_be_private=True)
    config = {"endpointUrl": s3, "accessId": "a", "accessSecret": "b", "bucketName": "callers"}
    is_own = whose == "worker's"
    stores = Stores(nowhere(tmp_path), own if is_own else None, may_be_private=True)
    where = result(stores, **({} if is_own else {"s3Config": config}))
    content = requests.get(where["result_url"], timeout=60).content

    assert ("home/jobs/" if is_own else "callers/") + "results/job_1-" in where["result_url"]
    assert LARGE == json.loads(content)
    assert (len(content), hashlib.sha256(content).hexdigest()) == (where["bytes"], where["sha256"])


def test_a_large_result_is_on_the_volume(tmp_path: Path) -> None:
    """Without a bucket it lies on the volume, below BATCH_FOLDER."""
    where = result(Stores(Folder(str(tmp_path / "batches"))))
    content = Path(where["result_url"].removeprefix("file://")).read_bytes()

    assert f"file://{tmp_path}/batches/results/job_1-" in where["result_url"]
    assert LARGE == json.loads(content)
    assert (len(content), hashlib.sha256(content).hexdigest()) == (where["bytes"], where["sha256"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_large_result_has_no_place(tmp_path: Path, stream: bool) -> None:
    """Without a place the job fails, and the sentence names what to set; a stream has none ever."""
    told = result(Stores(nowhere(tmp_path)), stream=stream)["error"]

    assert "MAX_RESULT_MB" in told
    assert (not stream) == ("BUCKET_NAME" in told) == ("BATCH_FOLDER" in told)
