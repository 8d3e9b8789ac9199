"""The message from the worker to its logits processor, which goes with a request."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm import SamplingParams

KEY = "worker_chain"  # in SamplingParams.extra_args; its value is JSON text
# Proves that an order was written by this process, and not by a client in `vllm_xargs`.
SEAL = secrets.token_hex(16)


@dataclass(frozen=True)
class Order:
    """What one engine request asks of the chain.

    `fields` are GenerationConfig's, `eos` the ids that end the text. `scores` and `logits` say how
    many values of each step go into the report, after the chain and before it. `log_probs`: the
    chain works on log-probabilities, as beam search and guidance have it. `prompt_len` and
    `max_new_tokens` stand where the engine's own would be wrong: a step of a beam search has its
    text so far as its prompt. `tag` marks the records of one request among several in a report.
    `draw` is the seed by which the reported scores are drawn, not chosen, as sampled beams need it.
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
    draw: int | None = None
    encoder: tuple[int, ...] | None = None
    pair: Mapping[str, Any] | None = None

    def extra_args(self, report: Path | None) -> dict[str, str]:
        """Return what carries the order in `extra_args`; its answer goes to `report`."""
        return {KEY: json.dumps({"seal": SEAL} | vars(self) | {"report": report and str(report)})}

    @staticmethod
    def of(params: SamplingParams) -> "Order | None":
        """Return a request's order, or None where it has none. Raises for one that is broken."""
        text = (params.extra_args or {}).get(KEY)
        if text is None:
            return None
        given = json.loads(text)
        given.pop("seal", None)
        return Order(**given | {"eos": tuple(given["eos"])})
