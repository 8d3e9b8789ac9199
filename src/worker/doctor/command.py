"""`python -m worker --doctor`: variables in, a page or JSON out, and the exit code.

vLLM reads the environment and looks for its device when it is imported: what imports it is itself
imported here, when the card stands in its place.
"""

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from worker.doctor import cards
from worker.errors import WorkerError
from worker.sentences import hide

if TYPE_CHECKING:
    from worker.doctor.examine import Report


def run(environ: Mapping[str, str], baked: Mapping[str, str], *, is_json: bool) -> int:
    """Judge without a GPU whether the model fits the card GPU; returns the exit code.

    Raises SettingsError or StartError where the configuration is wrong; with `is_json` that is an
    object too.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")  # what matters comes as a sentence
    try:
        report = _report(environ, baked)
    except WorkerError as error:
        if not is_json:
            raise
        print(json.dumps({"exit_code": 1, "error": hide(str(error))}, indent=2))
        return 1
    from rich.console import Console

    from worker.doctor import page

    if is_json:
        print(page.as_json(report))
    else:
        console = Console()
        console = console if console.is_terminal else Console(width=120)
        with console.capture() as drawn:
            page.show(report, console)
        print(drawn.get(), end="")
    return report.exit_code


def _report(environ: Mapping[str, str], baked: Mapping[str, str]) -> "Report":
    named = environ.get("GPU", "").strip()
    wanted = cards.read(named) if named else None
    count, first = wanted or (1, cards.CARDS[0])
    from worker.engine import card

    card.stand_in(first.name, first.memory, first.capability, count)
    from worker.doctor.examine import examine

    return examine(environ, baked, wanted)
