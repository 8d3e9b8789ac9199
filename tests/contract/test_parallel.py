"""Engines of two ranks on one machine: every kind of job, and the end."""

import json
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import models
from local_endpoint import Status
from served import CHAT, Served, serve
from waiting import is_alive, wait_until

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

WAYS = {
    "tensor": {"TENSOR_PARALLEL_SIZE": "2"},
    "data": {"DATA_PARALLEL_SIZE": "2"},
}
GREEDY = {"do_sample": False, "max_new_tokens": 8}
NATIVE: list[dict[str, Any]] = [
    GREEDY,
    {"max_tokens": 8, "seed": 7, "n": 3},
    GREEDY | {"num_beams": 3, "num_return_sequences": 2},
    GREEDY | {"guidance_scale": 1.7, "negative_prompt_ids": [4, 5]},
    GREEDY | {"no_repeat_ngram_size": 2, "suppress_tokens": [70, 71]},
    GREEDY | {"output_scores": 3, "output_logits": 2, "logprobs": 1},
    GREEDY | {"structured_outputs": {"choice": ["yes", "no"]}},
]
OPENAI = [
    {"openai_route": f"/v1/{route}", "openai_input": body | {"stream": stream}}
    for route, body in (
        ("chat/completions", CHAT),
        ("completions", {"prompt": "Hello", "max_tokens": 8}),
    )
    for stream in (False, True)
]


@pytest.fixture(params=WAYS)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """An engine of two ranks."""
    environ = WAYS[request.param] | {
        "MODEL_NAME": str(models.path("tiny")),
        "MAX_MODEL_LEN": "2048",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }
    with serve(environ) as served:
        yield served


def test_an_engine_of_two_ranks(served: Served) -> None:
    """It answers every kind of job, several at once; a killed rank ends it, and nothing is left."""
    given = [
        {"prompt": "Hello there", "stream": stream, "sampling_params": params}
        for params in NATIVE
        for stream in (False, True)
    ] + OPENAI
    jobs = [served.endpoint.submit(one) for one in given for _ in range(2)]
    for job, one in zip(jobs, [one for one in given for _ in range(2)], strict=True):
        record = served.endpoint.wait_for_end(job, 120)
        assert Status.COMPLETED == record.status, (one, record.done)
    refused = served.run({"prompt": "Hello", "sampling_params": {"output_scores": 10**6}})
    assert "MAX_SCORES" in json.loads(refused.done[-1].value["error"])["error"]["message"]

    endless = {"max_tokens": 1800, "ignore_eos": True}
    running = [
        served.endpoint.submit({"prompt": "Hello", "stream": True, "sampling_params": endless})
        for _ in range(4)
    ]
    wait_until(lambda: all(served.endpoint.record(job).stream for job in running))
    family = served.family()
    rank = [p for p in family if "Worker" in " ".join(p.cmdline())][-1]
    rank.kill()
    code = served.process.wait(60)
    wait_until(lambda: not any(map(is_alive, family)), 2, lambda: [*map(str, family)])
    records = [served.endpoint.record(job) for job in running]

    assert 1 == code, served.log()[-3000:]
    assert [Status.FAILED] * 4 == [record.status for record in records]
    assert "worker: 4 jobs were told that the engine died." in served.log()


def test_a_stop(served: Served) -> None:
    """On SIGTERM the running job is delivered and every process is gone."""
    job = served.endpoint.submit(
        {"prompt": "Hello", "sampling_params": {"max_tokens": 500, "ignore_eos": True}}
    )
    wait_until(lambda: served.endpoint.record(job).taken_s)
    family = [*served.family(), psutil.Process(served.process.pid)]
    served.process.terminate()

    assert 0 == served.process.wait(60)
    wait_until(lambda: not any(map(is_alive, family)), 2, lambda: [*map(str, family)])
    assert Status.COMPLETED == served.endpoint.record(job).status
