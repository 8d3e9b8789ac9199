"""Thousands of wrong jobs, against one worker: each ends, in an output or in a sentence."""

import copy
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from local_endpoint import Record, Status
from served import FIRST_INPUTS, Served
from worker.generation.table import PARAMETERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SEED, AT_ONCE = 20_261_130, 40
NONSENSE, MUTATED = 200, 1_600
JOB_S = 60.0  # more is a hang: each job alone takes far less than a second

GOOD = {"prompt": "The sky is blue and", "sampling_params": {"max_tokens": 16, "temperature": 0}}
PROMPT = {"prompt": "Hello", "max_tokens": 5}
VALID: list[dict[str, Any]] = [
    *FIRST_INPUTS,
    GOOD,
    {"messages": [{"role": "user", "content": "Hello"}], "sampling_params": {"max_tokens": 5}},
    {"prompt": ["Hello", [10, 11, 12]], "stream": True, "max_batch_size": 3},
    {"prompt": "Hello", "sampling_params": {"num_beams": 2, "max_new_tokens": 5}},
    {"prompt": "Hello", "sampling_params": {"guidance_scale": 1.5, "max_new_tokens": 5}},
    {"prompt": "Hello", "sampling_params": {"guided_json": {"type": "object"}, "max_tokens": 5}},
    {"openai_route": "/v1/completions", "openai_input": PROMPT | {"stream": True, "n": 2}},
    {
        "openai_route": "/v1/completions",
        "openai_input": PROMPT | {"generation_parameters": {"no_repeat_ngram_size": 3}},
    },
    {"openai_route": "/v1/messages/count_tokens", "openai_input": FIRST_INPUTS[0]["openai_input"]},
    {"openai_route": "/v1/embeddings", "openai_input": {"input": ["Hello"]}},
    {"route": "/rerank", "body": {"query": "Hello", "documents": ["a", "b"]}},
    {"route": "/score", "body": {"text_1": "a", "text_2": ["b"]}},
]
WRONG: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.5, -0.0, 1e308, 5e-324, 2**31, 2**63, -(2**64), 10**400),
    *(
        "",
        "x",
        "nan",
        "1e999",
        "\x00",
        "ß🌕",
        "x" * 3000,
        "{",
        "{{ messages }}",
        "(((",
        "text/\r\n",
    ),
    *([], [[]], [None], [1.5], [-1], [2**40], [{}], [True], ["a", 1], [[[[1]]]], [0] * 600),
    *({}, {"a": 1}, {"": None}, {"type": "object"}, {"role": "user"}, {"a": {"b": {"c": []}}}),
]
# Words of Python, of its libraries and of what a server says when it knows nothing.
NOT_A_SENTENCE = (
    *("Traceback", "object has no attribute", "NoneType", "object is not", "unhashable"),
    *("not subscriptable", "positional argument", "keyword argument", "not supported between"),
    *("unsupported operand", "codec can't", "invalid literal", "index out of range", "KeyError"),
    *("TypeError", "AttributeError", "AssertionError", "IndexError", "RuntimeError", "<class"),
    *("Internal server error", "failed to answer this job", "Internal Server Error"),
)


def nonsense(dice: random.Random, depth: int = 0) -> Any:
    """Make any JSON."""
    kind = dice.random() if depth < 4 else 0
    if kind < 0.6:
        return copy.deepcopy(dice.choice(WRONG))
    if kind < 0.8:
        return [nonsense(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {name(dice): nonsense(dice, depth + 1) for _ in range(dice.randrange(4))}


def name(dice: random.Random) -> str:
    names = ["prompt", "messages", "stream", "route", "body", "openai_route", "content", "", "x"]
    return dice.choice(names)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Give each container in a value with each of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def mutated(dice: random.Random, job_input: dict[str, Any]) -> Any:
    """Change one to three places of a job: another value, none, another name, one more."""
    job_input = copy.deepcopy(job_input)
    for _ in range(dice.randint(1, 3)):
        found = list(places(job_input))
        if not found:
            break
        container, key = dice.choice(found)
        change = dice.randrange(4)
        if change < 2:
            container[key] = nonsense(dice, 2)
        elif change == 2 and isinstance(container, dict):
            container[name(dice)] = container.pop(key)
        elif isinstance(container, dict):
            container[dice.choice([*container, name(dice)])] = nonsense(dice, 2)
        else:
            container.insert(key, nonsense(dice, 2))
    return job_input


def jobs(dice: random.Random) -> Iterator[Any]:
    """Make the inputs: each parameter with each wrong value, any JSON, and nearly valid jobs."""
    for row, wrong in itertools.product(PARAMETERS, WRONG):
        if dice.random() < 0.5:
            yield {"prompt": "Hello", "sampling_params": {"max_tokens": 5, row.name: wrong}}
        else:
            parameters = {"generation_parameters": {row.name: wrong}}
            body = PROMPT | dice.choice([parameters, {row.name: wrong}])
            yield {"openai_route": "/v1/completions", "openai_input": body}
    for _ in range(NONSENSE):
        yield nonsense(dice)
        yield {"prompt": nonsense(dice)}
    for _ in range(MUTATED):
        yield mutated(dice, dice.choice(VALID))


def fault(record: Record) -> str | None:
    """Return what is wrong with the end of a job, or None."""
    message = record.done[-1].value if record.done else None
    if message is None:
        return "its result is not JSON"
    if record.status is Status.COMPLETED:
        return None if isinstance(message.get("output"), list) else "it has no output"
    try:
        error = json.loads(message["error"])["error"]
        sentence, kind = error["message"], error["type"]
    except (ValueError, KeyError, TypeError):
        return "its error is not of the one shape"
    if not (isinstance(sentence, str) and sentence.strip() and isinstance(kind, str) and kind):
        return "its error has no sentence or no type"
    return next((f"it says {words!r}" for words in NOT_A_SENTENCE if words in sentence), None)


def test_every_job_ends_in_an_output_or_a_sentence(tiny: Served) -> None:
    """Whatever jobs hold, the worker answers them all, and then a good one as before."""
    dice = random.Random(SEED)
    inputs = list(jobs(dice))
    dice.shuffle(inputs)  # so that neighbours differ
    before = tiny.run(GOOD).done[-1].value["output"]
    faults = []
    for start in range(0, len(inputs), AT_ONCE):
        batch = inputs[start : start + AT_ONCE]
        ids = [tiny.endpoint.submit(one) for one in batch]
        good = tiny.endpoint.submit(GOOD)
        for job_id, one in zip(ids, batch, strict=True):
            try:
                what = fault(tiny.endpoint.wait_for_end(job_id, JOB_S))
            except TimeoutError:
                what = "it has no end"
            if what is not None:
                said = tiny.endpoint.record(job_id).done
                faults.append((what, one, said and said[-1].value))
        assert before == tiny.endpoint.wait_for_end(good, JOB_S).done[-1].value["output"]

    assert not faults, "\n".join(f"{fault!r:.1500}" for fault in faults)
    assert tiny.process.poll() is None
    assert before == tiny.run(GOOD).done[-1].value["output"]
