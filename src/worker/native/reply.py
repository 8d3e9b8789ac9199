"""The shape of a native reply: what one engine output adds to it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from worker.batching import weight
from worker.errors import RequestError
from worker.generation.plan import Plan
from worker.routines.asker import Sequence

# What vLLM's own server writes for an impossible token, because JSON has no infinity.
IMPOSSIBLE_LOGPROB = -9999.0
# What a choice holds for each token, which the pieces of a batch add up.
LISTS = ("logprobs", "scores", "logits", "token_ids")


@dataclass(frozen=True)
class Piece:
    """What one engine output adds to one sequence: `choice` is prompt index times n plus index."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """What it adds to a yield, as the SDK writes it."""
        return weight([self.text, self.extra] if self.extra else self.text) + len(", ")


def piece_of(choice: int, sequence: Sequence, plan: Plan) -> Piece:
    """Return a whole sequence of a routine's as one piece."""
    extra: dict[str, Any] = {"finish_reason": sequence.finish_reason, **sequence.values}
    if sequence.score is not None:
        extra["score"] = number(sequence.score)
    if plan.token_ids:
        extra["token_ids"] = sequence.token_ids
    return Piece(choice, sequence.text, tuple(sequence.token_ids), extra)


def extra_of(one: Any, plan: Plan) -> dict[str, Any]:
    """Return what a piece holds beside its text; `one` is vLLM's CompletionOutput."""
    if one.finish_reason == "error":
        raise RequestError(
            "The engine could not go on with this request; its structured output may be one "
            "that nothing can match.",
            code=500,
        )
    extra: dict[str, Any] = {}
    if one.logprobs is not None:
        extra["logprobs"] = logprobs_of(one.token_ids, one.logprobs)
    if plan.token_ids:
        extra["token_ids"] = list(one.token_ids)
    if one.finish_reason is not None:
        extra["finish_reason"] = one.finish_reason
        # An end that the job named itself is an end like the model's own.
        if one.stop_reason is not None and one.stop_reason not in plan.eos:
            extra["stop_reason"] = one.stop_reason
    return extra


def logprobs_of(token_ids: Iterable[int], positions: Any) -> list[Any]:
    """Return for each token its own log-probability and the likeliest ones beside it."""
    listed: list[dict[str, Any] | None] = []
    for token_id, position in zip(token_ids, positions, strict=False):
        if not position:  # the first token of a prompt has none
            listed.append(None)
            continue
        ranked = sorted(position.items(), key=lambda entry: entry[1].rank or 0)
        entries = [
            {
                "token_id": other,
                "token": entry.decoded_token,
                "logprob": number(max(entry.logprob, IMPOSSIBLE_LOGPROB)),
            }
            for other, entry in ranked
        ]
        unknown = {"token_id": token_id, "token": None, "logprob": None}
        own = next((entry for entry in entries if entry["token_id"] == token_id), unknown)
        listed.append(own | {"top": entries})
    return listed


def number(value: float) -> float | None:
    """Return a number as JSON has it, and as vLLM's server writes it: null for NaN and infinity."""
    return value if isfinite(value) else None
