"""Answers that take several engine requests: sampled beams, guidance, healing."""

from typing import Any

import pytest

from local_endpoint import Record, Status
from served import Served

pytestmark = pytest.mark.timeout(300)

PROMPT = "Hello there, how are you?"
SAMPLED_BEAMS: dict[str, Any] = {
    "num_beams": 3,
    "num_return_sequences": 3,
    "do_sample": True,
    "max_new_tokens": 12,
    "return_token_ids": True,
}


def submit(served: Served, given: dict[str, Any], prompt: Any = PROMPT) -> str:
    return served.endpoint.submit({"prompt": prompt, "sampling_params": given})


def ids(record: Record) -> list[list[int]]:
    """Return the token ids of a job's answers."""
    assert Status.COMPLETED == record.status, record.done[-1].value
    (one,) = record.done[-1].value["output"]
    return [choice["token_ids"] for choice in one["choices"]]


def all_ids(served: Served, given: list[dict[str, Any]]) -> list[list[list[int]]]:
    """Return what jobs answer that run at once."""
    jobs = [submit(served, one) for one in given]
    return [ids(served.endpoint.wait_for_end(job)) for job in jobs]


def test_sampled_searches_without_a_seed_differ(tiny: Served) -> None:
    """Each sampled beam search draws anew, one after the other and at once."""
    found = [ids(tiny.run(_job())) for _ in range(2)]
    found += all_ids(tiny, [SAMPLED_BEAMS] * 4)

    assert 6 == len({str(one) for one in found})


def test_a_seed_repeats_a_sampled_search(tiny: Served) -> None:
    """A seed gives the same sequences alone and among neighbours, and another seed gives others."""
    seeds = [7, 8, 7, 8, 7]
    alone = {seed: ids(tiny.run(_job(seed=seed))) for seed in set(seeds)}
    together = all_ids(
        tiny,
        [SAMPLED_BEAMS | {"seed": seed} for seed in seeds] + [SAMPLED_BEAMS] * 3,
    )

    assert alone[7] != alone[8]
    assert [alone[seed] for seed in seeds] == together[: len(seeds)]


@pytest.mark.parametrize("seed", [None, 5])
def test_each_step_of_a_sampled_search_draws_anew(tiny: Served, seed: int | None) -> None:
    """Where all of eight tokens are alike the answer does not repeat one pattern."""
    alike = {"allowed_token_ids": list(range(70, 78)), "temperature": 1e6, "max_new_tokens": 24}
    (best, *_) = ids(tiny.run(_job(seed=seed, **alike)))

    assert len(set(best)) >= 5


def _job(**more: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "sampling_params": SAMPLED_BEAMS | more}
