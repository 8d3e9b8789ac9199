"""How long until the worker takes its first job, and how much memory does it hold then?

`vllm serve` beside it counts until it is healthy. They are started alone and in turns, with the
files of both already in the kernel's cache. The memory is that of all processes after one run of 64
streams; what they share counts once. The phases are the worker's own words: `python` is what comes
before the first of them, and after the last.
"""

import argparse
import re
import time
from pathlib import Path

import uvloop

import _contenders
import _report
from _contenders import OPENAI, SERVE, WORKER, Contender, measure, memory_mb, of_platform, openai
from _stand_in import serving

PHASE = re.compile(r"(?:[:,]) ([a-z ]+) ([\d.]+) s")
COLUMNS = {"ready_s": "ready, s", "memory_mb": "memory, MB"}


async def start_worker() -> dict[str, float]:
    began_s = time.monotonic()
    async with serving(WORKER, _contenders.SDK) as stand_in:
        ready_s = time.monotonic() - began_s
        figures = {"ready_s": ready_s} | await _memory(of_platform(OPENAI, stand_in, openai))
        took = phases(stand_in.log)
        return figures | {"python": ready_s - sum(took.values())} | took


async def start_server() -> dict[str, float]:
    began_s = time.monotonic()
    async with _contenders.vllm_serve() as (server, _):
        return {"ready_s": time.monotonic() - began_s} | await _memory(server)


async def _memory(contender: Contender) -> dict[str, float]:
    await measure(contender, 64, 16)
    return {"memory_mb": memory_mb(contender)}


def phases(log: Path) -> dict[str, float]:
    """Return the seconds of each phase, as the worker's log has them."""
    line = log.read_text().partition("The start took ")[2].partition("\n")[0]
    return {name: float(seconds) for name, seconds in PHASE.findall(line)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = _report.options(parser)
    with _report.question(
        __file__, __doc__, COLUMNS, options, {"rounds": options.rounds}
    ) as answer:
        ours, theirs = answer.rows = [_report.Row({"": "worker"}), _report.Row({"": SERVE})]
        for number in range(options.rounds):
            pair = [(ours, start_worker), (theirs, start_server)]
            for row, start in reversed(pair) if number % 2 else pair:
                row.add(uvloop.run(start()))
        for name in ours.figures:
            answer.columns.setdefault(name, f"{name}, s")


if __name__ == "__main__":
    main()
