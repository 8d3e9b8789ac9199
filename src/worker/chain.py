"""transformers' own logits processors inside the engine, one chain for each request that asks.

vLLM 0.32 has two model runners with an interface each, and one class serves both. It runs in the
engine's processes, for every request in a step, so an exception in here would end the engine and
all its requests: what fails is one request, and the reason goes into its report.

The order of the processors lives in one private function of transformers (5.19), which is called
here rather than copied; tests/golden notices when it changes.
"""

import functools
import json
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import (
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
)
from transformers.generation.utils import GenerationMixin
from vllm import SamplingParams, envs
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import LogitsProcessor as V1LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor.interface import (
    LogitsProcessor as V2LogitsProcessor,
)

from worker import reports

KEY = "worker_chain"  # in SamplingParams.extra_args; its value is JSON text
PATH = "worker.chain:Chain"  # as vLLM's argument names the class
# Proves that an order was written by this process, and not by a client in `vllm_xargs`.
_SEAL = secrets.token_hex(16)

# What vLLM 0.32's V2 runner takes of these; more ends the engine. Nothing checks it before.
V2_MOST_IDS = 1024
V2_MOST_STOP_IDS = 128
V2_INT32 = ("min_tokens", "thinking_token_budget")

MINUS_INFINITY = float("-inf")
NOTHING_LEFT = "The parameters leave no token that may be generated."

log = logging.getLogger("worker")


@dataclass(frozen=True)
class Order:
    """What one engine request asks of the chain.

    `fields` are GenerationConfig's, `eos` the ids that end the text. `scores` and `logits` say how
    many values of each step go into the report, after the chain and before it. `log_probs`: the
    chain works on log-probabilities, as beam search and guidance have it. `prompt_len` and
    `max_new_tokens` stand where the engine's own would be wrong: a step of a beam search has its
    text so far as its prompt. `tag` marks the records of one request among several in a report.
    `encoder` is the prompt that the encoder_… parameters mean, where it was healed afterwards.
    `pair` makes two requests one (see guidance).
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    eos: tuple[int, ...] = ()
    report: str | None = None
    scores: int = 0
    logits: int = 0
    log_probs: bool = False
    prompt_len: int | None = None
    max_new_tokens: int | None = None
    tag: int = 0
    encoder: tuple[int, ...] | None = None
    pair: Mapping[str, Any] | None = None

    def extra_args(self) -> dict[str, str]:
        """Return what carries the order in a request's `extra_args`."""
        return {KEY: json.dumps({"seal": _SEAL} | vars(self))}

    @staticmethod
    def of(params: SamplingParams) -> "Order | None":
        """Return a request's order, or None where it has none. Raises for one that is broken."""
        text = (params.extra_args or {}).get(KEY)
        if text is None:
            return None
        given = json.loads(text)
        given.pop("seal", None)
        return Order(**given | {"eos": tuple(given["eos"])})


class _Stub:
    """The attributes of a model that `_get_logits_processor` touches."""

    _merge_criteria_processor_list = GenerationMixin._merge_criteria_processor_list
    _get_logits_processor = GenerationMixin._get_logits_processor

    def __init__(self, vocab_size: int) -> None:
        text = SimpleNamespace(vocab_size=vocab_size)
        self.config = SimpleNamespace(is_encoder_decoder=False, get_text_config=lambda: text)


# Its table of 1,000,003 entries takes 17 ms to build, and the processor keeps no state.
@functools.lru_cache(maxsize=16)
def _watermark(items: tuple[tuple[str, Any], ...], vocab_size: int, device: str) -> Any:
    return WatermarkingConfig(**dict(items)).construct_processor(vocab_size, device)


class _Watermark(WatermarkingConfig):  # type: ignore[misc]
    def construct_processor(self, vocab_size: int, device: Any) -> Any:
        return _watermark(tuple(vars(self).items()), vocab_size, str(device))


class _SynthID(SynthIDTextWatermarkingConfig):  # type: ignore[misc]
    def construct_processor(self, vocab_size: int, device: Any) -> Any:  # noqa: ARG002
        return ReplayableSynthID(**vars(self), device=device)


class ReplayableSynthID(SynthIDTextWatermarkLogitsProcessor):  # type: ignore[misc]
    """SynthID whose state follows the tokens.

    transformers' own counts its calls, one for each token. vLLM also samples at a part of a
    prefill, whose token is thrown away, and starts a preempted request again: then the state is
    made anew from the tokens.
    """

    prompt_len = 0
    state: Any
    _next = 0  # the number of generated tokens that the next call is expected to see

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        generated = input_ids.shape[1] - self.prompt_len
        if self.state is None or generated != self._next:
            self._replay(input_ids, generated)
        result = super().__call__(input_ids, scores)
        self._next = generated + 1
        return result

    def _replay(self, input_ids: torch.Tensor, generated: int) -> None:
        self.state = None
        one = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        for position in range(generated):
            if self.state is None:
                self._init_state(1)
            else:
                last = self.prompt_len + position
                token = input_ids[:, last - 1 : last]
                self.state.context = torch.concat((self.state.context, token), dim=1)[:, 1:]
            self.state.num_calls += 1
            if self.skip_first_ngram_calls and self.state.num_calls < self.ngram_len:
                continue
            _, hashed = self._compute_keys(self.state.context, one)
            history = (hashed[:, None], self.state.context_history)
            self.state.context_history = torch.concat(history, dim=1)[:, :-1]


def build(
    order: Order, prompt: torch.Tensor, max_new_tokens: int | None, vocab_size: int
) -> LogitsProcessorList:
    """Return transformers' processors for an order, in transformers' order.

    `prompt` is [1, prompt tokens], on the device of the logits. Raises ValueError for what
    transformers refuses.
    """
    prompt_len = int(prompt.shape[-1])
    fields = dict(order.fields)
    watermarking = fields.pop("watermarking_config", None)
    config = GenerationConfig(**fields)
    if watermarking is not None:
        kind = _SynthID if "keys" in watermarking else _Watermark
        config.watermarking_config = kind(**watermarking)
        config.watermarking_config.validate()
    if max_new_tokens is not None:
        config.max_length = prompt_len + max_new_tokens
    if config.min_new_tokens is not None:  # as generate() prepares it
        config.min_length = prompt_len + config.min_new_tokens
    config._eos_token_tensor = (
        torch.tensor(order.eos, dtype=torch.long, device=prompt.device) if order.eos else None
    )
    encoder = prompt if order.encoder is None else prompt.new_tensor([order.encoder])
    chain = _Stub(vocab_size)._get_logits_processor(
        config,
        input_ids_seq_length=prompt_len,
        encoder_input_ids=encoder,
        device=prompt.device,
        model_kwargs={},
    )
    for processor in chain:
        if isinstance(processor, ReplayableSynthID):
            processor.prompt_len = prompt_len
    return LogitsProcessorList(map(_hidden, chain))


class _Hide(LogitsProcessor):  # type: ignore[misc]
    """Makes tokens impossible where `acts` says so, given the number of tokens so far."""

    def __init__(self, ids: torch.Tensor, acts: Callable[[int], bool]) -> None:
        self._ids, self._acts = ids, acts

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self._acts(input_ids.shape[-1]):
            return scores
        return scores.index_fill(1, self._ids, MINUS_INFINITY)


def _hidden(one: Any) -> Any:
    """Return a processor that does the same; transformers' four search the vocabulary each time."""
    match one:
        case SuppressTokensLogitsProcessor():
            return _Hide(one.suppress_tokens, lambda _: True)
        case SuppressTokensAtBeginLogitsProcessor():
            return _Hide(one.begin_suppress_tokens, lambda length: length == one.begin_index)
        case MinLengthLogitsProcessor():
            return _Hide(one.eos_token_id, lambda length: length < one.min_length)
        case MinNewTokensLengthLogitsProcessor():
            least = one.prompt_length_to_skip + one.min_new_tokens
            return _Hide(one.eos_token_id, lambda length: length < least)
    return one


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

    # Set in the worker's own process, where validate_params runs, before the first request.
    is_v2 = False
    has_tokenizer = True
    has_prompt_logprobs = True  # not with adapters on a CPU
    tokenizer: Any = None
    model_stop_ids = 0  # vLLM adds the model's own after validate_params

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse at admission what would end the engine, or be ignored without a word.

        vLLM calls it in the worker's process, for every request of every route. Raises
        VLLMValidationError.
        """
        text = (sampling_params.extra_args or {}).get(KEY)
        if text is not None and (not isinstance(text, str) or f'"seal": "{_SEAL}"' not in text):
            raise VLLMValidationError(f"{KEY} is the worker's own and must not be sent.")
        if not cls.has_tokenizer:
            for name in ("stop", "bad_words"):
                if getattr(sampling_params, name):
                    raise VLLMValidationError(
                        f"{name} needs a tokenizer, and this worker runs without one "
                        "(SKIP_TOKENIZER_INIT).",
                        parameter=name,
                    )
        if sampling_params.prompt_logprobs is not None and not cls.has_prompt_logprobs:
            # vLLM 0.32 applies the adapters of the batch's rows to the prompt's, and dies of it.
            raise VLLMValidationError(
                "prompt_logprobs cannot be had from a worker with adapters (ENABLE_LORA) on a CPU.",
                parameter="prompt_logprobs",
            )
        if not cls.is_v2:
            return
        for name in ("logit_bias", "allowed_token_ids"):
            given = len(getattr(sampling_params, name) or ())
            if given > V2_MOST_IDS:
                raise VLLMValidationError(
                    f"{name} has {given:,} entries, and vLLM takes {V2_MOST_IDS:,}.",
                    parameter=name,
                )
        stops = len(sampling_params.all_stop_token_ids) + cls.model_stop_ids
        if sampling_params.min_tokens and stops > V2_MOST_STOP_IDS:
            raise VLLMValidationError(
                f"min_tokens goes with {V2_MOST_STOP_IDS} stop ids at most, and there are {stops}.",
                parameter="min_tokens",
            )
        words = sampling_params.bad_words or ()
        # Each comes once more with a space before it, if that takes as many tokens.
        tokens = 2 * sum(len(cls.tokenizer.encode(w, add_special_tokens=False)) for w in words)
        if tokens > envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS:
            raise VLLMValidationError(
                f"bad_words may take {tokens:,} tokens together, and vLLM takes "
                f"{envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS:,} (VLLM_MAX_BAD_WORDS_TOTAL_TOKENS).",
                parameter="bad_words",
            )
        for name in V2_INT32:
            value = getattr(sampling_params, name) or 0
            if value >= 2**31:
                raise VLLMValidationError(
                    f"{name}={value} must be less than 2,147,483,648.", parameter=name
                )

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
            raise _Impossible
        _tell(guided, step, scores, raw)
        token = choose(scores, pair, step)
        for row in roles.values():
            _force(logits, row.index, token)

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
                    self._fail(logits, row, _Impossible())
        except Exception as error:
            for row in rows:
                self._fail(logits, row, error)

    def _fail(self, logits: torch.Tensor, row: _Row, error: Exception) -> None:
        request = row.request
        if not request.failed and request.order.report is not None:
            reports.append(request.order.report, {"failure": _reason(error)})
        request.failed = True
        _force(logits, row.index, request.stop_id)

    def _lose(self, logits: torch.Tensor, row: _Row, step: int) -> None:
        """End a request whose partner is not at this step; guidance sends the pair again."""
        request = row.request
        if not request.failed and request.order.report is not None:
            reports.append(request.order.report, {"lost": step})
        request.failed = True
        _force(logits, row.index, request.stop_id)


class _Impossible(Exception):  # noqa: N818 - what it says, not what it is
    def __str__(self) -> str:
        return NOTHING_LEFT


def steered(scores: torch.Tensor, unguided: torch.Tensor, scale: float) -> torch.Tensor:
    """Move log-probabilities away from the unguided ones, as transformers does.

    What is impossible already stays so: between two infinities there is no number.
    """
    moved = scale * (scores - unguided) + unguided
    return moved.masked_fill(torch.isneginf(scores), MINUS_INFINITY)


def possible(scores: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    """Say for each row whether a token can be taken, or where `samples` be drawn, from it."""
    best = scores.amax(dim=-1)  # a NaN comes through it, and is greater than nothing
    is_infinite = torch.isposinf(best)  # the likeliest token, but no probability
    return (best > MINUS_INFINITY) & ~(is_infinite & samples)


def choose(scores: torch.Tensor, pair: Mapping[str, Any], step: int) -> int:
    """Return guidance's token for a step from its scores, [1, vocabulary].

    Drawn from the position, so that every rank draws alike and a repeated step repeats.
    """
    if not pair["do_sample"]:
        return int(scores.argmax())
    generator = torch.Generator(device=scores.device)
    generator.manual_seed((pair["seed"] * 1_000_003 + step) % 2**63)
    return int(torch.multinomial(scores.softmax(-1), 1, generator=generator))


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
        record["scores"] = best(scores[0], order.scores)
    if order.logits:
        record["logits"] = best(raw[0], order.logits)
    reports.append(order.report, record)


def best(values: torch.Tensor, count: int) -> list[bytes]:
    """Return the largest values with their ids: [int32 ids, float32 values], as bytes."""
    found, ids = torch.topk(values.float(), min(count, values.shape[-1]))
    return [ids.to(torch.int32).cpu().numpy().tobytes(), found.cpu().numpy().tobytes()]


def _reason(error: Exception) -> str:
    """Return the sentence for the caller; what nobody foresaw goes to the engine's log."""
    if isinstance(error, _Impossible | ValueError):  # transformers' own refusals are sentences
        return str(error)
    if isinstance(error, OverflowError):
        return "The parameters lead to numbers that are too large to compute with."
    log.error("A chain failed in a way that nobody foresaw", exc_info=error)
    return "The parameters cannot be applied together."


def _force(logits: torch.Tensor, row: int, token: int) -> None:
    logits[row] = MINUS_INFINITY
    logits[row, token if token < logits.shape[-1] else 0] = 0.0
