"""The shape of a native reply."""

import json

import pytest
from vllm.logprobs import Logprob

from worker.native.reply import logprobs_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-0.5, -0.5), (-1e5, -9999.0), (-float("inf"), -9999.0), (float("inf"), None)],
)
def test_log_probabilities_are_strict_json(value: float, expected: float | None) -> None:
    """What is impossible is vLLM's number, and what JSON has no number for is null."""
    (one,) = logprobs_of([7], [{7: Logprob(value, 1, "a"), 8: Logprob(float("nan"), 2, "b")}])

    assert {"token_id": 7, "token": "a", "logprob": expected} == one["top"][0]
    assert {"token_id": 8, "token": "b", "logprob": None} == one["top"][1]
    assert one == one["top"][0] | {"top": one["top"]}
    json.dumps(one, allow_nan=False)


def test_a_token_without_a_log_probability() -> None:
    """A token that vLLM lists none for has none."""
    (one,) = logprobs_of([7], [{8: Logprob(-1.0, 1, "b")}])

    assert (7, None, None) == (one["token_id"], one["token"], one["logprob"])
    assert [8] == [entry["token_id"] for entry in one["top"]]
