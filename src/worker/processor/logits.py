"""Arithmetic on the logits of a step."""

from collections.abc import Mapping
from typing import Any

import torch

MINUS_INFINITY = float("-inf")
NOTHING_LEFT = "The parameters leave no token that may be generated."


class Impossible(Exception):  # noqa: N818 - what it says, not what it is
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
    generator.manual_seed(seed_of(pair["seed"], step))
    return int(torch.multinomial(scores.softmax(-1), 1, generator=generator))


def seed_of(seed: int, number: int) -> int:
    """Return the seed of one of the draws that follow from a seed."""
    return (seed * 1_000_003 + number) % 2**63


def best(values: torch.Tensor, count: int) -> list[bytes]:
    """Return the largest values with their ids: [int32 ids, float32 values], as bytes."""
    found, ids = torch.topk(values.float(), min(count, values.shape[-1]))
    return [_packed(ids.to(torch.int32)), _packed(found)]


def drawn(scores: torch.Tensor, count: int, seed: int) -> list[bytes]:
    """Draw tokens without replacement: [int32 ids, float32 scores, float32 keys], as bytes.

    The keys are the scores plus Gumbel noise, largest first. The largest keys of several rows, each
    plus any number of its own, are a draw without replacement from all the rows together.
    """
    noise = torch.empty_like(scores, dtype=torch.float64)
    generator = torch.Generator(device=scores.device)
    noise.exponential_(generator=generator.manual_seed(seed))
    keys, ids = torch.topk(scores - noise.log_(), min(count, scores.shape[-1]))
    return [_packed(ids.to(torch.int32)), _packed(scores[ids].float()), _packed(keys.float())]


def _packed(values: torch.Tensor) -> bytes:
    return bytes(values.cpu().numpy().tobytes())


def force(logits: torch.Tensor, row: int, token: int) -> None:
    logits[row] = MINUS_INFINITY
    logits[row, token if token < logits.shape[-1] else 0] = 0.0
