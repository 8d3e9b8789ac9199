"""Beam search with transformers' bookkeeping; vLLM is the model behind it."""

import asyncio
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.utils import GenerationMixin

from worker.processor.logits import seed_of
from worker.routines.asker import Asker, Sequence, tensors


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

    @property
    def live(self) -> int:
        """How many beams there are to continue: at first they are all the same."""
        return 1 if self.length == self._prompt_len else self._beams.width

    @property
    def made(self) -> int:
        """How many tokens each beam has made."""
        return self.length - self._prompt_len

    def advance(self, records: Iterable[Mapping[str, Any]]) -> bool:
        """Take one step with each beam's continuations; say whether another one follows.

        `records` are the chain's, one for each live beam, as `best` or `drawn` packs them.
        """
        stub, beams, width = self._stub, self._beams, self._beams.width
        found = {record["tag"]: tensors(record["scores"]) for record in records}
        rows = zip(*(found[beam] for beam in range(self.live)), strict=True)
        ids, scores, *keys = map(torch.stack, rows)
        running = self._running_scores[0, :, None]
        # A vocabulary of places among the continuations, which are a beam's own.
        top_scores, top_sequences, top_indices = stub.get_top_k_continuations(
            accumulated_log_probs=((keys or [scores])[0] + running).reshape(1, -1),
            running_sequences=self.running,
            running_beam_indices=self._running_indices,
            cur_len=self.length,
            decoder_prompt_len=self._prompt_len,
            do_sample=False,  # what is drawn was drawn by the chain
            beams_to_keep=self.keep,
            num_beams=width,
            batch_size=1,
        )
        where = top_indices[0, :, self.made].long(), top_sequences[0, :, self.length].clone()
        top_sequences[0, :, self.length] = ids.expand(width, -1)[where].long()
        top_scores = (scores + running)[where][None]
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


async def beam_search(asker: Asker, prompt: list[int], max_tokens: int) -> list[Sequence]:
    """Search with transformers' semantics; each step is one request of one token for each beam."""
    plan = asker.plan
    assert plan.beams is not None
    assert plan.order is not None
    started_s = time.monotonic()  # not after the search's own clock, or its end is not seen
    search = await asyncio.to_thread(_BeamSearch, asker, prompt, max_tokens)
    order = replace(
        plan.order,
        fields={**plan.order.fields, "num_beams": plan.beams.width},
        log_probs=True,
        scores=search.keep,
        prompt_len=len(prompt),
        max_new_tokens=max_tokens,
    )
    seed = secrets.randbelow(2**31) if plan.params.seed is None else plan.params.seed
    more = True
    while more:
        async with asyncio.TaskGroup() as group:
            for beam in range(search.live):
                of_beam = replace(order, tag=beam)
                if plan.beams.do_sample:
                    number = search.made * plan.beams.width + beam
                    of_beam = replace(of_beam, draw=seed_of(seed, number))
                ids = search.running[0, beam, : search.length].tolist()
                name = f"{search.length}-{beam}"
                group.create_task(asker.ask(ids, of_beam, name, max_tokens=1))
        records = asker.records()
        more = await asyncio.to_thread(search.advance, records)
    is_late = plan.max_time_s is not None and time.monotonic() - started_s >= plan.max_time_s
    answers = []
    for ids, score in search.best():
        text = asker.stopped(asker.text(prompt, ids))
        at_end = bool(ids) and ids[-1] in order.eos
        reason = "stop" if at_end or len(ids) < max_tokens else "length"
        if is_late and not at_end and len(ids) < max_tokens:
            reason = "max_time"
        answers.append(Sequence(ids, text, reason, score))
    return answers
