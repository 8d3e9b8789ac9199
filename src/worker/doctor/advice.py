"""What to try: changes of a variable or of the card, each with its computed effect."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from worker.doctor.cards import CARDS, GIB, Card
from worker.doctor.estimate import Sum, add_up
from worker.engine.planner import UnplannedError
from worker.errors import StartError

TOGETHER = 5 * GIB  # at most what a forward pass of several cards takes on each
FP8 = (8, 9)  # the capability from which on a card computes in it
Judge = Callable[[argparse.Namespace, int, Card], Sum]


@dataclass(frozen=True)
class Try:
    """A change (`MAX_MODEL_LEN=16384`), and what the sum is with it."""

    change: str
    sum: Sum


def tries(now: Sum, args: argparse.Namespace, count: int, judge: Judge) -> tuple[Try, ...]:
    """Return up to three changes that help, the least intrusive first."""
    found: list[Try] = []
    for change, changed, cards, card in _candidates(now, args, count):
        if len(found) == 3:
            break
        try:
            then = judge(argparse.Namespace(**{**vars(args), **changed}), cards, card)
            if then.answer != "fits" and card == now.card and _round(then) > 1.1 * _round(now):
                changed |= {"max_model_len": _round(then)}
                change = f"{change} with MAX_MODEL_LEN={_round(then)}"
                then = judge(argparse.Namespace(**{**vars(args), **changed}), cards, card)
        except (StartError, UnplannedError):  # what vLLM refuses is no advice
            continue
        if then.answer == "fits" and (now.answer != "fits" or card != now.card or _more(then, now)):
            found.append(Try(change, then))
    return tuple(found)


def _candidates(
    now: Sum, args: argparse.Namespace, count: int
) -> Iterator[tuple[str, dict[str, Any], int, Card]]:
    card, fits = now.card, now.answer == "fits"
    used = args.tensor_parallel_size * args.pipeline_parallel_size
    if used < count:
        yield f"TENSOR_PARALLEL_SIZE={count}", {"tensor_parallel_size": count}, count, card
    if not fits and (longest := _round(now)):
        yield f"MAX_MODEL_LEN={longest}", {"max_model_len": longest}, count, card
    enough = [one for one in CARDS if add_up(now.plan, one).answer == "fits"]
    least = min(enough, key=lambda one: one.mib, default=card)
    if used == 1 and least.mib < 0.9 * card.mib:
        yield f"GPU={least.name}, a smaller card", {}, count, least
    if not fits and least.mib > card.mib:
        many = f"{count}x" if count > 1 else ""
        yield f"GPU={many}{least.name}, a larger card", {}, count, least
    if not now.plan.config.model_config.quantization:
        scheme = "fp8_per_channel"
        yield f"QUANTIZATION={scheme}", {"quantization": scheme}, count, card
    if not fits and (found := _several(now, used, count)):
        several, one = found
        change = f"GPU={several}x{one.name} with TENSOR_PARALLEL_SIZE={several}"
        yield change, {"tensor_parallel_size": several}, several, one
    if args.kv_cache_dtype == "auto" and card.capability >= FP8:
        yield "KV_CACHE_DTYPE=fp8", {"kv_cache_dtype": "fp8"}, count, card


def _several(now: Sum, used: int, count: int) -> tuple[int, Card] | None:
    """Return how many of a card may share the model: of this one, else the fewest of another."""
    request = now.plan.token_bytes * now.plan.max_model_len
    found = [
        (several, one)
        for several in (2, 4, 8)
        if several > count
        for one in (now.card, *sorted(CARDS, key=lambda card: card.mib))
        if (now.weights + request) * used / several + TOGETHER < 0.9 * one.memory
    ]
    return next((each for each in found if each[1] == now.card), found[0] if found else None)


def _round(one: Sum) -> int:
    """Return the longest context that surely fits, in whole thousands of tokens."""
    return one.longest() // 1024 * 1024


def _more(then: Sum, now: Sum) -> bool:
    length = now.plan.max_model_len
    return then.at_once(length) > 1.1 * now.at_once(length)
