"""What `transformers.generate` writes, the worker writes, with all requests in one engine batch."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from local_endpoint import Record
from served import Served

pytestmark = pytest.mark.timeout(600)
HERE = Path(__file__).parent
ALL_AT_ONCE_S = 500.0
WHOLE_VOCABULARY = 49152
# Where the table of parameters says that we differ: vLLM looks for stop strings in the answer
# alone, so that an answer goes on where transformers sees the end of a match with the prompt.
GOES_ON = "stop_strings_that_begin_in_the_prompt"


@cache
def golden(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text())


def cases(name: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in golden(name)["cases"]]


@pytest.fixture(
    scope="module", params=[1, pytest.param(None, marks=pytest.mark.slow)], ids=["one", "all"]
)
def most(request: pytest.FixtureRequest) -> int | None:
    """Of each case so many prompts are asked; every one of them at night."""
    count: int | None = request.param
    return count


def ask_all(
    served: Served, name: str, most: int | None, extra: dict[str, Any]
) -> dict[str, list[Record]]:
    """Submit the prompts of every case at once, and wait for all."""
    data = golden(name)
    jobs = {
        case["name"]: [
            served.endpoint.submit(
                {
                    "prompt": data["prompts"][prompt],
                    "sampling_params": case["parameters"] | extra,
                }
            )
            for prompt in case["prompts"][:most]
        ]
        for case in data["cases"]
    }
    return {
        case: [served.endpoint.wait_for_end(job, ALL_AT_ONCE_S) for job in submitted]
        for case, submitted in jobs.items()
    }


def reply(record: Record) -> dict[str, Any]:
    value = record.done[-1].value
    assert "output" in value, value
    (one,) = value["output"]
    return one


@pytest.fixture(scope="module")
def greedy(smollm2: Served, most: int | None) -> dict[str, list[Record]]:
    return ask_all(smollm2, "greedy", most, {"return_token_ids": True})


@pytest.fixture(scope="module")
def sampled(smollm2: Served, most: int | None) -> dict[str, list[Record]]:
    return ask_all(smollm2, "sampling", most, {"output_scores": WHOLE_VOCABULARY})


@pytest.fixture(scope="module")
def beams(smollm2: Served, most: int | None) -> dict[str, list[Record]]:
    return ask_all(smollm2, "beams", most, {"return_token_ids": True})


@pytest.mark.parametrize("case", cases("greedy"))
def test_greedy(greedy: dict[str, list[Record]], most: int | None, case: dict[str, Any]) -> None:
    """Greedy decoding gives transformers' token ids, whatever the parameters."""
    replies = [reply(record) for record in greedy[case["name"]]]
    if case["name"] == GOES_ON:
        found = [one["choices"][0]["token_ids"] for one in replies]
        pairs = list(zip(case["outputs"][:most], found, strict=True))
        assert [expected for expected, _ in pairs] == [ids[: len(e)] for e, ids in pairs]
        return

    assert case["outputs"][:most] == [one["choices"][0]["token_ids"] for one in replies]
    if "healed" in case:
        assert case["healed"][:most] == [one["prompt_token_ids"] for one in replies]


@pytest.mark.parametrize("case", cases("sampling"))
def test_first_step(
    sampled: dict[str, list[Record]], most: int | None, case: dict[str, Any]
) -> None:
    """The distribution that the first token is drawn from is transformers'."""
    for output, record in zip(case["outputs"][:most], sampled[case["name"]], strict=True):
        (scores,) = reply(record)["choices"][0]["scores"]
        largest = max(scores["values"])
        weights = [math.exp(value - largest) for value in scores["values"]]
        found = {
            token_id: weight / sum(weights)
            for token_id, weight in zip(scores["token_ids"], weights, strict=True)
        }

        assert output["support"] == sum(p > 1e-30 for p in found.values())
        for token_id, expected in zip(output["ids"], output["probabilities"], strict=True):
            assert found[token_id] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("case", cases("beams"))
def test_beams(beams: dict[str, list[Record]], most: int | None, case: dict[str, Any]) -> None:
    """A beam search returns transformers' sequences in transformers' order."""
    found = [reply(record)["choices"] for record in beams[case["name"]]]

    assert [output["sequences"] for output in case["outputs"][:most]] == [
        [choice["token_ids"] for choice in choices] for choices in found
    ]
    for output, choices in zip(case["outputs"][:most], found, strict=True):
        scores = [choice["score"] for choice in choices]
        assert scores == pytest.approx(output["scores"], abs=2e-3)
