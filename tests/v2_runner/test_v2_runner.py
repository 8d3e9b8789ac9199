"""The V2 model runner really runs here, and the V1 runner is its reference."""

import concurrent.futures
import json
import re

import pytest

import models
from served import Served, serve
from v2_runner import v2_environ

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROMPTS = [
    "Hello",
    "The list is",
    "def f(x):\n",
    "a b c a b c a b",
    "x = 1\ny = 2\nx =",
    "import os",
]
NGRAM = {
    "method": "ngram_gpu",  # unlike "ngram", goes with asynchronous scheduling
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}


def greedy(served: Served) -> list[list[int]]:
    """Complete all prompts in one batch, and give the token ids."""

    def complete(prompt: str) -> list[int]:
        given = {"prompt": prompt, "temperature": 0, "max_tokens": 24, "return_token_ids": True}
        record = served.run({"openai_route": "/v1/completions", "openai_input": given})
        return record.done[-1].value["output"][0]["choices"][0]["token_ids"]

    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(complete, PROMPTS))


def test_the_v2_runner_is_in_use(v2_runner: Served) -> None:
    """vLLM names its runner at the start, and schedules asynchronously."""
    log = v2_runner.log()

    assert "Using V2 Model Runner" in log
    assert "Asynchronous scheduling: True" in log


def test_greedy_tokens_are_those_of_v1(v2_runner: Served, tiny: Served) -> None:
    """Both runners give the same tokens."""
    actual = greedy(v2_runner)

    assert greedy(tiny) == actual
    assert [24] * len(PROMPTS) == [len(tokens) for tokens in actual]


@pytest.mark.slow
def test_speculation_changes_no_token(tiny: Served) -> None:
    """With n-gram speculation the V2 runner still gives the tokens of the V1 runner."""
    environ = {"MODEL_NAME": str(models.path("tiny")), "SPECULATIVE_CONFIG": json.dumps(NGRAM)}
    with serve(environ | v2_environ.environ()) as served:
        assert greedy(tiny) == greedy(served)
        (metrics,) = served.run({"route": "/metrics"}).done[-1].value["output"]

    drafted = re.search(r"\nvllm:spec_decode_num_draft_tokens_total{.*} (.*)\n", metrics)
    assert drafted is not None
    assert float(drafted[1]) > 0
