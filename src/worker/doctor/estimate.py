"""The sum: what of a card's memory goes where, and what is left for the cache.

vLLM's plan says exactly what weights and cache take. What a forward pass takes beside them is only
known on the card: it is a range here, and so is everything that follows from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from worker.doctor.cards import GIB, Card
from worker.engine.planner import Capacity, Plan

HELD = 0.02  # of a card's memory, what CUDA may not hand out: on the safe side, and not measured
SOURCE = "measured by llm-d-planner 0.3.3 on an H100 with vLLM 0.19, 28 models"
# The most that a forward pass and its graphs took there, in GiB, with 8,192 tokens at once; and
# what lies beside torch's memory: on one card, and on each of several.
MOST = {"dense": 2.0, "experts": 2.5, "multimodal": 2.0}
MEASURED_TOKENS = 8192
BESIDE, BESIDE_TOGETHER = 0.27, 2.10

Answer = Literal["fits", "does not fit", "cannot tell"]


@dataclass(frozen=True)
class Range:
    """The least and the most, in bytes."""

    least: int
    most: int


@dataclass(frozen=True)
class Sum:
    """What each GPU's memory is used for, in bytes, and what its cache holds at worst and best.

    A capacity is vLLM's sentence where not one request of the longest context fits. `is_measured`
    where a start has measured it.
    """

    card: Card
    plan: Plan
    allowed: int
    weights: int
    runtime: Range
    cache: Range
    worst: Capacity | str
    best: Capacity | str
    is_measured: bool = False

    @property
    def answer(self) -> Answer:
        if isinstance(self.worst, Capacity):
            return "fits"
        return "cannot tell" if isinstance(self.best, Capacity) else "does not fit"

    @property
    def free(self) -> int:
        """What vLLM leaves alone (GPU_MEMORY_UTILIZATION)."""
        return max(self.card.memory - self.weights - self.runtime.most - self.cache.least, 0)

    def longest(self) -> int:
        """The longest context that surely fits."""
        return self.plan.longest(self.cache.least) if self.cache.least > 0 else 0

    def at_once(self, length: int) -> float:
        """How many requests of this length surely run at once."""
        found = self.plan.capacity(self.cache.least, length)
        most = self.plan.config.scheduler_config.max_num_seqs
        return min(found.at_once, most) if isinstance(found, Capacity) else 0.0


def gib(size: float) -> str:
    return f"{max(size, 0) / GIB:.1f} GiB"


def too_large(weights: int, allowed: int) -> str:
    """Say that the weights' bytes are more than vLLM may use of a GPU."""
    return (
        f"The weights alone take {gib(weights)} on each GPU, more than the {gib(allowed)} that "
        "vLLM may use of it."
    )


def add_up(plan: Plan, card: Card, runtime: Range | None = None) -> Sum:
    """Return the sum for a card; `runtime` where it is known better than by the table."""
    known = runtime is not None
    runtime = runtime or runtime_of(plan.config)
    cache_config = plan.config.cache_config
    allowed = int(card.memory * cache_config.gpu_memory_utilization)
    held = 0 if known else int(allowed * HELD)
    fixed = cache_config.kv_cache_memory_bytes
    left = (card.memory if fixed else allowed) - plan.weights
    cache = Range(left - held - runtime.most, left - runtime.least)
    if fixed:
        cache = Range(min(fixed, cache.least), min(fixed, cache.most))
    worst, best = (plan.capacity(max(cache.least, 0)), plan.capacity(max(cache.most, 0)))
    return Sum(card, plan, allowed, plan.weights, runtime, cache, worst, best)


def as_measured(one: Sum, figures: Mapping[str, Any]) -> Sum:
    """Return the sum with what vLLM measured at a start in place of what is reckoned."""
    if not {"weights", "cache"} <= figures.keys():
        return one
    weights, cache = figures["weights"], figures["cache"]
    held = one.plan.capacity(cache)
    beside = max(one.allowed - weights - cache, 0)
    return replace(
        one,
        weights=weights,
        runtime=Range(beside, beside),
        cache=Range(cache, cache),
        worst=held,
        best=held,
        is_measured=True,
    )


def runtime_of(config: Any) -> Range:
    """Return what a forward pass takes beside weights and cache.

    At least the tensors of one layer and the scores of every sampled token; at most what was
    measured of such models, or twice the least.
    """
    model, scheduler, parallel = (
        config.model_config,
        config.scheduler_config,
        config.parallel_config,
    )
    text, shared = model.hf_text_config, parallel.tensor_parallel_size
    hidden = model.get_hidden_size()
    widest = max(
        getattr(text, "intermediate_size", None) or 4 * hidden,
        (getattr(text, "moe_intermediate_size", None) or 0)
        * (getattr(text, "num_experts_per_tok", None) or 0),
    )
    tokens, sequences = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    layer = tokens * (3 * hidden + 3 * widest // shared) * model.dtype.itemsize
    scores = min(sequences, tokens) * model.get_vocab_size() * 4
    kind = "experts" if model.is_moe else "multimodal" if model.is_multimodal_model else "dense"
    measured = MOST[kind] * max(1.0, tokens / MEASURED_TOKENS) * GIB
    beside = BESIDE if parallel.world_size == 1 else BESIDE_TOGETHER
    least = layer + scores
    return Range(least, int(max(measured, 2 * least) + beside * GIB))
