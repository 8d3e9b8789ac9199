"""`python -m worker --doctor`: variables in, a page or JSON out, and the exit code.

vLLM reads the environment and looks for its device when it is imported: what imports it is itself
imported here, when the card stands in its place.
"""

import os
from collections.abc import Mapping

from worker.doctor import cards


def run(environ: Mapping[str, str], baked: Mapping[str, str], *, is_json: bool) -> int:
    """Judge without a GPU whether the model fits the card GPU; returns the exit code.

    Raises SettingsError or StartError where the configuration is wrong.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")  # what matters comes as a sentence
    named = environ.get("GPU", "").strip()
    wanted = cards.read(named) if named else None
    count, first = wanted or (1, cards.CARDS[0])
    from worker.engine import card

    card.stand_in(first.name, first.memory, first.capability, count)
    from rich.console import Console

    from worker.doctor import page
    from worker.doctor.examine import examine

    report = examine(environ, baked, wanted)
    if is_json:
        print(page.as_json(report))
    else:
        console = Console()
        console = console if console.is_terminal else Console(width=120)
        with console.capture() as drawn:
            page.show(report, console)
        print(drawn.get(), end="")
    return report.exit_code
