"""The chain gives the same tokens on both of vLLM's model runners, and keeps the V2 one alive."""

import json
from pathlib import Path
from typing import Any

import pytest

import models
from local_endpoint import Record
from served import Served, serve
from v2_runner import v2_environ

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
GOLDEN = Path(__file__).parents[1] / "golden"
FIXED = {"max_new_tokens": 16, "return_token_ids": True, "do_sample": False}
SETTINGS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"suppress_tokens": [10, 11, 12, 13], "begin_suppress_tokens": [30, 40]},
    {"sequence_bias": [[[50], 12.0], [[50, 60], 15.0]]},
    {"bad_words_ids": [[50], [60, 70]], "min_new_tokens": 6},
    {"encoder_repetition_penalty": 1.4, "encoder_no_repeat_ngram_size": 2},
    {"exponential_decay_length_penalty": [4, 1.6]},
    {"watermarking_config": {"seeding_scheme": "selfhash", "bias": 4.0}},
    {"watermarking_config": {"keys": [5, 7, 11], "ngram_len": 4}},
    {"guidance_scale": 1.7, "no_repeat_ngram_size": 2},
    {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.5},
    {"output_scores": 5, "output_logits": 5, "repetition_penalty": 1.2},
]
# Each ends a V2 engine that nobody guards.
POISON: list[tuple[str, dict[str, Any]]] = [
    ("logit_bias", {"logit_bias": {str(i): 1.0 for i in range(1025)}}),
    ("allowed_token_ids", {"allowed_token_ids": list(range(1025))}),
    ("min_tokens", {"min_tokens": 2, "stop_token_ids": list(range(10, 138))}),
    (
        "bad_words",
        {"bad_words": [f"{i} is the number of a bad word that is long" for i in range(60)]},
    ),
]


def told(record: Record) -> Any:
    value = record.done[-1].value
    assert "output" in value, value
    (reply,) = value["output"]
    return [
        {key: choice.get(key) for key in ("token_ids", "finish_reason")}
        for choice in reply["choices"]
    ]


def numbers(record: Record) -> list[float]:
    (reply,) = record.done[-1].value["output"]
    steps = reply["choices"][0]
    return [value for key in ("scores", "logits") for s in steps[key] for value in s["values"]]


def ask_all(served: Served) -> list[Record]:
    """Run every setting at once."""
    prompts = ["The list is empty", "x = 1\ny = 2\nx ="]
    jobs = [
        served.endpoint.submit({"prompt": prompt, "sampling_params": FIXED | setting})
        for setting in SETTINGS
        for prompt in prompts
    ]
    return [served.endpoint.wait_for_end(job, 200) for job in jobs]


def test_the_chain_is_the_same(v2_runner: Served, tiny: Served) -> None:
    """Every kind of processor, guidance and beams write the same on both runners."""
    first, second = ask_all(tiny), ask_all(v2_runner)

    assert [told(record) for record in first] == [told(record) for record in second]
    for one, other in zip(first[-2:], second[-2:], strict=True):
        assert numbers(one) == pytest.approx(numbers(other), abs=1e-3)


@pytest.mark.parametrize(("name", "fields"), POISON)
@pytest.mark.parametrize("path", ["native", "openai"])
def test_poison(v2_runner: Served, path: str, name: str, fields: dict[str, Any]) -> None:
    """What would end the engine is refused with a sentence, and the neighbour finishes."""
    neighbour = v2_runner.endpoint.submit(
        {"prompt": "Hello", "sampling_params": {"max_tokens": 12, "ignore_eos": True}}
    )
    if path == "native":
        job: dict[str, Any] = {"prompt": "Hello", "sampling_params": fields}
    else:
        job = {"openai_route": "/v1/completions", "openai_input": {"prompt": "Hello"} | fields}
    error = json.loads(v2_runner.run(job).done[-1].value["error"])["error"]
    beside = v2_runner.endpoint.wait_for_end(neighbour, 60)

    assert (400, name) == (error["code"], error["param"])
    assert beside.done[-1].value["output"][0]["usage"]["output"] == 12


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_golden_on_v2() -> None:
    """The V2 runner too writes what transformers' `generate()` writes."""
    golden = json.loads((GOLDEN / "greedy.json").read_text())
    # A stop string that begins in the prompt is no match for vLLM, on either runner.
    golden["cases"] = [c for c in golden["cases"] if "begin_in_the_prompt" not in c["name"]]
    environ = {"MODEL_NAME": str(models.path("smollm2-135m-instruct"))}
    with serve(environ | v2_environ.environ()) as served:
        jobs = [
            served.endpoint.submit(
                {
                    "prompt": golden["prompts"][case["prompts"][0]],
                    "sampling_params": case["parameters"] | {"return_token_ids": True},
                }
            )
            for case in golden["cases"]
        ]
        records = [served.endpoint.wait_for_end(job, 800) for job in jobs]

    assert {case["name"]: case["outputs"][0] for case in golden["cases"]} == {
        case["name"]: told(record)[0]["token_ids"]
        for case, record in zip(golden["cases"], records, strict=True)
    }
