"""The logits processor that vLLM loads: one chain of transformers' for each request that asks.

vLLM 0.32 has two model runners with an interface each, and one class serves both. It runs in the
engine's processes, for every request in a step, so an exception in here would end the engine and
all its requests: what fails is one request, and the reason goes into its report.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.logits_process import LogitsProcessorList
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessor as V1LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor.interface import (
    LogitsProcessor as V2LogitsProcessor,
)

from worker.processor import reports
from worker.processor.chain import build
from worker.processor.logits import (
    MINUS_INFINITY,
    Impossible,
    best,
    choose,
    drawn,
    force,
    possible,
    steered,
)
from worker.processor.order import KEY, Order

PATH = "worker.processor.processor:Chain"  # as vLLM's argument names the class
log = logging.getLogger("worker")


class _Request:
    """One request in the engine's batch."""

    def __init__(self, params: SamplingParams, prompt: list[int], output: list[int]) -> None:
        self.prompt = prompt
        self.output = output  # on the V1 runner a live list, which vLLM appends to
        self.chain: LogitsProcessorList | None = None
        self.failed = False
        self.is_constrained = bool(params.structured_outputs or params.allowed_token_ids)
        stops = [*(params.stop_token_ids or ()), params.eos_token_id]
        self.stop_id = next((token for token in stops if token is not None), 0)
        self.max_new_tokens = params.max_tokens
        self.order = Order()
        self._buffer: torch.Tensor | None = None
        self._filled = 0

    def ids(self, device: torch.device) -> torch.Tensor:
        """Return the prompt and the output so far, [1, tokens]; only what is new is copied."""
        total = len(self.prompt) + len(self.output)
        if self._buffer is None or len(self._buffer) < total:
            grown = torch.empty(total + 256, dtype=torch.long, device=device)
            if self._buffer is not None:
                grown[: self._filled] = self._buffer[: self._filled]
            self._buffer = grown
        # The last one is written again: with async scheduling it may have been a placeholder.
        start = max(min(self._filled - 1, total), 0)
        if start < len(self.prompt):
            new = self.prompt[start:] + self.output
        else:
            new = self.output[start - len(self.prompt) :]
        if new:
            self._buffer[start:total] = torch.tensor(new, dtype=torch.long, device=device)
        self._filled = total
        return self._buffer[:total].unsqueeze(0)


@dataclass(frozen=True)
class _Row:
    """One row of the logits: whose it is, and how to get its tokens, [1, tokens]."""

    index: int
    request: _Request
    ids: Callable[[], torch.Tensor]
    prompt_len: int


class Chain(V1LogitsProcessor, V2LogitsProcessor):  # type: ignore[misc]
    """The logits processor that vLLM loads; `PATH` names it."""

    def __init__(self, vllm_config: Any, *rest: Any) -> None:  # noqa: ARG002
        """V1 gives a device and whether memory is pinned, V2 its request states."""
        self._requests: dict[int, _Request] = {}
        self._states = rest[0] if len(rest) == 1 else None
        self._device = torch.device(rest[0].device if self._states is not None else rest[0])

    def is_argmax_invariant(self) -> bool:
        return False  # else V1 leaves greedy requests out

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self._requests, batch_update, _admit)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self._requests.pop(req_idx, None)
        request = _admit(sampling_params, None, [])
        if request is not None:
            self._requests[req_idx] = request
        return request is not None

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Run every request's chain over its row. Never raises."""
        if not self._requests:
            return logits
        pairs: dict[str, dict[str, _Row]] = {}
        done: list[_Row] = []
        for row in self._rows_v1() if ctx is None else self._rows_v2(ctx):
            pair = row.request.order.pair
            if pair is not None:
                pairs.setdefault(pair["name"], {})[pair["role"]] = row
                continue
            try:
                self._run(logits, row)
                done.append(row)
            except Exception as error:
                self._fail(logits, row, error)
        for roles in pairs.values():
            try:
                self._run_pair(logits, roles)
            except Exception as error:
                for row in roles.values():
                    self._fail(logits, row, error)
        self._end_impossible(logits, done)
        return logits

    def _rows_v1(self) -> Iterator[_Row]:
        for index, request in self._requests.items():
            ids = functools.partial(request.ids, self._device)
            yield _Row(index, request, ids, len(request.prompt))

    def _rows_v2(self, ctx: Any) -> Iterator[_Row]:
        states = self._states
        assert states is not None
        slots = ctx.idx_mapping_np.tolist()
        if ctx.expanded_idx_mapping.shape[0] == len(slots):
            for index, slot in enumerate(slots):
                request = self._requests.get(slot)
                total = int(ctx.seq_lens_upper_bound_np[index])
                if request is None or total < int(states.prefill_len.np[slot]):
                    continue  # of a part of a prefill the token is thrown away
                ids = functools.partial(_committed, states, slot, total)
                yield _Row(index, request, ids, int(states.prompt_len.np[slot]))
            return
        # With speculation a request has a row for each draft token, and drafts are in ctx alone.
        slots = ctx.expanded_idx_mapping.tolist()
        local = ctx.expanded_local_pos.tolist()
        positions = ctx.pos.tolist()
        for index, slot in enumerate(slots):
            request = self._requests.get(slot)
            if request is None:
                continue
            first = index - local[index]
            drafts = ctx.input_ids[first + 1 : index + 1]
            total = positions[index] - local[index] + 1
            if total < int(states.prefill_len.np[slot]):
                continue
            ids = functools.partial(_committed, states, slot, total, drafts)
            yield _Row(index, request, ids, int(states.prompt_len.np[slot]))

    def _run(self, logits: torch.Tensor, row: _Row) -> None:
        request, order = row.request, row.request.order
        if request.failed:
            raise RuntimeError("failed before")
        ids = row.ids()
        raw = logits[row.index : row.index + 1]
        scores = torch.log_softmax(raw, dim=-1) if order.log_probs else raw
        scores = self._chain(row, ids, raw.shape[-1])(ids, scores)
        if request.is_constrained:
            # Processors that write a finite value, such as forced tokens, must not lift a mask.
            scores = scores.masked_fill(torch.isneginf(raw), MINUS_INFINITY)
        _tell(row, ids.shape[1] - _prompt_len(row), scores, raw)
        logits[row.index] = scores[0]

    def _chain(self, row: _Row, ids: torch.Tensor, vocab_size: int) -> LogitsProcessorList:
        request = row.request
        if request.chain is None:  # built here, where an error is caught, and on the device
            given = request.order.max_new_tokens
            length = request.max_new_tokens if given is None else given
            request.chain = build(request.order, ids[:, : _prompt_len(row)], length, vocab_size)
        return request.chain

    def _run_pair(self, logits: torch.Tensor, roles: Mapping[str, _Row]) -> None:
        """Combine a pair of rows as guidance does, choose the token, and force it on both."""
        # Also where one of them ended and the other is only now here.
        if len(roles) < 2 or any(row.request.failed for row in roles.values()):
            for row in roles.values():
                self._lose(logits, row, row.ids().shape[1] - _prompt_len(row))
            return
        guided, other = roles["prompt"], roles["negative"]
        ids, other_ids = guided.ids(), other.ids()
        step = ids.shape[1] - _prompt_len(guided)
        is_level = step == other_ids.shape[1] - _prompt_len(other)
        if not is_level or (step and int(ids[0, -1]) != int(other_ids[0, -1])):
            for row in roles.values():
                self._lose(logits, row, step)
            return
        pair = guided.request.order.pair
        assert pair is not None
        raw = logits[guided.index : guided.index + 1]
        scores = torch.log_softmax(raw, dim=-1)
        unguided = torch.log_softmax(logits[other.index : other.index + 1], dim=-1)
        scores = steered(scores, unguided, pair["scale"])
        scores = self._chain(guided, ids, raw.shape[-1])(ids, scores)
        scores = scores.masked_fill(torch.isneginf(raw), MINUS_INFINITY)
        if not bool(possible(scores, scores.new_tensor([pair["do_sample"]], dtype=torch.bool))):
            raise Impossible
        _tell(guided, step, scores, raw)
        token = choose(scores, pair, step)
        for row in roles.values():
            force(logits, row.index, token)

    def _end_impossible(self, logits: torch.Tensor, rows: list[_Row]) -> None:
        """Fail the requests for which no token is left: vLLM would go on with token 0."""
        if not rows:
            return
        try:
            indices = torch.tensor([row.index for row in rows], device=logits.device)
            samples = [bool(row.request.order.fields.get("do_sample")) for row in rows]
            can = possible(logits[indices], torch.tensor(samples, device=logits.device))
            for row, is_possible in zip(rows, can.tolist(), strict=True):  # the one sync
                if not is_possible:
                    self._fail(logits, row, Impossible())
        except Exception as error:
            for row in rows:
                self._fail(logits, row, error)

    def _fail(self, logits: torch.Tensor, row: _Row, error: Exception) -> None:
        request = row.request
        if not request.failed and request.order.report is not None:
            reports.append(request.order.report, {"failure": _reason(error)})
        request.failed = True
        force(logits, row.index, request.stop_id)

    def _lose(self, logits: torch.Tensor, row: _Row, step: int) -> None:
        """End a request whose partner is not at this step; guidance sends the pair again."""
        request = row.request
        if not request.failed and request.order.report is not None:
            reports.append(request.order.report, {"lost": step})
        request.failed = True
        force(logits, row.index, request.stop_id)


def _admit(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> _Request | None:
    if not params.extra_args or KEY not in params.extra_args:
        return None
    request = _Request(params, prompt or [], output)
    try:
        order = Order.of(params)
        assert order is not None
        request.order = order
    except Exception:
        request.failed = True
    return request


def _committed(states: Any, slot: int, total: int, drafts: torch.Tensor | None = None) -> Any:
    ids = states.all_token_ids.gpu[slot, :total].long()
    if drafts is not None and len(drafts):
        ids = torch.cat([ids, drafts.long()])
    return ids.unsqueeze(0)


def _prompt_len(row: _Row) -> int:
    given = row.request.order.prompt_len
    return row.prompt_len if given is None else given


def _tell(row: _Row, step: int, scores: torch.Tensor, raw: torch.Tensor) -> None:
    """Report the best scores and logits of a step, where the order asks for them."""
    order = row.request.order
    if order.report is None or not (order.scores or order.logits):
        return
    record: dict[str, Any] = {"tag": order.tag, "step": step}
    if order.scores:
        record["scores"] = (
            best(scores[0], order.scores)
            if order.draw is None
            else drawn(scores[0], order.scores, order.draw)
        )
    if order.logits:
        record["logits"] = best(raw[0], order.logits)
    reports.append(order.report, record)


def _reason(error: Exception) -> str:
    """Return the sentence for the caller; what is unexpected goes to the engine's log."""
    if isinstance(error, Impossible | ValueError):  # transformers' own refusals are sentences
        return str(error)
    if isinstance(error, OverflowError):
        return "The parameters lead to numbers that are too large to compute with."
    log.error("A chain failed unexpectedly", exc_info=error)
    return "The parameters cannot be applied together."
