"""What docs/parameters.md shows is what the engine takes."""

import concurrent.futures
from typing import Any

import pytest

from local_endpoint import Status
from served import Served
from worker.generation.parameter import Parameter
from worker.generation.table import PARAMETERS

pytestmark = pytest.mark.timeout(300)

EXAMPLES = [row for row in PARAMETERS if row.example is not None]
# What an example has beside it, where it means nothing alone.
BESIDE: dict[str, dict[str, Any]] = {
    "early_stopping": {"num_beams": 2},
    "length_penalty": {"num_beams": 2},
    "negative_prompt": {"guidance_scale": 1.5},
    "negative_prompt_ids": {"guidance_scale": 1.5},
    "use_beam_search": {"best_of": 2},
    "guided_whitespace_pattern": {"guided_json": {"type": "object"}},
}


# transformers heals with the help of a token for the beginning, which the tiny model has not, and
# on a CPU a worker with adapters, as the tiny one, gives no prompt_logprobs.
NOT_ON_TINY = ("token_healing", "prompt_logprobs")


def parameters(row: Parameter) -> dict[str, Any]:
    says_a_length = row.name.startswith(("max_", "min_")) and row.name != "max_time"
    length = {} if says_a_length else {"max_new_tokens": 12}
    return length | BESIDE.get(row.name, {}) | {row.name: row.example}


def outcomes(served: Served, jobs: dict[str, dict[str, Any]]) -> dict[str, object]:
    """Return for each job that did not end well what it said."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        records = dict(zip(jobs, pool.map(served.run, jobs.values()), strict=True))
    return {
        name: record.done[-1].value
        for name, record in records.items()
        if Status.COMPLETED != record.status
    }


def job(row: Parameter) -> dict[str, Any]:
    prompt = "" if row.name == "bos_token_id" else "The sky is blue and"
    return {"prompt": prompt, "sampling_params": parameters(row)}


def test_every_example_runs(tiny: Served) -> None:
    """Each example of the page is a job that is answered."""
    jobs = {row.name: job(row) for row in EXAMPLES if row.name not in NOT_ON_TINY}

    assert {} == outcomes(tiny, jobs)


def test_the_others_run_too(smollm2: Served) -> None:
    """The examples that the tiny model cannot answer are answered by a real one."""
    jobs = {row.name: job(row) for row in EXAMPLES if row.name in NOT_ON_TINY}

    assert {} == outcomes(smollm2, jobs)
    assert len(NOT_ON_TINY) == len(jobs)


def test_every_example_of_the_chain_runs_on_an_openai_route(tiny: Served) -> None:
    """Each parameter of the chain is taken as one of the generation_parameters."""
    jobs = {
        row.name: {
            "openai_route": "/v1/completions",
            "openai_input": {
                "prompt": "The sky is blue and",
                "max_tokens": 30,
                "generation_parameters": {row.name: row.example},
            },
        }
        for row in EXAMPLES
        if row.kind == "chain"
    }

    assert {} == outcomes(tiny, jobs)
