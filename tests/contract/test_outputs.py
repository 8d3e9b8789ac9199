"""What a native reply holds beside its text: the same streamed or not, and transformers' values."""

import itertools
import json
from typing import Any

import pytest
import torch

import models
from local_endpoint import Record, Status
from served import Served, running_requests
from waiting import wait_until

pytestmark = pytest.mark.timeout(300)

LISTS = ("tokens", "logprobs", "scores", "logits", "token_ids")
PROMPT = "Hello there, how are you?"
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}
SAMPLED: dict[str, Any] = {"do_sample": True, "seed": 11, "max_new_tokens": 12}


def ask(served: Served, prompt: Any = PROMPT, stream: bool = False, **given: Any) -> Record:
    return served.run({"prompt": prompt, "stream": stream, "sampling_params": given})


def joined(record: Record) -> dict[str, Any]:
    """Return a job's yields as one: lists added up, the rest as it came last."""
    assert Status.COMPLETED == record.status, record.done[-1].value
    yields = record.done[-1].value["output"]
    whole: dict[str, Any] = {"choices": [{"tokens": []} for _ in yields[0]["choices"]]}
    for one in yields:
        for choice, piece in zip(whole["choices"], one["choices"], strict=True):
            for name, value in piece.items():
                if name in LISTS:
                    choice.setdefault(name, []).extend(value)
                else:
                    assert name not in choice, f"{name} came twice"
                    choice[name] = value
        for name in one.keys() - {"choices", "usage"}:
            assert name not in whole, f"{name} came twice"
            whole[name] = one[name]
        whole["usage"] = one["usage"]
    for choice in whole["choices"]:
        choice["tokens"] = "".join(choice["tokens"])
    return whole


def answer(served: Served, prompt: Any = PROMPT, **given: Any) -> dict[str, Any]:
    """Return the first choice of a job that is not streamed."""
    return joined(ask(served, prompt, **given))["choices"][0]


def close(value: Any) -> Any:
    """Return a value that equals another up to the noise of sums of 32 bits in another order."""
    if isinstance(value, dict):
        return {name: close(one) for name, one in value.items()}
    if isinstance(value, list):
        return [close(one) for one in value]
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value


def refusal(record: Record) -> str:
    assert Status.FAILED == record.status
    return str(json.loads(record.done[-1].value["error"])["error"]["message"])


EVERYTHING: dict[str, Any] = {
    "logprobs": 3,
    "output_scores": 4,
    "output_logits": 2,
    "return_token_ids": True,
}
ASKED: list[dict[str, Any]] = [
    GREEDY,
    GREEDY | {"logprobs": 0},
    GREEDY | {"logprobs": 3, "flat_logprobs": True},
    GREEDY | EVERYTHING,
    GREEDY | EVERYTHING | {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    SAMPLED | EVERYTHING,
    SAMPLED | EVERYTHING | {"n": 3, "typical_p": 0.9},
    SAMPLED | {"num_return_sequences": 3, "logprobs": 1, "return_token_ids": True},
    SAMPLED | {"num_return_sequences": 2, "output_logits": True, "temperature": 1.5},
    SAMPLED | {"top_h": 0.5, "output_scores": True, "logprobs": 2},
    SAMPLED | {"best_of": 4, "n": 2, "return_token_ids": True, "logprobs": 1},
    GREEDY | {"typical_p": 0.5, "top_k": 4, "length_penalty": 2.0},
    GREEDY | {"stop_token_ids": list(range(100, 4000)), "return_token_ids": True},
    GREEDY | {"eos_token_id": list(range(100, 4000)), "output_scores": 1},
    GREEDY | {"structured_outputs": {"choice": ["yes", "no"]}, "output_scores": 5},
    GREEDY | {"num_beams": 4, "num_return_sequences": 3, "return_token_ids": True},
    GREEDY | {"use_beam_search": True, "best_of": 4, "n": 2, "return_token_ids": True},
    GREEDY | {"guidance_scale": 1.7, "output_scores": 3, "output_logits": 3},
    SAMPLED | {"guidance_scale": 1.7, "n": 2, "return_token_ids": True},
    GREEDY | {"guidance_scale": 1.7, "allowed_token_ids": [70, 71, 72], "output_scores": 5},
    GREEDY | {"token_healing": True, "output_scores": 1},
    GREEDY | {"max_time": 60.0, "logprobs": 1},
    SAMPLED | {"max_time": 60.0, "n": 3} | EVERYTHING,
]


def _name(given: dict[str, Any]) -> str:
    return " ".join(name for name in given if name not in GREEDY)


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(PROMPT, id="one"),
        pytest.param(["Hello", [5, 6, 7, 8]], id="two", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("given", ASKED, ids=_name)
def test_pieces_add_up(tiny: Served, given: dict[str, Any], prompt: Any) -> None:
    """What a stream holds, added up, is what the job without a stream holds."""
    plain, stream = (joined(ask(tiny, prompt, stream, **given)) for stream in (False, True))

    assert close(plain) == stream
    for choice in plain["choices"]:
        counts = {len(choice[name]) for name in LISTS[1:] if name in choice}
        assert len(counts) <= 1
        assert "finish_reason" in choice
    json.dumps(plain, allow_nan=False)


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT, [5]], [[504]]], ids=["one", "two", "short"])
@pytest.mark.parametrize("given", [GREEDY, SAMPLED | {"n": 2}, GREEDY | {"flat_logprobs": True}])
def test_the_prompts_log_probabilities_come_once(
    smollm2: Served, given: dict[str, Any], prompt: Any
) -> None:
    """Each answer has a list of its prompt's length, which begins with null, streamed or not."""
    given = given | {"prompt_logprobs": 2, "logprobs": 1, "return_token_ids": True}
    plain, stream = (joined(ask(smollm2, prompt, stream, **given)) for stream in (False, True))
    prompts = plain["prompt_token_ids"]
    prompts = prompts if isinstance(prompts[0], list) else [prompts]

    assert close(plain) == stream
    for index, choice in enumerate(plain["choices"]):
        first, *rest = choice["prompt_logprobs"]
        ids = prompts[index * len(prompts) // len(plain["choices"])]

        assert None is first
        assert ids[1:] == [entry["token_id"] for entry in rest]


def test_a_list_for_each_token(tiny: Served) -> None:
    """Each token has its log-probabilities, scores, logits and id, as many values as asked for."""
    choice = answer(tiny, **GREEDY, **EVERYTHING)

    assert [12] * 4 == [len(choice[name]) for name in LISTS[1:]]
    assert {3} == {len(entry["top"]) for entry in choice["logprobs"]}
    assert {4} == {len(entry["values"]) for entry in choice["scores"]}
    assert {2} == {len(entry["token_ids"]) for entry in choice["logits"]}
    for at, token in enumerate(choice["token_ids"]):
        assert token == choice["logprobs"][at]["token_id"] == choice["scores"][at]["token_ids"][0]


def repeated(prompt: list[int], ids: list[int]) -> list[tuple[int, int]]:
    """Return the pairs of an answer that stand in the prompt or earlier in the answer."""
    pairs, first = list(itertools.pairwise(prompt + ids)), len(prompt) - 1
    return [pair for at, pair in enumerate(pairs) if at >= first and pair in pairs[:at]]


# So few tokens that without the parameter a pair comes again.
FEW: dict[str, Any] = {
    "allowed_token_ids": list(range(100, 116)),
    "max_new_tokens": 60,
    "ignore_eos": True,
    "return_token_ids": True,
}
NO_PAIR_TWICE = {"no_repeat_ngram_size": 2}
HAHA = [100, 101] * 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "given",
    [{"do_sample": False}, {"do_sample": True, "n": 3}, {"num_beams": 2, "n": 2}],
    ids=["greedy", "three", "beams"],
)
def test_no_pair_comes_twice(tiny: Served, given: dict[str, Any], stream: bool) -> None:
    """no_repeat_ngram_size counts the prompt, for every answer and every beam, streamed or not."""
    free, bound = (
        joined(ask(tiny, HAHA, stream, **FEW, **given, **more))["choices"]
        for more in ({}, NO_PAIR_TWICE)
    )

    assert {60} == {len(choice["token_ids"]) for choice in free + bound}
    assert all(repeated(HAHA, choice["token_ids"]) for choice in free)
    assert [[]] * len(bound) == [repeated(HAHA, c["token_ids"]) for c in bound]


def test_no_pair_comes_twice_among_others(tiny: Served) -> None:
    """64 jobs at once, half of them bound: they are, and the others write what they do alone."""
    plain, bound = FEW | {"do_sample": False}, FEW | {"do_sample": True} | NO_PAIR_TWICE
    alone = answer(tiny, HAHA, **plain)["token_ids"]
    given = [plain, bound] * 32
    jobs = [tiny.endpoint.submit({"prompt": HAHA, "sampling_params": one}) for one in given]
    records = [tiny.endpoint.wait_for_end(job, 120) for job in jobs]
    found = [joined(record)["choices"][0]["token_ids"] for record in records]

    assert [alone] * 32 == found[::2]
    assert [[]] * 32 == [repeated(HAHA, ids) for ids in found[1::2]]


def test_how_many_values(tiny: Served) -> None:
    """true is as many as the worker allows, false none, and more than that is refused."""
    by_value = {
        value: answer(tiny, output_scores=value, **GREEDY | {"max_new_tokens": 1})
        for value in (True, False, 0, 20)
    }

    assert [20, 20] == [len(by_value[value]["scores"][0]["values"]) for value in (True, 20)]
    assert "scores" not in by_value[False]
    assert "scores" not in by_value[0]
    assert "MAX_SCORES" in refusal(ask(tiny, output_scores=21))
    assert "MAX_SCORES" in refusal(ask(tiny, output_logits=10**9))


def test_impossible_tokens_have_no_score(tiny: Served) -> None:
    """Where three tokens are possible three scores come: JSON has no infinity."""
    allowed = {"suppress_tokens": [t for t in range(4096) if t not in (70, 71, 72)]}
    scores = answer(tiny, output_scores=True, **allowed, **GREEDY)["scores"]

    assert {(70, 71, 72)} == {tuple(sorted(entry["token_ids"])) for entry in scores}


@pytest.mark.parametrize(
    ("given", "finish", "stop"),
    [
        ({"ignore_eos": True}, "length", None),
        ({"suppress_tokens": list(range(2, 4096))}, "stop", None),
        (
            {"suppress_tokens": list(range(1, 70)), "stop_token_ids": list(range(70, 4096))},
            "stop",
            0,
        ),
        ({"suppress_tokens": [1], "eos_token_id": list(range(2, 4096))}, "stop", None),
        ({"forced_eos_token_id": 1}, "stop", None),
        ({"forced_eos_token_id": 1, "ignore_eos": True}, "length", None),
        ({"structured_outputs": {"choice": ["yes"]}}, "stop", None),
        ({"max_time": 60.0, "ignore_eos": True}, "length", None),
        ({"num_beams": 2, "ignore_eos": True}, "length", None),
        ({"num_beams": 2, "suppress_tokens": list(range(2, 4096))}, "stop", None),
        ({"guidance_scale": 2.0, "ignore_eos": True}, "length", None),
        ({"guidance_scale": 2.0, "suppress_tokens": list(range(2, 4096))}, "stop", None),
    ],
)
def test_reasons(tiny: Served, given: dict[str, Any], finish: str, stop: int | None) -> None:
    """finish_reason says why an answer ended, stop_reason which of the job's own ends it was."""
    choice = answer(tiny, return_token_ids=True, **GREEDY | given)

    assert finish == choice["finish_reason"]
    assert (stop is None) == ("stop_reason" not in choice)
    if stop is not None:
        assert choice["token_ids"][-1] == choice["stop_reason"]


def test_a_stop_text_is_the_reason(smollm2: Served) -> None:
    """stop ends the text before it, stop_strings behind it, and both are named; beams too."""
    given = {"do_sample": False, "max_new_tokens": 20}
    whole = answer(smollm2, "The capital of France is", **given)["tokens"]
    stop = whole[10:16]
    before, behind, beams = (
        answer(smollm2, "The capital of France is", **given | others)
        for others in (
            {"stop": stop},
            {"stop_strings": stop},
            {"stop_strings": stop, "num_beams": 1},
        )
    )

    assert (whole[: whole.index(stop)], stop) == (before["tokens"], before["stop_reason"])
    assert (whole[: whole.index(stop)] + stop, stop) == (behind["tokens"], behind["stop_reason"])
    assert behind == beams


# transformers


@pytest.fixture(scope="module")
def reference() -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models.path("tiny"), dtype=torch.float32)
    return model.eval()


IDS = [70, 300, 1200, 9, 88]


def generated(reference: Any, ids: list[int] = IDS, **given: Any) -> Any:
    settings = {"top_k": 0, "return_dict_in_generate": True, "pad_token_id": 0} | given
    with torch.no_grad():
        prompt = torch.tensor([ids])
        return reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            output_scores=True,
            output_logits=True,
            **settings,
        )


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
        {"encoder_repetition_penalty": 1.5, "suppress_tokens": list(range(500, 900))},
        {"sequence_bias": [[[20], 3.0], [[30, 31], -4.0]], "min_new_tokens": 4},
        {"do_sample": True, "temperature": 0.7, "top_k": 8, "top_p": 0.9},
        {"do_sample": True, "temperature": 2.5, "typical_p": 0.3},
        {"do_sample": True, "min_p": 0.1, "top_p": 0.8, "eta_cutoff": 0.01},
        {"do_sample": True, "top_k": 12, "renormalize_logits": True},
        {"do_sample": True, "watermarking_config": {"bias": 3.0, "seeding_scheme": "lefthash"}},
    ],
    ids=lambda given: " ".join(given) or "plain",
)
@pytest.mark.filterwarnings("ignore")
def test_scores_are_those_of_transformers(
    tiny: Served, reference: Any, given: dict[str, Any]
) -> None:
    """Scores and logits of every step, and the log-probabilities, are generate()'s."""
    samples = given.get("do_sample", False)
    common = {"do_sample": samples, "max_new_tokens": 1 if samples else 6} | given
    expected = generated(reference, **common)
    choice = answer(tiny, IDS, output_scores=20, output_logits=20, logprobs=5, **common)

    for step in range(common["max_new_tokens"]):
        for name in ("scores", "logits"):
            row = getattr(expected, name)[step][0]
            values, ids = row.topk(20)
            possible = values.isfinite()
            found = choice[name][step]
            assert ids[possible].tolist() == found["token_ids"]
            assert values[possible].tolist() == pytest.approx(found["values"], abs=2e-4)
        log_probs = torch.log_softmax(expected.logits[step][0], dim=-1)
        entry = choice["logprobs"][step]
        assert float(log_probs[entry["token_id"]]) == pytest.approx(entry["logprob"], abs=2e-4)


@pytest.mark.parametrize(
    "given",
    [
        {"num_beams": 4, "num_return_sequences": 4},
        {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 2.0},
        {"num_beams": 3, "early_stopping": True, "eos_token_id": list(range(2, 600))},
        {"num_beams": 3, "repetition_penalty": 1.4, "early_stopping": "never"},
    ],
    ids=lambda given: " ".join(given),
)
def test_beams_come_with_their_score(tiny: Served, reference: Any, given: dict[str, Any]) -> None:
    """The best beams come first, each with the ids and the score that generate() gives it."""
    common = GREEDY | given
    expected = generated(reference, **common)
    choices = joined(ask(tiny, IDS, return_token_ids=True, **common))["choices"]
    ends = given.get("eos_token_id", [1])

    assert len(choices) == len(expected.sequences)
    for choice, sequence, score in zip(
        choices, expected.sequences, expected.sequences_scores, strict=True
    ):
        ids = sequence[len(IDS) :].tolist()
        while ids[-1] == 0 and 0 not in ends:
            ids.pop()
        assert ids == choice["token_ids"]
        assert float(score) == pytest.approx(choice["score"], abs=1e-3)
    scores = [choice["score"] for choice in choices]
    assert sorted(scores, reverse=True) == scores


def test_the_older_names_of_a_search(tiny: Served) -> None:
    """use_beam_search with best_of is num_beams; beam_width is another name for it."""
    ways = (
        {"num_beams": 4, "num_return_sequences": 2},
        {"beam_width": 4, "n": 2},
        {"use_beam_search": True, "best_of": 4, "n": 2},
        {"use_beam_search": True, "num_beams": 4, "n": 2},
    )
    answers = [joined(ask(tiny, **GREEDY, **way)) for way in ways]

    assert [answers[0]] * 4 == answers
    assert answers[0] == joined(ask(tiny, temperature=0, max_tokens=12, **ways[2]))


@pytest.mark.parametrize("stream", [False, True])
def test_best_of_returns_the_likeliest(tiny: Served, stream: bool) -> None:
    """Of the sequences that n would return, best_of returns those of the highest probability."""
    every = joined(ask(tiny, n=5, logprobs=0, **SAMPLED))["choices"]
    every.sort(key=lambda choice: -sum(entry["logprob"] for entry in choice["logprobs"]))
    best = joined(ask(tiny, PROMPT, stream, n=2, best_of=5, **SAMPLED))["choices"]

    assert [choice["tokens"] for choice in every[:2]] == [choice["tokens"] for choice in best]
    assert all("logprobs" not in choice for choice in best)


@pytest.mark.parametrize("name", ["max_time", "output_scores", "output_logits"])
def test_what_best_of_cannot_return(tiny: Served, name: str) -> None:
    """What a ranking would lose is refused naming both, not left out."""
    record = ask(tiny, best_of=3, **SAMPLED, **{name: 2})

    assert f"{name} cannot be combined with best_of." == refusal(record)


# Prompts, warnings


@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_comes_back_as_ids(tiny: Served, stream: bool) -> None:
    """With return_token_ids the prompt's ids come once, for several prompts as a list of lists."""
    one, two, none = (
        joined(ask(tiny, prompt, stream, return_token_ids=wanted, **GREEDY))
        for prompt, wanted in (([5, 6], True), ([[5, 6], [7]], True), ([5, 6], False))
    )

    assert ([5, 6], [[5, 6], [7]]) == (one["prompt_token_ids"], two["prompt_token_ids"])
    assert "prompt_token_ids" not in none


@pytest.mark.parametrize("stream", [False, True])
def test_a_healed_prompt_comes_back(smollm2: Served, stream: bool) -> None:
    """Healing shows the prompt that the answer really follows, though nobody asked for ids."""
    prompt = 'The link is <a href="http:'
    plain = joined(ask(smollm2, prompt, stream, return_token_ids=True, **GREEDY))
    healed = joined(ask(smollm2, prompt, stream, token_healing=True, **GREEDY))
    again = joined(ask(smollm2, healed["prompt_token_ids"], stream, **GREEDY))

    assert plain["prompt_token_ids"][:-1] == healed["prompt_token_ids"][:-1]
    assert plain["prompt_token_ids"] != healed["prompt_token_ids"]
    assert again["choices"][0]["tokens"] == healed["choices"][0]["tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"typical_p": 0.5, "top_k": 3}, ["typical_p", "top_k", "sampling"]),
        ({"length_penalty": 2.0, "early_stopping": True}, ["length_penalty", "early_stopping"]),
        ({"use_cache": False}, ["use_cache"]),
        ({"max_length": 40, "max_new_tokens": 3}, ["max_length"]),
        ({"min_length": 2, "min_new_tokens": 1}, ["min_length"]),
        ({}, []),
    ],
    ids=_name,
)
def test_warnings(tiny: Served, stream: bool, given: dict[str, Any], words: list[str]) -> None:
    """A parameter without effect is named once, in the first yield."""
    whole = joined(ask(tiny, PROMPT, stream, **GREEDY | given))
    warnings = " ".join(whole.get("warnings", []))

    assert bool(words) == ("warnings" in whole)
    assert [] == [word for word in words if word not in warnings]


# Deadlines


ENDLESS = {"max_new_tokens": 480, "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {"do_sample": False},
        {"do_sample": True, "n": 3},
        {"do_sample": True, "n": 2, "output_scores": 2, "logprobs": 1},
        {"do_sample": True, "typical_p": 0.9},
        {"guidance_scale": 1.5},
        {"num_beams": 3},
    ],
    ids=_name,
)
def test_a_deadline_ends_an_answer(tiny: Served, given: dict[str, Any], stream: bool) -> None:
    """At max_time every answer ends with what there is, and nothing goes on in the engine."""
    given = given | ENDLESS | {"max_time": 0.1, "return_token_ids": True}
    whole = joined(ask(tiny, "Hello", stream, **given))
    counts = [len(choice["token_ids"]) for choice in whole["choices"]]

    assert {"max_time"} == {choice["finish_reason"] for choice in whole["choices"]}
    assert given.get("n", 1) == len(counts)
    assert all(0 < count < 480 for count in counts)
    assert sum(counts) == whole["usage"]["output"]
    assert all(choice["tokens"] for choice in whole["choices"])
    for choice, count in zip(whole["choices"], counts, strict=True):
        assert {count} >= {len(choice[name]) for name in LISTS[1:] if name in choice}
    wait_until(lambda: running_requests(tiny) == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_that_is_not_reached(tiny: Served, stream: bool) -> None:
    """Below max_time nothing changes: every answer of n comes whole."""
    given = SAMPLED | {"n": 3, "ignore_eos": True}
    plain, limited = (
        joined(ask(tiny, PROMPT, stream, **given | others)) for others in ({}, {"max_time": 60.0})
    )

    assert plain == limited


# The OpenAI routes


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_a_chain_on_a_route_streams_what_it_returns(tiny: Served, route: str) -> None:
    """With generation_parameters a stream holds the same text and the same reasons as one reply."""
    is_chat = route.endswith("chat/completions")
    asked = {"messages": [{"role": "user", "content": "Hello"}]} if is_chat else {"prompt": "Hello"}
    given = {"typical_p": 0.9, "no_repeat_ngram_size": 2, "seed": 5, "max_new_tokens": 12, "n": 2}
    plain = tiny.run(
        {"openai_route": route, "openai_input": asked | {"generation_parameters": given}}
    )
    stream = tiny.run(
        {
            "openai_route": route,
            "openai_input": asked | {"generation_parameters": given, "stream": True},
        }
    )
    (reply,) = plain.done[-1].value["output"]
    events = "".join(stream.done[-1].value["output"]).split("\n\n")
    chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]

    def part(choice: dict[str, Any], key: str) -> str:
        found = choice[key].get("content") if is_chat else choice["text"]
        return found or ""

    for choice in reply["choices"]:
        pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]

        assert part(choice, "message") == "".join(part(piece, "delta") for piece in pieces)
        assert choice["finish_reason"] == pieces[-1]["finish_reason"]
    assert 2 == len(reply["choices"])
