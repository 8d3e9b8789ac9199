"""The doctor's visit: from the variables of an endpoint to a verdict, without its card.

what vLLM refuses ─ the weights' files ─ vLLM's plan ─ the sum for a card ─ what to try
"""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from worker.configuration.settings import Settings
from worker.doctor import advice, host, measured, wants, weights
from worker.doctor.cards import CARDS, Card
from worker.doctor.estimate import Sum, add_up, as_measured
from worker.doctor.host import Host
from worker.doctor.wants import Wants
from worker.doctor.weights import Weights
from worker.engine import adapters, planner
from worker.engine import card as absent
from worker.engine.planner import UnplannedError
from worker.errors import StartError
from worker.logs import say
from worker.model import locate


@dataclass(frozen=True)
class Report:
    """What was found: of one card with what to try, or of every card."""

    model: str
    count: int
    files: Weights | None
    host: Host
    sums: tuple[Sum, ...]
    tries: tuple[advice.Try, ...]
    refusals: Mapping[str, str]
    unjudged: str
    warnings: tuple[str, ...]
    wants: Wants | None

    @property
    def exit_code(self) -> int:
        """0 fits (some card), 1 does not fit, 2 cannot tell."""
        answers = {one.answer for one in self.sums}
        if "fits" in answers:
            return 0
        return 2 if self.unjudged or "cannot tell" in answers else 1


def examine(
    environ: Mapping[str, str], baked: Mapping[str, str], wanted: tuple[int, Card] | None
) -> Report:
    """Judge the configuration for `wanted` (how many, and which card), or for every card.

    Raises SettingsError or StartError with the sentence that says what is wrong.
    """
    settings = Settings.from_env(environ, baked)
    named = locate.locate(settings.args, locate.caches(os.environ, baked))
    args = locate.fetch(named, environ, partial(say, is_error=True), weights=False)
    found = weights.of_all(named, args)
    count, cards = (wanted[0], (wanted[1],)) if wanted else (1, CARDS)
    places = {one.name: measured.place(environ, settings.args, one.name) for one in cards}
    known = {name: measured.find(place) for name, place in places.items()}
    sums, refusals, unjudged = [], {}, ""
    for one in cards:
        try:
            sums.append(as_measured(judge(args, count, one), known[one.name]))
        except StartError as error:
            if wanted:
                raise
            refusals[one.name] = str(error)
        except UnplannedError as error:
            unjudged = str(error)
            break
    if not wanted and len(refusals) == len(cards):
        raise StartError(next(iter(refusals.values())))
    if sums:
        _refuse_adapters(args, found, sums[0].plan)
    tries = advice.tries(sums[0], args, count, judge) if wanted and sums else ()
    return Report(
        settings.served_model_names[0],
        count,
        found.get(args.model),
        host.read(args, found),
        tuple(sums),
        tries,
        refusals,
        unjudged,
        settings.warnings,
        wants.read(args, sums[0].plan.config.model_config if sums else None),
    )


def _refuse_adapters(
    args: argparse.Namespace, found: Mapping[str, Weights], plan: planner.Plan
) -> None:
    """Raise StartError where an adapter is not for this model."""
    none = Weights(0, 0, 0)
    base, config = found.get(args.model, none).shapes, plan.config.lora_config
    for adapter in args.lora_modules or ():
        folder, its = Path(adapter.path), found.get(adapter.path, none).shapes
        why = adapters.refusal(folder, its, base) or adapters.refusal_of_vllm(
            folder, its, plan.model, config
        )
        if why:
            raise StartError(
                f"LORA_MODULES: adapter {adapter.name!r} cannot be loaded beside this model: {why}."
            )


def judge(args: argparse.Namespace, count: int, card: Card) -> Sum:
    """Return the sum for `count` cards. Raises StartError and UnplannedError."""
    absent.stand_in(card.name, card.memory, card.capability, count)
    return add_up(planner.plan(args), card)
