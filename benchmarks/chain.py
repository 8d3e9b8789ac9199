"""What does each parameter of the chain cost, beside vLLM's own field where there is one?

16 requests at once on SmolLM2-135M, whose vocabulary is large enough to show: a plain run, then
each parameter on every request, in the chain and, where vLLM has a field that means the same, in
vLLM. The rounds are in turns, and the fastest run of each row counts, since noise only adds. Beside
it stands what one row of the logits costs at each token with nothing else running: CPU time of
`Chain`, called as vLLM's V1 runner calls it, on one thread, after 512 tokens; `first` is its first
call, which builds the processors. `nothing` is a chain without a processor. forced_bos_token_id and
forced_eos_token_id have no row: they look at the length, and write one token of an answer.
"""

import argparse
import asyncio
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop

import _report
from worker.configuration.settings import Settings
from worker.engine import server
from worker.engine.facts import facts_of
from worker.facts import Facts
from worker.generation import reading
from worker.generation.plan import Plan
from worker.processor.reports import Folder, Report, refuse_failure
from worker.start.ending import leave

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import models

MODEL = "smollm2-135m-instruct"
REQUESTS, TOKENS, ROUNDS = 16, 10, 5
PLAIN_EVERY = 7  # rows
LONG: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}
PROMPT = list(range(1000, 1008))
CONTEXT = 512  # tokens before the row that is measured alone
ALONE_S = 0.25
COLUMNS = {
    "chain_pct": "chain, % of plain",
    "vllm_pct": "vLLM, % of plain",
    "alone_ms": "one row alone, ms/token",
    "first_ms": "first, ms",
}
ADJECTIVES = ("blue", "red", "old", "new")
NOUNS = ("sky", "car", "house", "dog", "tree")


@dataclass(frozen=True)
class Row:
    """One row of the table: what a job asks for, and `own`, the same in vLLM's fields."""

    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] | None = None
    asking: int = REQUESTS  # so many of the requests; the others are plain
    is_costly: bool = False  # so slow that one round is enough


def rows(tokenizer: Any) -> list[Row]:
    words = [f"{one} {two}" for one in ADJECTIVES for two in NOUNS]
    ids = [tokenizer.encode(f" {word}", add_special_tokens=False) for word in words]
    assert [len(one) for one in ids] == [2] * 20
    fifty = list(range(5000, 5050))
    end = {"ignore_eos": False}
    never = end | {"eos_token_id": tokenizer.convert_tokens_to_ids("<repo_name>")}
    six = {
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.9,
        "typical_p": 0.95,
    }

    def mark(**fields: Any) -> dict[str, Any]:
        return {"watermarking_config": fields}

    def same(**given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return given, given

    return [
        Row("nothing"),
        Row("temperature", *same(temperature=0.7)),
        Row("repetition_penalty", *same(repetition_penalty=1.2)),
        Row("encoder_repetition_penalty", {"encoder_repetition_penalty": 1.3}),
        Row("no_repeat_ngram_size=3", {"no_repeat_ngram_size": 3}),
        Row("encoder_no_repeat_ngram_size=3", {"encoder_no_repeat_ngram_size": 3}),
        Row("bad_words_ids, 20 of 2 tokens", {"bad_words_ids": ids}, {"bad_words": words}),
        Row("sequence_bias, 1 token", {"sequence_bias": [[[5000], -2.0]]}, bias({5000: -2.0})),
        Row("sequence_bias, 20 of 2 tokens", {"sequence_bias": [[one, -2.0] for one in ids]}),
        Row("suppress_tokens, 50", {"suppress_tokens": fifty}, bias(dict.fromkeys(fifty, -100))),
        Row("begin_suppress_tokens, 50", {"begin_suppress_tokens": fifty}),
        Row("min_new_tokens", end | {"min_new_tokens": TOKENS}, end | {"min_tokens": TOKENS}),
        # A factor of 1 does all the work and makes no end likelier.
        Row("exponential_decay_length_pen…", never | {"exponential_decay_length_penalty": [0, 1]}),
        Row("top_k=50", *same(top_k=50)),
        Row("top_p=0.9", *same(top_p=0.9)),
        Row("min_p=0.05", *same(min_p=0.05)),
        Row("typical_p=0.9", {"typical_p": 0.9}),
        Row("top_h=0.4", {"top_h": 0.4}),
        Row("epsilon_cutoff", {"epsilon_cutoff": 5e-4}),
        Row("eta_cutoff", {"eta_cutoff": 5e-4}),
        Row("renormalize_logits", {"renormalize_logits": True}),
        Row("remove_invalid_values", {"remove_invalid_values": True}),
        Row("watermark, lefthash", mark(seeding_scheme="lefthash")),
        Row("watermark, selfhash", mark(seeding_scheme="selfhash"), is_costly=True),
        Row(
            "watermark, SynthID of 30 keys",
            mark(keys=list(range(1, 31)), ngram_len=5),
            is_costly=True,
        ),
        Row("six of them together", six),
        Row("output_scores=20", {"output_scores": 20}, {"logprobs": 20}),
        Row("typical_p on 1 request of 16", {"typical_p": 0.9}, asking=1),
    ]


def bias(biases: Mapping[int, float]) -> dict[str, Any]:
    return {"logit_bias": biases}


def main() -> None:
    options = _report.options(argparse.ArgumentParser(description=__doc__.splitlines()[0]))
    environ = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    os.environ.update({name: value for name, value in environ.items() if name not in os.environ})
    settings = Settings.from_env(
        {
            "MODEL_NAME": str(models.path(MODEL)),
            "DTYPE": "bfloat16",
            "ENFORCE_EAGER": "true",
            "MAX_MODEL_LEN": "512",
        }
    )
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    about: dict[str, Any] = {"rounds": ROUNDS}
    with (
        server.running(settings.args, MODEL, loop, settings.own, Folder()) as ready,
        _report.question(__file__, __doc__, COLUMNS, options, about) as answer,
    ):
        assert not ready.why_no_chain, ready.why_no_chain
        facts = facts_of(ready.client.vllm_config)
        table = rows(ready.client.get_tokenizer())
        plain_s, runs = in_turns(loop, ready, facts, table)
        answer.conditions["plain tokens/s"] = round(REQUESTS * TOKENS / plain_s)
        for row in table:
            each_s, first_s = alone(row, facts, ready)
            figures = {"chain_pct": 100 * plain_s / runs[row.name, "chain"]}
            if row.own is not None:
                figures["vllm_pct"] = 100 * plain_s / runs[row.name, "vLLM"]
            shown = _report.Row({"": row.name})
            shown.add(figures | {"alone_ms": 1000 * each_s, "first_ms": 1000 * first_s})
            answer.rows.append(shown)
        for name, given in admitted(table).items():
            read_s = seconds_each(functools.partial(reading.read, given, facts, stream=True))
            answer.conditions[f"reading {name}"] = f"{read_s * 1e6:.0f} µs"
    leave(0)


def in_turns(
    loop: asyncio.AbstractEventLoop, ready: server.Engine, facts: Facts, table: list[Row]
) -> tuple[float, dict[tuple[str, str], float]]:
    """Return the seconds of the fastest plain run, and of each row's, in the chain and in vLLM."""
    plain = planned({}, facts)
    plains: list[float] = []
    runs: dict[tuple[str, str], list[float]] = {}

    def run_s(plan: Plan, asking: int = REQUESTS) -> float:
        plans = [plan] * asking + [plain] * (REQUESTS - asking)
        return loop.run_until_complete(batch(ready, plans))

    run_s(plain)  # what is cached at first use
    for round_ in range(ROUNDS):
        for index, row in enumerate(table):
            if index % PLAIN_EVERY == 0:
                plains.append(run_s(plain))
            if row.is_costly and round_:
                continue
            plans = {"chain": planned(row.given, facts, chain=True)}
            if row.own is not None:
                plans["vLLM"] = planned(row.own, facts)
            for where, plan in plans.items():
                runs.setdefault((row.name, where), []).append(run_s(plan, row.asking))
    return min(plains), {key: min(each) for key, each in runs.items()}


def planned(given: Mapping[str, Any], facts: Facts, *, chain: bool = False) -> Plan:
    """Read a job's parameters; with `chain` they run there even if vLLM has a field for them."""
    plan = reading.read({**LONG, **given}, facts, stream=True)
    if not chain or plan.order is not None:
        return plan
    plan = reading.read({**LONG, "suppress_tokens": [0], **given}, facts, stream=True)
    assert plan.order is not None
    fields = {name: v for name, v in plan.order.fields.items() if name != "suppress_tokens"}
    return replace(plan, order=replace(plan.order, fields=fields))


def asked(plan: Plan, report: Report | None) -> Any:
    """Return what the engine gets, as native jobs have it."""
    params = plan.params.clone()
    params.max_tokens = TOKENS
    if plan.order is not None:
        path = None if report is None else report.path
        params.extra_args = plan.order.extra_args(path)
    return params


async def batch(ready: server.Engine, plans: list[Plan]) -> float:
    """Run requests at once, read as native jobs read their streams, and return the seconds."""

    async def one(index: int, plan: Plan) -> None:
        with ready.reports.report() if plan.order else nullcontext() as report:
            name = f"{time.monotonic()}-{index}"
            outputs = ready.client.generate({"prompt_token_ids": PROMPT}, asked(plan, report), name)
            count = 0
            async for output in outputs:
                if report is not None:
                    refuse_failure(report.read())
                count += len(output.outputs[0].token_ids)
            assert count == TOKENS, f"{count} tokens came of {TOKENS}"

    start_s = time.perf_counter()
    await asyncio.gather(*(one(index, plan) for index, plan in enumerate(plans)))
    return time.perf_counter() - start_s


def alone(row: Row, facts: Facts, ready: server.Engine) -> tuple[float, float]:
    """Return the CPU seconds of one row of the logits at each token, and at the first."""
    import torch

    from worker.processor.processor import Chain

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(100, facts.vocab_size, (CONTEXT,), generator=generator).tolist()
    fresh = torch.randn((1, facts.vocab_size), generator=generator) * 3
    plan = planned(row.given, facts, chain=True)
    each: list[float] = []
    firsts: list[float] = []
    for _ in repeats(ALONE_S):
        with ready.reports.report() as report:
            chain = Chain(None, torch.device("cpu"), False)
            output: list[int] = []
            added = [(0, asked(plan, report), tokens, output)]
            chain.update_state(Update(added=added))
            for step in range(TOKENS):
                logits = fresh.clone()
                start_s = time.thread_time()
                chain.apply(logits)
                (each if step else firsts).append(time.thread_time() - start_s)
                output.append(tokens[-step])
            refuse_failure(report.read())
    return statistics.median(each), statistics.median(firsts)


@dataclass(frozen=True)
class Update:
    """vLLM's BatchUpdate."""

    added: list[Any]
    removed: tuple[int, ...] = ()
    moved: tuple[Any, ...] = ()


def admitted(table: list[Row]) -> dict[str, dict[str, Any]]:
    """Return jobs' parameters, few and many."""
    many: dict[str, Any] = {}
    for row in table:
        if row.asking == REQUESTS and not row.is_costly:
            many |= row.given
    return {"a plain job": LONG | {"max_tokens": 64}, f"{len(many)} parameters": many}


def seconds_each(work: Callable[[], object]) -> float:
    taken = []
    for _ in repeats(ALONE_S):
        start_s = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start_s)
    return statistics.median(taken)


def repeats(at_least_s: float) -> Iterator[None]:
    end_s = time.perf_counter() + at_least_s
    while True:
        yield
        if time.perf_counter() >= end_s:
            return


if __name__ == "__main__":
    main()
