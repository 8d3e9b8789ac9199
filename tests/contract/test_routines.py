"""Answers that take several engine requests: sampled beams, guidance, healing."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import models
from local_endpoint import Record, Status
from served import Served, metric, serve
from waiting import wait_until

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
    seeds = [7, 8] * 6
    alone = {seed: ids(tiny.run(_job(seed=seed))) for seed in set(seeds)}
    together = all_ids(
        tiny,
        [SAMPLED_BEAMS | {"seed": seed} for seed in seeds] + [SAMPLED_BEAMS] * 6,
    )

    assert alone[7] != alone[8]
    assert [alone[seed] for seed in seeds] == together[: len(seeds)]


@pytest.mark.parametrize("seed", [None, 5])
def test_each_step_of_a_sampled_search_draws_anew(tiny: Served, seed: int | None) -> None:
    """Where 64 tokens are alike the answer does not repeat the few of one draw."""
    alike = {"allowed_token_ids": list(range(100, 164)), "temperature": 1e6, "max_new_tokens": 24}
    (best, *_) = ids(tiny.run(_job(seed=seed, **alike)))

    assert len(set(best)) > 10


def _job(**more: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "sampling_params": SAMPLED_BEAMS | more}


@pytest.mark.parametrize(
    "scores",
    [{}, pytest.param({"output_scores": 2}, marks=pytest.mark.slow)],
    ids=["plain", "scores"],
)
def test_a_pair_that_lost_step_is_over_at_once(tiny: Served, scores: dict[str, Any]) -> None:
    """Guided answers take two engine tokens for each of theirs, and few more.

    On an idle engine the first request of a pair is often alone in the first step.
    """
    given = {"guidance_scale": 1.7, "max_new_tokens": 100, "ignore_eos": True, **scores}
    before = metric(tiny, "generation_tokens_total")
    for _ in range(8):
        ((one,),) = all_ids(tiny, [{**given, "return_token_ids": True}])

        assert 100 == len(one)
    made = metric(tiny, "generation_tokens_total") - before

    assert 8 * 200 <= made < 8 * 300


def test_guidance_ends_where_its_stop_stands(tiny: Served) -> None:
    """A guided answer that a stop string ends early costs the engine little more than its text."""
    given = {"guidance_scale": 1.7, "do_sample": False, "max_new_tokens": 400, "ignore_eos": True}
    given |= {"return_token_ids": True}
    whole = tiny.endpoint.wait_for_end(submit(tiny, given))
    (choice,) = whole.done[-1].value["output"][0]["choices"]
    text = "".join(choice["tokens"])
    before = metric(tiny, "generation_tokens_total")
    record = tiny.endpoint.wait_for_end(submit(tiny, given | {"stop": [text[10:14]]}))
    made = metric(tiny, "generation_tokens_total") - before
    (stopped,) = record.done[-1].value["output"][0]["choices"]

    assert "stop" == stopped["finish_reason"]
    assert text[: text.index(text[10:14])] == "".join(stopped["tokens"])
    assert stopped["token_ids"] == choice["token_ids"][: len(stopped["token_ids"])]
    assert made < 400


@pytest.fixture(scope="module")
def narrow() -> Iterator[Served]:
    """The tiny model, where one sequence at a time runs the chain; an adapter's weights are NaN."""
    adapters = [{"name": "nan", "path": str(models.path("tiny-lora-nan"))}]
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "ENABLE_LORA": "true",
        "LORA_MODULES": json.dumps(adapters),
        "MAX_CHAINS": "1",
        "MAX_BATCH_DELAY_MS": "0",
    }
    with serve(environ) as served:
        yield served


@pytest.mark.slow
def test_healing_waits_for_its_turn(narrow: Served) -> None:
    """The request that heals a prompt runs the chain, and so it is one of MAX_CHAINS."""
    long = {"typical_p": 0.9, "max_new_tokens": 400, "ignore_eos": True}
    first = narrow.endpoint.submit({"prompt": PROMPT, "sampling_params": long, "stream": True})
    wait_until(lambda: narrow.endpoint.record(first).stream)
    healed = narrow.endpoint.wait_for_end(
        submit(narrow, {"token_healing": True, "max_new_tokens": 1}, "The link is http:")
    )
    chained = narrow.endpoint.wait_for_end(first)

    assert chained.done[-1].at_s < healed.done[-1].at_s


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [{"logprobs": 2}, {"output_logits": 2}, {"num_beams": 2}])
def test_weights_that_are_no_numbers(narrow: Served, more: dict[str, Any], stream: bool) -> None:
    """What a model of NaN gives is strict JSON, or one sentence."""
    given = {"max_new_tokens": 3, "temperature": 0, **more}
    job = {"prompt": PROMPT, "model": "nan", "stream": stream, "sampling_params": given}
    record = narrow.run(job)

    json.dumps(record.done[-1].value, allow_nan=False)


@pytest.mark.slow
def test_a_pair_meets_where_there_are_two_engines() -> None:
    """With DATA_PARALLEL_SIZE both requests of a guided answer go to the same engine."""
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "DATA_PARALLEL_SIZE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }
    given = {"guidance_scale": 1.7, "max_new_tokens": 50, "ignore_eos": True}
    with serve(environ) as served:
        before = metric(served, "generation_tokens_total")
        found = all_ids(served, [given | {"return_token_ids": True}] * 6)
        made = metric(served, "generation_tokens_total") - before

    assert [[50]] * 6 == [[len(one) for one in choices] for choices in found]
    assert made < 6 * 50 * 3
