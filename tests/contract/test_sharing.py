"""Workers of one endpoint share its jobs: none takes what a neighbour could answer at once."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest

import models
from served import joined, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AT_ONCE = 4
ENVIRON = {
    "MODEL_NAME": str(models.path("tiny")),
    "MAX_NUM_SEQS": str(AT_ONCE),
    "MAX_CONCURRENCY": "auto",
}
JOB = {"prompt": "Hello", "sampling_params": {"max_tokens": 400, "ignore_eos": True}}


def test_auto_leaves_to_a_neighbour_what_would_only_wait() -> None:
    """With MAX_CONCURRENCY=auto a worker takes as many jobs as its engine runs, and no more.

    So each of two idle workers begins with as many as that, and the rest stays in the queue until
    an answer has made room for it.
    """
    with (
        serve(ENVIRON) as first,
        tempfile.TemporaryDirectory() as folder,
        joined(first, "worker-2", ENVIRON, Path(folder)),
    ):
        jobs = [first.endpoint.submit(JOB) for _ in range(3 * AT_ONCE)]
        ended = [first.endpoint.wait_for_end(job, 120) for job in jobs]
    ended.sort(key=lambda record: record.taken_s or 0.0)
    begun, waited = ended[: 2 * AT_ONCE], ended[2 * AT_ONCE :]

    workers = Counter(record.done[-1].worker_id for record in begun)
    assert {"worker-1": AT_ONCE, "worker-2": AT_ONCE} == workers
    freed_s = min(record.done_s or 0.0 for record in begun)
    assert all((record.taken_s or 0.0) >= freed_s for record in waited)
