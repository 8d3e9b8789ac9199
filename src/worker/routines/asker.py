"""Answers that take several engine requests: beam search, guidance, token healing.

The bookkeeping is transformers' own, called on stubs, so that the results are those of
`generate()` (5.19); vLLM is the model behind it. What a step needs beyond the token, its processed
scores, comes through the chain's report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from worker.generation.plan import Plan
from worker.processor.order import Order
from worker.processor.reports import Report, refuse_failure

# So many tokens before the answer decide how its first ones are written.
TEXT_CONTEXT = 6


@dataclass(frozen=True)
class Sequence:
    """One finished sequence; `scores` and `logits` are as in `values`."""

    token_ids: list[int]
    text: str
    finish_reason: str
    score: float | None = None
    values: Mapping[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Asker:
    """What sends one job's requests to the engine, on the engine's loop.

    `rank` is the one of several engines (DATA_PARALLEL_SIZE) that they all go to: its cache holds
    what they share, and two requests in lock step have to be in one batch.
    """

    client: Any
    request_id: str
    lora: Any
    report: Report
    plan: Plan
    rank: int

    @property
    def tokenizer(self) -> Any:
        return self.client.get_tokenizer()

    async def ask(self, ids: list[int], order: Order, name: str, **fields: Any) -> Any:
        """Run one request to its end and return its output, a CompletionOutput."""
        base = self.plan.params
        params = SamplingParams(
            **{
                "temperature": 0.0,
                "ignore_eos": True,
                "detokenize": False,
                "output_kind": RequestOutputKind.FINAL_ONLY,
                "logit_bias": base.logit_bias,
                "allowed_token_ids": base.allowed_token_ids,
                "extra_args": order.extra_args(self.report.path),
                **fields,
            }
        )
        last = None
        outputs = self.client.generate(
            {"prompt_token_ids": ids},
            params,
            f"{self.request_id}-{name}",
            lora_request=self.lora,
            data_parallel_rank=self.rank,
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


def tensors(packed: list[bytes]) -> list[torch.Tensor]:
    """Return what `best` or `drawn` packed: int32 ids, and float32 values beside them."""
    kinds = (torch.int32, torch.float32, torch.float32)
    pairs = zip(packed, kinds, strict=False)
    return [torch.frombuffer(bytearray(one), dtype=kind) for one, kind in pairs]
