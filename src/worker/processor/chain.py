"""transformers' own logits processors for one request.

Their order lives in one private function of transformers (5.19), which is called here rather than
copied; tests/golden notices when it changes.
"""

import functools
from collections.abc import Callable
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

from worker.processor.logits import MINUS_INFINITY
from worker.processor.order import Order


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
