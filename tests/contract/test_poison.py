"""Requests that would end the engine or pass in silence, each beside an innocent neighbour."""

import concurrent.futures
import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from local_endpoint import Record, Status
from served import Served, cancel, running_requests, text
from waiting import wait_until

pytestmark = pytest.mark.timeout(300)

VOCAB = 4096
ALL = list(range(VOCAB))
EOS = 1
INNOCENT = {
    "prompt": "Hello",
    "stream": True,
    "sampling_params": {"temperature": 0, "max_tokens": 150, "ignore_eos": True},
}
PLACES = ("native", "completions", "chat")
MESSAGES = [{"role": "user", "content": "Hello"}]
SYNTHID = {"keys": [654, 400, 836, 123, 340, 443], "ngram_len": 5}


def job(place: str, stream: bool = False, **given: Any) -> dict[str, Any]:
    """Return a job that asks for these parameters, in the dialect of a place."""
    given = {"max_new_tokens": 8} | given
    if place == "native":
        return {"prompt": "Hello", "stream": stream, "sampling_params": given}
    asked = {"prompt": "Hello"} if place == "completions" else {"messages": MESSAGES}
    route = "/v1/completions" if place == "completions" else "/v1/chat/completions"
    body = asked | {"stream": stream, "generation_parameters": given}
    return {"openai_route": route, "openai_input": body}


def body(place: str, **given: Any) -> dict[str, Any]:
    """Return a job of an OpenAI route with fields of vLLM's own."""
    made = job(place)
    del made["openai_input"]["generation_parameters"]
    return made | {"openai_input": made["openai_input"] | {"max_tokens": 8} | given}


def message(record: Record) -> str:
    return str(json.loads(record.done[-1].value["error"])["error"]["message"])


def posted(record: Record) -> str:
    """Return all that a stream of an OpenAI route posted."""
    return "".join(post.value for post in record.stream if isinstance(post.value, str))


def folder_of(served: Served) -> Path:
    """Return the folder of the worker's reports, which it holds a lock on."""
    opened = []
    for one in Path(f"/proc/{served.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            opened.append(os.readlink(one))
    (folder,) = {one for one in opened if re.fullmatch(r"/dev/shm/worker-vllm-\w{8}", one)}
    return Path(folder)


def reports(served: Served) -> set[str]:
    """Return the reports of running requests; the first two are the engine's, while it lives."""
    names = os.listdir(folder_of(served))
    return {name for name in names if name.isdigit() and int(name) > 1}


@pytest.fixture(scope="module")
def beside(tiny: Served) -> Callable[[list[dict[str, Any]]], list[Record]]:
    """Run jobs while an innocent job streams, which must write what it writes alone."""
    alone = text(tiny.run(INNOCENT))

    def run(jobs: list[dict[str, Any]]) -> list[Record]:
        neighbour = tiny.endpoint.submit(INNOCENT)
        wait_until(lambda: tiny.endpoint.record(neighbour).stream)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            records = list(pool.map(tiny.run, jobs))
        record = tiny.endpoint.wait_for_end(neighbour)

        assert Status.COMPLETED == record.status
        assert alone == text(record)
        assert alone == text(tiny.run(INNOCENT))
        assert set() == reports(tiny)
        return records

    return run


Beside = Callable[[list[dict[str, Any]]], list[Record]]

NOTHING_LEFT = "leave no token"
SAMPLED = {"do_sample": True}
GREEDY = {"do_sample": False}
IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    (GREEDY | {"suppress_tokens": ALL}, NOTHING_LEFT),
    (SAMPLED | {"suppress_tokens": ALL}, NOTHING_LEFT),
    (SAMPLED | {"suppress_tokens": ALL, "seed": 7, "n": 3}, NOTHING_LEFT),
    (GREEDY | {"suppress_tokens": ALL, "ignore_eos": True}, NOTHING_LEFT),
    (GREEDY | {"suppress_tokens": ALL, "eos_token_id": [7, 8]}, NOTHING_LEFT),
    (GREEDY | {"suppress_tokens": ALL, "min_tokens": 8}, NOTHING_LEFT),
    (GREEDY | {"suppress_tokens": ALL, "stop": ["x"]}, NOTHING_LEFT),
    (GREEDY | {"suppress_tokens": ALL, "remove_invalid_values": True}, NOTHING_LEFT),
    (GREEDY | {"suppress_tokens": ALL, "forced_eos_token_id": EOS}, "forced_eos_token_id"),
    (GREEDY | {"suppress_tokens": ALL, "structured_outputs": {"choice": ["a"]}}, NOTHING_LEFT),
    (GREEDY | {"suppress_tokens": ALL, "guided_regex": "[ab]+"}, NOTHING_LEFT),
    (GREEDY | {"suppress_tokens": [70], "allowed_token_ids": [70]}, NOTHING_LEFT),
    (SAMPLED | {"typical_p": 0.5, "suppress_tokens": ALL, "seed": 7}, NOTHING_LEFT),
    (GREEDY | {"sequence_bias": [[[token], float("-inf")] for token in ALL]}, NOTHING_LEFT),
    (SAMPLED | {"sequence_bias": [[[token], -1e39] for token in ALL]}, NOTHING_LEFT),
    (SAMPLED | {"min_new_tokens": 2, "allowed_token_ids": [EOS]}, NOTHING_LEFT),
    (SAMPLED | {"bad_words_ids": [[t] for t in ALL], "min_new_tokens": 2, "n": 2}, NOTHING_LEFT),
    (GREEDY | {"begin_suppress_tokens": ALL}, NOTHING_LEFT),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_an_impossible_request_fails_alone(beside: Beside, place: str, stream: bool) -> None:
    """Where no token is left the job fails with a sentence, where vLLM would write token 0."""
    records = beside([job(place, stream, **given) for given, _ in IMPOSSIBLE])

    for (given, sentence), record in zip(IMPOSSIBLE, records, strict=True):
        assert Status.FAILED == record.status, given
        assert sentence in message(record), given
        # No part of a stream tells of a good end before the error.
        told = posted(record)
        assert '"finish_reason":"' not in told, given
        assert told.count("[DONE]") == (1 if stream and place != "native" else 0), given


def test_a_failure_in_the_middle_of_a_stream(beside: Beside) -> None:
    """What was written before the failure arrives, and the end is the error alone."""
    given = GREEDY | {"bad_words_ids": [[t] for t in ALL if t not in (70, 71)], "eos_token_id": 71}
    given |= {"no_repeat_ngram_size": 1, "min_new_tokens": 8}
    native, chat = beside([job("native", True, **given), job("chat", True, **given)])

    assert [1] == [post.value["usage"]["output"] for post in native.stream]
    assert NOTHING_LEFT in message(native)
    assert NOTHING_LEFT in message(chat)
    assert '"finish_reason":"' not in posted(chat)


WATERMARKS: list[dict[str, Any]] = [
    {"context_width": 64},
    {"context_width": 64, "seeding_scheme": "selfhash"},
    {"greenlist_ratio": 1e-9, "bias": 1000},
    {"greenlist_ratio": 0.999999, "bias": -1000, "hashing_key": 0},
    {"seeding_scheme": "selfhash", "hashing_key": 2**31},
    {"keys": [0], "ngram_len": 2},
    {"keys": [2**31 - 1] * 64, "ngram_len": 64, "context_history_size": 65_536},
    SYNTHID | {"sampling_table_size": 2, "context_history_size": 1},
    SYNTHID | {"sampling_table_size": 2**20, "skip_first_ngram_calls": True, "debug_mode": True},
]
EXTREME: list[dict[str, Any]] = [
    *({"watermarking_config": given} | SAMPLED for given in WATERMARKS),
    SAMPLED | {"temperature": 1e-6},
    SAMPLED | {"temperature": 1e6, "top_k": 2**40},
    SAMPLED | {"top_p": 0.0},
    SAMPLED | {"top_h": 1e-30},
    SAMPLED | {"typical_p": 1e-30, "n": 3, "seed": 1},
    SAMPLED | {"epsilon_cutoff": 0.999},
    SAMPLED | {"eta_cutoff": 0.999},
    SAMPLED | {"min_p": 1.0, "typical_p": 0.1, "top_h": 0.1, "eta_cutoff": 0.5, "top_p": 0.1},
    SAMPLED | {"repetition_penalty": 1e6, "encoder_repetition_penalty": 1e6, "typical_p": 0.9},
    SAMPLED | {"repetition_penalty": 1e-6, "encoder_repetition_penalty": 1e-6, "typical_p": 0.9},
    GREEDY | {"no_repeat_ngram_size": 1_000_000, "encoder_no_repeat_ngram_size": 1_000_000},
    GREEDY | {"no_repeat_ngram_size": 1, "encoder_no_repeat_ngram_size": 1},
    GREEDY | {"exponential_decay_length_penalty": [0, 100.0], "min_new_tokens": 8},
    GREEDY | {"exponential_decay_length_penalty": [0, 1e-300]},
    GREEDY | {"sequence_bias": [[[70], 1e6]], "remove_invalid_values": True},
    GREEDY | {"suppress_tokens": ALL[:-1]},
    GREEDY | {"suppress_tokens": [5] * 32_000},
    GREEDY | {"bad_words_ids": [[5, 6]] * 40_000},
    GREEDY | {"bad_words_ids": [[token] for token in ALL[2:-1]]},
    GREEDY | {"sequence_bias": [[[token], 1.0] for token in ALL] * 5},
    GREEDY | {"bad_words_ids": [[7] * 32_000]},
    GREEDY | {"eos_token_id": ALL},
    GREEDY | {"forced_eos_token_id": ALL},
    GREEDY | {"forced_bos_token_id": 9, "max_new_tokens": 1},
    GREEDY | {"min_length": 11, "min_new_tokens": 8},
]


@pytest.mark.parametrize("place", PLACES)
def test_an_extreme_request_completes(beside: Beside, place: str) -> None:
    """Legal values, however extreme, give an answer and harm nobody."""
    records = beside([job(place, i % 2 == 1, **given) for i, given in enumerate(EXTREME)])

    failed = [
        (given, message(record))
        for given, record in zip(EXTREME, records, strict=True)
        if Status.COMPLETED != record.status
    ]
    assert [] == failed


OUTSIDE: list[tuple[str, Any]] = [
    (name, shape(token))
    for token in (VOCAB, -1, 2**31, 2**63, 2**100)
    for name, shape in (
        ("suppress_tokens", lambda t: [5, t]),
        ("begin_suppress_tokens", lambda t: [t]),
        ("bad_words_ids", lambda t: [[5], [6, t]]),
        ("sequence_bias", lambda t: [[[t, 5], 1.0]]),
        ("forced_bos_token_id", lambda t: t),
        ("forced_eos_token_id", lambda t: [5, t]),
        ("eos_token_id", lambda t: t),
        ("stop_token_ids", lambda t: [t]),
        ("logit_bias", lambda t: {str(t): 1.0}),
        ("allowed_token_ids", lambda t: [5, t]),
    )
]


@pytest.mark.parametrize("place", PLACES)
def test_ids_outside_the_vocabulary_are_refused(beside: Beside, place: str) -> None:
    """On a GPU such an id would end the engine; it is refused naming the parameter."""
    records = beside([job(place, **GREEDY, **{name: value}) for name, value in OUTSIDE])

    for (name, value), record in zip(OUTSIDE, records, strict=True):
        assert Status.FAILED == record.status, (name, value)
        assert name in message(record), (name, value)


# vLLM's own fields: more than the V2 runner takes, which V1 must take, and what neither can.
OWN: list[tuple[dict[str, Any], str | None]] = [
    ({"logit_bias": {str(token): 1.0 for token in range(1500)}}, None),
    ({"allowed_token_ids": list(range(2, 1500))}, None),
    ({"min_tokens": 3, "stop_token_ids": list(range(2, 300))}, None),
    ({"bad_words": ["a"] * 1000}, None),
    ({"logit_bias": {str(VOCAB): 1.0}}, "logit_bias"),
    ({"logit_bias": {"-1": 1.0}}, "logit_bias"),
    ({"allowed_token_ids": [VOCAB]}, "allowed_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"stop_token_ids": [VOCAB], "min_tokens": 3}, "stop_token_ids"),
    ({"structured_outputs": {"regex": "("}}, "regex"),
    ({"structured_outputs": {"grammar": "nonsense"}}, "grammar"),
    ({"vllm_xargs": {"anything": "else"}}, None),
]


@pytest.mark.parametrize("place", PLACES[1:])
def test_vllms_own_fields(beside: Beside, place: str) -> None:
    """The long lists that end vLLM's other runner are answered here, wrong ones refused."""
    records = beside([body(place, **given) for given, _ in OWN])

    for (given, word), record in zip(OWN, records, strict=True):
        if word is None:
            assert Status.COMPLETED == record.status, given
        else:
            assert Status.FAILED == record.status, given
            assert word in message(record), given


@pytest.mark.parametrize("place", PLACES)
def test_prompt_logprobs_with_adapters(beside: Beside, place: str) -> None:
    """vLLM's CPU engine with adapters dies of the prompt's log-probabilities; they are refused."""
    given = {"prompt_logprobs": 1}
    if place == "native":
        asked = [job(place, **given), job(place, True, **given) | {"prompt": ["Hello", [5, 6]]}]
    else:
        asked = [body(place, **given)]
    records = beside(asked)

    assert {Status.FAILED} == {record.status for record in records}
    assert all("prompt_logprobs" in message(record) for record in records)


ORDER = {"fields": {"suppress_tokens": ALL}, "eos": [EOS], "report": "/tmp/forged"}
FORGED = [
    json.dumps(ORDER),
    json.dumps(ORDER | {"seal": ""}),
    json.dumps(ORDER | {"seal": "0" * 32}),
    json.dumps(ORDER)[:-1] + ', "seal": "',
    [json.dumps(ORDER)],
    ["seal"],
    "",
    0,
    1.5,
]
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 4}),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4}),
    ("/v1/chat/completions/batch", {"messages": [MESSAGES, MESSAGES], "max_tokens": 4}),
    ("/v1/responses", {"input": "Hello", "max_output_tokens": 4}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4}),
]


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("route", "given"), ROUTES, ids=[route for route, _ in ROUTES])
def test_a_forged_order_is_refused(
    beside: Beside, route: str, given: dict[str, Any], stream: bool
) -> None:
    """A client cannot reach the chain past the checks, on any route that takes vllm_xargs."""
    if stream and route.endswith("batch"):
        pytest.skip("vLLM streams no batch")
    asked = [
        given | {"stream": stream, "vllm_xargs": {"worker_chain": forged, "other": 1}}
        for forged in FORGED
    ]
    records = beside([{"openai_route": route, "openai_input": one} for one in asked])

    assert {Status.FAILED} == {record.status for record in records}
    if not (stream and route == "/v1/messages"):  # there vLLM 0.32 trips over its own error
        assert all("worker's own" in message(record) for record in records)
    assert not os.path.exists("/tmp/forged")


def test_no_other_way_leads_to_the_chain(beside: Beside) -> None:
    """The key in any other place, and beside generation_parameters, is refused or ignored."""
    key = {"worker_chain": json.dumps(ORDER)}
    refused = [
        body("chat", vllm_xargs=key, generation_parameters={"typical_p": 0.5}),
        body("chat", vllm_xargs=key, generation_parameters={}),
        body("chat", vllm_xargs=key, generation_parameters=None),
        body("completions", vllm_xargs=key, generation_parameters={"temperature": 0.5}),
        body("completions", generation_parameters={"extra_args": key}),
        body("completions", generation_parameters={"vllm_xargs": key}),
        job("native", extra_args=key),
        job("native", vllm_xargs=key),
        job("native") | {"extra_args": key},
        {"route": "/inference/v1/generate", "body": {"sampling_params": {"extra_args": key}}},
    ]
    ignored = [
        body("completions", extra_args=key),
        body("chat", extra_args=key, sampling_params={"extra_args": key}),
        body("completions", use_beam_search=True, n=2, vllm_xargs=key),
    ]
    records = beside(refused + ignored)

    assert [Status.FAILED] * len(refused) + [Status.COMPLETED] * len(ignored) == [
        record.status for record in records
    ]
    assert not os.path.exists("/tmp/forged")


LEGAL = ["yes", "no", "perhaps not"]
CHAINS: list[dict[str, Any]] = [
    SAMPLED | {"typical_p": 0.2},
    SAMPLED | {"top_h": 0.2},
    SAMPLED | {"eta_cutoff": 0.3},
    SAMPLED | {"epsilon_cutoff": 0.3},
    SAMPLED | {"temperature": 1e6, "top_p": 0.9, "min_p": 0.1},
    SAMPLED | {"watermarking_config": {"bias": 50.0}},
    SAMPLED | {"watermarking_config": {"bias": 50.0, "seeding_scheme": "selfhash"}},
    SAMPLED | {"watermarking_config": SYNTHID},
    GREEDY | {"renormalize_logits": True},
    GREEDY | {"remove_invalid_values": True},
    GREEDY | {"forced_eos_token_id": EOS},
    GREEDY | {"suppress_tokens": list(range(200, 400))},
    GREEDY | {"sequence_bias": [[[70], 1e6]], "remove_invalid_values": True},
    GREEDY | {"no_repeat_ngram_size": 5, "repetition_penalty": 1.5},
    GREEDY | {"exponential_decay_length_penalty": [1, 50.0]},
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_holds_under_every_chain(beside: Beside, stream: bool) -> None:
    """With structured outputs every chain still writes one of the legal answers."""
    grammar = {"structured_outputs": {"choice": LEGAL}, "max_new_tokens": 30}
    records = beside([job("native", stream, **given, **grammar) for given in CHAINS])
    plain = beside([job("completions", **given, **grammar) for given in CHAINS])

    assert [] == [
        (given, text(record))
        for given, record in zip(CHAINS, records, strict=True)
        if text(record) not in LEGAL
    ]
    written = [record.done[-1].value["output"][0]["choices"][0]["text"] for record in plain]
    assert [] == [one for one in written if one not in LEGAL]


ENDLESS: dict[str, Any] = {"max_new_tokens": 450, "ignore_eos": True}
STOPPED: list[dict[str, Any]] = [
    job("native", True, typical_p=0.9, **ENDLESS),
    job("native", False, typical_p=0.9, n=3, **ENDLESS),
    job("native", True, output_scores=5, output_logits=5, n=3, **SAMPLED, **ENDLESS),
    job("native", False, suppress_tokens=[5], best_of=3, **SAMPLED, **ENDLESS),
    job("native", False, num_beams=4, eos_token_id=3, max_new_tokens=450),
    job("native", True, num_beams=3, eos_token_id=3, max_new_tokens=450),
    job("native", False, guidance_scale=1.5, **GREEDY, **ENDLESS),
    job("native", True, guidance_scale=1.5, negative_prompt="No.", **ENDLESS),
    job("native", False, watermarking_config=SYNTHID, **SAMPLED, **ENDLESS),
    job("native", False, max_time=60.0, n=2, **SAMPLED, **ENDLESS),
    job("completions", True, typical_p=0.9, **ENDLESS),
    job("chat", False, typical_p=0.9, n=2, **ENDLESS),
]


def test_stopped_jobs_leave_nothing(tiny: Served) -> None:
    """Jobs stopped in the middle of a chain, a search or guidance leave no request and no file."""
    for _ in range(5):  # a machine that stands still for a second lets the jobs end first
        jobs = [tiny.endpoint.submit(given) for given in STOPPED]
        # Each has its file as soon as it is asked for.
        seen: set[str] = set()
        wait_until(
            lambda jobs=jobs, seen=seen: (
                seen.update(reports(tiny))
                or len(seen) >= len(STOPPED) - 1
                or all(tiny.endpoint.record(one).done for one in jobs)
            )
        )
        for one in jobs:
            cancel(tiny, one)
        wait_until(lambda: running_requests(tiny) == 0)
        wait_until(lambda: not reports(tiny))
        unfinished = [one for one in jobs if () == tiny.endpoint.record(one).done]
        if len(unfinished) > len(jobs) / 2:
            break

    assert len(unfinished) > len(jobs) / 2
    assert Status.COMPLETED == tiny.run(INNOCENT).status


@pytest.mark.parametrize("given", [STOPPED[4], STOPPED[6]], ids=["beams", "guidance"])
def test_a_stopped_routine_does_not_touch_its_neighbour(
    tiny: Served, given: dict[str, Any]
) -> None:
    """A search or a guided job that is stopped half way ends, and one like it beside it goes on."""
    short = {**given, "sampling_params": given["sampling_params"] | {"max_new_tokens": 40}}
    alone = text(tiny.run(short))
    stopped = tiny.endpoint.submit(given)
    wait_until(lambda: reports(tiny))
    neighbour = tiny.endpoint.submit(short)
    time.sleep(0.3)
    cancel(tiny, stopped)
    record = tiny.endpoint.wait_for_end(neighbour)
    wait_until(lambda: running_requests(tiny) == 0)
    wait_until(lambda: not reports(tiny))

    assert alone == text(record)


def test_more_chains_than_may_run_at_once(beside: Beside) -> None:
    """Eighty jobs with a chain at once are all answered, though not all can run at once."""
    kinds = [
        SAMPLED | {"typical_p": 0.9, "seed": 3},
        GREEDY | {"no_repeat_ngram_size": 3},
        SAMPLED | {"watermarking_config": {"seeding_scheme": "selfhash"}, "seed": 3},
        GREEDY | {"num_beams": 2, "max_new_tokens": 4},
    ]
    jobs = [job("native", i % 3 == 0, **kinds[i % len(kinds)]) for i in range(80)]
    records = beside(jobs)

    assert [Status.COMPLETED] * 80 == [record.status for record in records]
    for kind in range(len(kinds)):
        assert 1 == len({text(record) for record in records[kind :: len(kinds)]})


@pytest.fixture
def full_memory(tiny: Served) -> Iterator[None]:
    """The worker's report folder without a free byte; only root may mount one."""
    folder = folder_of(tiny)
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(folder)]
    if subprocess.run(mount).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (folder / "filler").write_bytes(bytes(16_384))
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.usefixtures("full_memory")
def test_full_shared_memory(tiny: Served) -> None:
    """Without room for reports, scores and searches fail with a sentence; the rest goes on."""
    alone = text(tiny.run(INNOCENT))
    failing = [
        job("native", output_scores=5, **GREEDY),
        job("native", True, output_scores=5, n=2, **SAMPLED),
        job("native", num_beams=3),
        job("native", True, num_beams=3),
        job("native", suppress_tokens=ALL),
        job("completions", suppress_tokens=ALL),
        job("chat", True, suppress_tokens=ALL),
    ]
    working = [INNOCENT, job("native", typical_p=0.9), job("chat", typical_p=0.9), body("chat")]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        records = list(pool.map(tiny.run, failing + working))

    assert {"The worker's shared memory is full. Send the request again."} == {
        message(record) for record in records[: len(failing)]
    }
    assert {Status.COMPLETED} == {record.status for record in records[len(failing) :]}
    assert alone == text(records[len(failing)])


def test_the_worker_recovers_from_full_shared_memory(beside: Beside) -> None:
    """Once there is room again the same jobs are answered."""
    records = beside([job("native", output_scores=5, **GREEDY), job("native", num_beams=3)])

    assert [Status.COMPLETED] * 2 == [record.status for record in records]
