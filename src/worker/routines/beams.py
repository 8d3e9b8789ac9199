"""Beam search with transformers' bookkeeping; vLLM is the model behind it."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

import torch
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.utils import GenerationMixin

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
        self._vocab_size = plan.facts.vocab_size
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


async def beam_search(asker: Asker, prompt: list[int], max_tokens: int) -> list[Sequence]:
    """Search with transformers' semantics; each step is one request of one token for each beam."""
    plan = asker.plan
    assert plan.beams is not None
    assert plan.order is not None
    search = await asyncio.to_thread(_BeamSearch, asker, prompt, max_tokens)
    order = replace(
        plan.order,
        fields={**plan.order.fields, "num_beams": plan.beams.width},
        log_probs=True,
        scores=plan.facts.vocab_size if plan.beams.do_sample else search.keep,
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
        found = {record["tag"]: tensors(record) for record in records}
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
        answers.append(Sequence(ids, text, reason, score))
    return answers
