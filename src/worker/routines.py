"""Answers that take several engine requests: beam search, guidance, token healing.

The bookkeeping is transformers' own, called on stubs, so that the results are those of
`generate()` (5.19); vLLM is the model behind it. What a step needs beyond the token, its processed
scores, comes through the chain's report.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from transformers.generation import utils as transformers_utils
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.utils import GenerationMixin
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from worker.errors import RequestError
from worker.generation.plan import Plan
from worker.processor import reports
from worker.processor.chain import build
from worker.processor.logits import NOTHING_LEFT, best, choose, possible, steered
from worker.processor.order import Order
from worker.processor.reports import Report, refuse_failure

# After so many attempts in a row without a token, guidance takes one step by its slow way.
MOST_LOST = 2
# So many tokens before the answer decide how its first ones are written.
TEXT_CONTEXT = 6


@dataclass(frozen=True)
class Answer:
    """One finished sequence; `scores` and `logits` are as in `values`."""

    token_ids: list[int]
    text: str
    finish_reason: str
    score: float | None = None
    values: Mapping[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Asker:
    """What sends one job's requests to the engine, on the engine's loop."""

    client: Any
    request_id: str
    lora: Any
    report: Report
    plan: Plan

    @property
    def tokenizer(self) -> Any:
        return self.client.get_tokenizer()

    async def ask(self, ids: list[int], order: Order, name: str, **fields: Any) -> Any:
        """Run one request to its end and return its output, a CompletionOutput."""
        base = self.plan.params
        order = replace(order, report=str(self.report.path))
        params = SamplingParams(
            **{
                "temperature": 0.0,
                "ignore_eos": True,
                "detokenize": False,
                "output_kind": RequestOutputKind.FINAL_ONLY,
                "logit_bias": base.logit_bias,
                "allowed_token_ids": base.allowed_token_ids,
                "extra_args": order.extra_args(),
                **fields,
            }
        )
        last = None
        outputs = self.client.generate(
            {"prompt_token_ids": ids}, params, f"{self.request_id}-{name}", lora_request=self.lora
        )
        async for output in outputs:
            last = output
        assert last is not None
        return last.outputs[0]

    def records(self) -> list[dict[str, Any]]:
        """Return the report's new records. Raises RequestError where one is a failure."""
        records = self.report.read()
        refuse_failure(records)
        return records

    def text(self, prompt: list[int], answer: list[int]) -> str:
        """Return an answer's text, written as it follows the prompt."""
        if not self.plan.params.detokenize:
            return ""
        context = prompt[-TEXT_CONTEXT:]
        skip = self.plan.params.skip_special_tokens
        before = self.tokenizer.decode(context, skip_special_tokens=skip)
        both = self.tokenizer.decode(context + answer, skip_special_tokens=skip)
        if not both.startswith(before):  # a character that the prompt cuts in two
            return str(self.tokenizer.decode(answer, skip_special_tokens=skip))
        return str(both[len(before) :])

    def stopped(self, text: str) -> str:
        """Cut what follows a stop string, and the string itself where it is not wanted."""
        params = self.plan.params
        found = [(text.find(stop), stop) for stop in params.stop if stop in text]
        if not found:
            return text
        at, stop = min(found)
        return text[: at + len(stop) if params.include_stop_str_in_output else at]


def _tensors(record: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    ids, numbers = reports.unpack(record["scores"])
    return torch.tensor(ids), torch.tensor(numbers)


class _BeamStub:
    """transformers' own bookkeeping of beams, without a model around it."""

    # Through __dict__, which keeps static methods static.
    _gather_beams = GenerationMixin.__dict__["_gather_beams"]
    _flatten_beam_dim = GenerationMixin.__dict__["_flatten_beam_dim"]
    _unflatten_beam_dim = GenerationMixin.__dict__["_unflatten_beam_dim"]
    get_top_k_continuations = GenerationMixin.__dict__["_get_top_k_continuations"]
    get_running_beams = GenerationMixin.__dict__["_get_running_beams_for_next_iteration"]
    update_finished_beams = GenerationMixin.__dict__["_update_finished_beams"]
    check_early_stop = GenerationMixin.__dict__["_check_early_stop_heuristic"]
    has_unfinished = GenerationMixin.__dict__["_beam_search_has_unfinished_sequences"]


class _BeamSearch:
    """The state of one beam search: [1, beams, tokens], as in `GenerationMixin._beam_search`."""

    def __init__(self, asker: Asker, prompt: list[int], max_tokens: int) -> None:
        plan = asker.plan
        assert plan.beams is not None
        assert plan.order is not None
        self._beams, self._order = plan.beams, plan.order
        self._stub = _BeamStub()
        self._prompt_len = len(prompt)
        self.length = len(prompt)
        self._max_length = len(prompt) + max_tokens
        self._vocab_size = plan.deployment.vocab_size
        eos = list(self._order.eos)
        width = self._beams.width
        self.keep = max(2, 1 + len(eos)) * width
        self._criteria = StoppingCriteriaList([MaxLengthCriteria(max_length=self._max_length)])
        if eos:
            self._criteria.append(EosTokenCriteria(torch.tensor(eos)))
        if plan.params.stop:
            self._criteria.append(StopStringCriteria(asker.tokenizer, list(plan.params.stop)))
        if plan.max_time_s is not None:
            self._criteria.append(MaxTimeCriteria(plan.max_time_s))
        filler = eos[0] if eos else -1
        self.running = torch.full((1, width, self._max_length), filler, dtype=torch.long)
        self.running[:, :, : len(prompt)] = torch.tensor(prompt)
        self._sequences = self.running.clone()
        self._running_scores = torch.zeros((1, width))
        self._running_scores[:, 1:] = -1e9
        self._scores = torch.full((1, width), -1e9)
        self._finished = torch.zeros((1, width), dtype=torch.bool)
        self._open = torch.ones((1, 1), dtype=torch.bool)
        self._running_indices = torch.full((1, width, max_tokens), -1, dtype=torch.int32)
        self._indices = self._running_indices.clone()
        self._top = torch.arange(self.keep) < width
        self._generator_seed = plan.params.seed

    @property
    def live(self) -> int:
        """How many beams there are to continue: at first they are all the same."""
        return 1 if self.length == self._prompt_len else self._beams.width

    def advance(self, found: Mapping[int, tuple[torch.Tensor, torch.Tensor]]) -> bool:
        """Take one step with each beam's best continuations; say whether another one follows."""
        stub, beams, width = self._stub, self._beams, self._beams.width
        log_probs = torch.full((width, self._vocab_size), float("-inf"))
        for beam, (ids, scores) in found.items():
            log_probs[beam, ids] = scores
        if self.live < width:
            log_probs[1:] = log_probs[0]
        summed = (log_probs[None] + self._running_scores[:, :, None]).reshape(1, -1)
        with torch.random.fork_rng(devices=[]):
            if self._generator_seed is not None:
                torch.manual_seed((self._generator_seed * 1_000_003 + self.length) % 2**63)
            top_scores, top_sequences, top_indices = stub.get_top_k_continuations(
                accumulated_log_probs=summed,
                running_sequences=self.running,
                running_beam_indices=self._running_indices,
                cur_len=self.length,
                decoder_prompt_len=self._prompt_len,
                do_sample=beams.do_sample,
                beams_to_keep=self.keep,
                num_beams=width,
                batch_size=1,
            )
        flat = stub._flatten_beam_dim(top_sequences[:, :, : self.length + 1])
        stops = stub._unflatten_beam_dim(self._criteria(flat, None), 1, self.keep)
        self.running, self._running_scores, self._running_indices = stub.get_running_beams(
            topk_log_probs=top_scores,
            topk_running_sequences=top_sequences,
            topk_running_beam_indices=top_indices,
            next_token_hits_stopping_criteria=stops,
            num_beams=width,
        )
        self._sequences, self._scores, self._indices, self._finished = stub.update_finished_beams(
            sequences=self._sequences,
            topk_running_sequences=top_sequences,
            beam_scores=self._scores,
            topk_log_probs=top_scores,
            beam_indices=self._indices,
            topk_running_beam_indices=top_indices,
            is_early_stop_heuristic_unsatisfied=self._open,
            is_sent_finished=self._finished,
            next_token_hits_stopping_criteria=stops,
            top_num_beam_mask=self._top,
            num_beams=width,
            cur_len=self.length,
            decoder_prompt_len=self._prompt_len,
            length_penalty=beams.length_penalty,
            early_stopping=beams.early_stopping,
        )
        self.length += 1
        self._open = stub.check_early_stop(
            is_early_stop_heuristic_unsatisfied=self._open,
            running_beam_scores=self._running_scores,
            beam_scores=self._scores,
            is_sent_finished=self._finished,
            cur_len=self.length,
            max_length=self._max_length,
            decoder_prompt_len=self._prompt_len,
            early_stopping=beams.early_stopping,
            length_penalty=beams.length_penalty,
        )
        unfinished = stub.has_unfinished(self._open, self._finished, stops, beams.early_stopping)
        return bool(unfinished)

    def best(self) -> list[tuple[list[int], float]]:
        """Return the best sequences without the prompt, and their scores."""
        best = []
        for beam in range(self._beams.returned):
            length = int((self._indices[0, beam] + 1).bool().sum())
            ids = self._sequences[0, beam, self._prompt_len : self._prompt_len + length]
            best.append((ids.tolist(), float(self._scores[0, beam])))
        return best


async def beam_search(asker: Asker, prompt: list[int], max_tokens: int) -> list[Answer]:
    """Search with transformers' semantics; each step is one request of one token for each beam."""
    plan = asker.plan
    assert plan.beams is not None
    assert plan.order is not None
    search = await asyncio.to_thread(_BeamSearch, asker, prompt, max_tokens)
    order = replace(
        plan.order,
        fields={**plan.order.fields, "num_beams": plan.beams.width},
        log_probs=True,
        scores=plan.deployment.vocab_size if plan.beams.do_sample else search.keep,
        prompt_len=len(prompt),
        max_new_tokens=max_tokens,
    )
    started_s = time.monotonic()
    more = True
    while more:
        async with asyncio.TaskGroup() as group:
            for beam in range(search.live):
                ids = search.running[0, beam, : search.length].tolist()
                name = f"{search.length}-{beam}"
                group.create_task(asker.ask(ids, replace(order, tag=beam), name, max_tokens=1))
        records = [record for record in asker.records() if "scores" in record]
        found = {record["tag"]: _tensors(record) for record in records}
        asker.report.clear()
        more = await asyncio.to_thread(search.advance, found)
    is_late = plan.max_time_s is not None and time.monotonic() - started_s >= plan.max_time_s
    answers = []
    for ids, score in search.best():
        text = asker.stopped(asker.text(prompt, ids))
        at_end = bool(ids) and ids[-1] in order.eos
        reason = "stop" if at_end or len(ids) < max_tokens else "length"
        if is_late and not at_end and len(ids) < max_tokens:
            reason = "max_time"
        answers.append(Answer(ids, text, reason, score))
    return answers


async def guide(
    asker: Asker, prompt: list[int], negative: list[int], max_tokens: int, index: int
) -> Answer:
    """Generate with classifier-free guidance; `index` counts the answers of one job.

    Two requests, whose rows the chain combines and gives the same token. They can lose step, by a
    prefill in parts or a preemption, so a token counts only where both have it; a pair that lost
    step is sent again from there.
    """
    plan = asker.plan
    assert plan.guidance is not None
    assert plan.order is not None
    seed = plan.params.seed
    seed = secrets.randbelow(2**31) if seed is None else seed + index
    pair = {
        "scale": plan.guidance.scale,
        "seed": seed,
        "do_sample": bool(plan.order.fields["do_sample"]),
    }
    stops = None
    if plan.params.stop:
        stops = await asyncio.to_thread(StopStringCriteria, asker.tokenizer, list(plan.params.stop))
    deadline_s = time.monotonic() + plan.max_time_s if plan.max_time_s is not None else None
    order = replace(plan.order, max_new_tokens=max_tokens)
    made: list[int] = []
    records: list[dict[str, Any]] = []
    lost = 0
    reason = "length"
    while len(made) < max_tokens:
        if lost >= MOST_LOST:
            new, told = await _slow_step(asker, prompt, negative, made, order, pair)
        else:
            new, told = await _attempt(
                asker, prompt, negative, made, order, pair, deadline_s, max_tokens
            )
        records += told
        lost = 0 if new else lost + 1
        for token in new:
            made.append(token)
            if token in order.eos or (
                stops is not None and bool(stops(torch.tensor([prompt + made]), None).all())
            ):
                reason = "stop"
                break
        if reason == "stop":
            break
        if deadline_s is not None and time.monotonic() >= deadline_s and made:
            reason = "max_time"
            break
    held = {
        name: [steps[i] for i in range(len(made)) if i in steps]
        for name in ("scores", "logits")
        if (steps := reports.values(records, name))
    }
    return Answer(made, asker.stopped(asker.text(prompt, made)), reason, values=held)


async def _attempt(
    asker: Asker,
    prompt: list[int],
    negative: list[int],
    made: list[int],
    order: Order,
    pair: Mapping[str, Any],
    deadline_s: float | None,
    max_tokens: int,
) -> tuple[list[int], list[dict[str, Any]]]:
    """Run the pair as far as it keeps step; return the tokens that both have, and the records."""
    name = secrets.token_hex(8)
    left = max_tokens - len(made)
    tasks = {}
    for role, start in (("prompt", prompt), ("negative", negative)):
        of_role = replace(order, prompt_len=len(start), pair={**pair, "name": name, "role": role})
        asked = asker.ask(
            start + made,
            of_role,
            f"{name}-{role}",
            max_tokens=left,
            stop_token_ids=list(order.eos),
        )
        tasks[role] = asyncio.ensure_future(asked)
    try:
        timeout = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.05)
        await asyncio.wait(tasks.values(), timeout=timeout)
        if not all(task.done() for task in tasks.values()):  # an abort delivers what there is
            await asker.client.abort([f"{asker.request_id}-{name}-{role}" for role in tasks])
        first, second = await asyncio.gather(*tasks.values())
    finally:
        for task in tasks.values():
            task.cancel()
    records = asker.records()
    # Where a pair was lost both were given a stop that neither chose.
    kept = min([record["lost"] - len(made) for record in records if "lost" in record], default=left)
    agreed = []
    both = zip(first.token_ids[:kept], second.token_ids[:kept], strict=False)
    for one, other in both:
        if one != other:
            break
        agreed.append(int(one))
    return agreed, records


async def _slow_step(
    asker: Asker,
    prompt: list[int],
    negative: list[int],
    made: list[int],
    order: Order,
    pair: Mapping[str, Any],
) -> tuple[list[int], list[dict[str, Any]]]:
    """Make one token from the full distributions of two requests that need not keep step.

    Returns it and the record of its step.
    """
    if "watermarking_config" in order.fields:
        raise RequestError(
            "The engine is too busy to keep the two requests of guidance in step. Send it again.",
            code=503,
        )
    vocab_size = asker.plan.deployment.vocab_size
    asker.report.clear()
    async with asyncio.TaskGroup() as group:
        for tag, start in enumerate((prompt, negative)):
            plain = Order(
                log_probs=True,
                scores=vocab_size,
                logits=0 if tag else order.logits,
                prompt_len=len(start),
                tag=tag,
            )
            name = f"{secrets.token_hex(8)}-{tag}"
            group.create_task(asker.ask(start + made, plain, name, max_tokens=1))
    rows = {}
    told: dict[str, Any] = {"step": len(made)}
    for record in asker.records():
        ids, numbers = _tensors(record)
        rows[record["tag"]] = torch.empty(1, vocab_size).scatter_(1, ids[None], numbers[None])
        if "logits" in record:
            told["logits"] = record["logits"]
    scores = steered(rows[0], rows[1], pair["scale"])
    ids = torch.tensor([prompt + made])
    chain = build(order, ids[:, : len(prompt)], order.max_new_tokens, vocab_size)
    scores = chain(ids, scores).masked_fill(torch.isneginf(rows[0]), float("-inf"))
    if not bool(possible(scores, torch.tensor([pair["do_sample"]]))):
        raise RequestError(NOTHING_LEFT, type="invalid_parameter")
    if order.scores:
        told["scores"] = best(scores[0], order.scores)
    return [choose(scores, pair, len(made))], [told]


class _HealStub:
    """transformers' heal_tokens, whose one-token generate() asks the engine."""

    heal_tokens = GenerationMixin.heal_tokens

    def __init__(self, asker: Asker, loop: asyncio.AbstractEventLoop) -> None:
        self._asker = asker
        self._loop = loop

    def generate(self, ids: torch.Tensor, generation_config: Any) -> torch.Tensor:
        bias = [
            [list(key), value]
            for key, value in generation_config.sequence_bias.items()
            if key[0] is not None
        ]
        order = Order(fields={"sequence_bias": bias, "do_sample": False})
        asked = self._asker.ask(ids[0].tolist(), order, "heal", max_tokens=1)
        made = asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        return torch.cat([ids, torch.tensor([list(made.token_ids)])], dim=1)


class _KeptTrie:
    """transformers makes a trie of the whole vocabulary at every call, 0.3 s; here it is kept."""

    _kept: ClassVar[dict[int, Any]] = {}
    _make = transformers_utils.ExtensionsTrie

    def __new__(cls, vocabulary: dict[str, int]) -> Any:
        # A worker has one tokenizer, so its size tells it apart.
        if len(vocabulary) not in cls._kept:
            cls._kept[len(vocabulary)] = cls._make(vocabulary)
        return cls._kept[len(vocabulary)]


transformers_utils.ExtensionsTrie = _KeptTrie


async def heal(asker: Asker, prompt: list[int]) -> list[int] | None:
    """Return the prompt with its last token completed by the model, as transformers heals it.

    None where transformers 5.19 fails: it looks the token's text up in the vocabulary, and with
    some tokenizers a token that begins with a space is not found; others have no bos token, or
    none to pad with.
    """
    stub = _HealStub(asker, asyncio.get_running_loop())
    try:
        healed = await asyncio.to_thread(stub.heal_tokens, torch.tensor([prompt]), asker.tokenizer)
    except (KeyError, TypeError, ValueError):
        return None
    asker.records()
    return [int(token) for token in healed[0]]
