"""How smoothly does a stream arrive while the worker is full, and how soon while it is idle?

The real worker with its defaults answers bursts of streams of 128 greedy tokens, in turns with
`AsyncLLM.generate` in a plain process, each output taken as a post: nothing in front of the engine
can be smoother. For each version of RunPod's SDK that is asked for.

The first token counts from the job's push; `last first` is the one that the last stream of a burst
gets. The longest wait is the longest between two posts of one stream, of 99 in 100 streams and of
all. A round trip is added to loopback, half of it on each way. The platform shares the cores, as no
real one does: its share is printed, and as root it runs before all else (`keeps time`), since a
busy machine else delays it.
"""

import argparse
import subprocess
from contextlib import AsyncExitStack

import uvloop

import _contenders
import _report
from _contenders import EACH, NATIVE, OPENAI, measure, platform

TOKENS = 128  # of each stream
IDLE_RUNS = 3  # of one stream, for each run of many
LOADS = (  # who, streams, round trip in ms
    (EACH, 1, 0),
    (OPENAI, 1, 0),
    (NATIVE, 1, 0),
    (EACH, 64, 0),
    (OPENAI, 64, 0),
    (NATIVE, 64, 0),
    (OPENAI, 64, 50),
    (OPENAI, 64, 100),
    (NATIVE, 64, 100),
    (EACH, 100, 0),
    (OPENAI, 100, 0),
)
COLUMNS = {
    "first_p50_ms": "first token, ms",
    "first_last_ms": "last first, ms",
    "wait_p99_ms": "longest wait, 99 %, ms",
    "wait_worst_ms": "worst, ms",
    "posts": "posts",
    "tokens_per_s": "tokens/s",
    "platform_us_per_token": "platform CPU, µs/token",
}


async def compare(sdk: str, rounds: int) -> list[_report.Row]:
    async with AsyncExitStack() as stack:
        started = [
            *await stack.enter_async_context(_contenders.worker(sdk)),
            *await stack.enter_async_context(_contenders.engine()),
        ]
        contenders = {one.name: one for one in started}
        for name, streams, _ in LOADS:
            await contenders[name].run(streams, 16, 0)  # warms up, also for this number of rows
        rows = [
            _report.Row({"": name, "streams": streams, "round trip, ms": far_ms, "SDK": sdk})
            for name, streams, far_ms in LOADS
        ]
        for _ in range(rounds):
            for (name, streams, far_ms), row in zip(LOADS, rows, strict=True):
                for _ in range(IDLE_RUNS if streams == 1 else 1):
                    row.add(await measure(contenders[name], streams, TOKENS, far_ms))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sdk", nargs="+", default=_contenders.SDKS, help="versions of the SDK")
    parser.add_argument("--rounds", type=int, default=5)
    options = _report.options(parser)
    about = platform() | {"rounds": options.rounds}
    with _report.question(__file__, __doc__, COLUMNS, options, about) as answer:
        for sdk in options.sdk:
            try:
                answer.rows += uvloop.run(compare(sdk, options.rounds))
            except subprocess.CalledProcessError:
                print(f"SDK {sdk} cannot be fetched, and is left out")


if __name__ == "__main__":
    main()
