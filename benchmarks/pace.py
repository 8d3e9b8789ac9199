"""How many posts does a long answer of a large model take, and when do its tokens arrive?

One stream of 500 tokens from an engine that is paced to 80 tokens a second by a logits processor
that sleeps (_paced.py). The ways of batching: the worker's defaults; each token by itself
(max_batch_size=1), run once; and sizes alone, without a clock (MAX_BATCH_DELAY_MS=0). Ideal is 500
tokens at 80 a second, and `beyond` is how much later than that the last post came.
"""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import _report
from _contenders import SDK, WORKER, in_rounds, openai, times
from _stand_in import Platform, Stream, serving
from local_endpoint.usage import output_tokens

TOKENS, RATE = 500, 80
PACED = {"PYTHONPATH": str(Path(__file__).parent), "LOGITS_PROCESSORS": "_paced:Pace"}
PACED |= {"STEPS_PER_S": str(RATE)}
DEFAULTS, EACH, SIZES = "defaults", "each token", "sizes alone"
COLUMNS = {
    "posts": "posts",
    "beyond_ms": "beyond the ideal, ms",
    "first_p50_ms": "first token, ms",
    "wait_worst_ms": "longest wait, worst, ms",
}


def counted(tokens: int) -> dict[str, Any]:
    """Return a job whose every event says how many tokens there are by then."""
    job = openai(tokens)
    job["openai_input"]["stream_options"]["continuous_usage_stats"] = True
    return job


async def compare(rounds: int) -> list[_report.Row]:
    async with AsyncExitStack() as stack:
        start = stack.enter_async_context
        ours = await start(serving(WORKER | PACED, SDK))
        clockless = await start(serving(WORKER | PACED | {"MAX_BATCH_DELAY_MS": "0"}, SDK))
        ways: list[tuple[str, Platform, dict[str, int], int]] = [
            (DEFAULTS, ours, {}, 0),
            (DEFAULTS, ours, {}, 100),
            (EACH, ours, {"max_batch_size": 1}, 100),
            (SIZES, clockless, {}, 100),
        ]
        rows = [_report.Row({"": way, "round trip, ms": far_ms}) for way, *_, far_ms in ways]
        for stand_in in (ours, clockless):
            await stand_in.run(counted(16), 1, 16, 0)  # warms up
        for number in range(rounds):
            for (way, stand_in, sizes, far_ms), row in zip(ways, rows, strict=True):
                if way == EACH and number:
                    continue  # it falls behind, for nearly a minute
                await stand_in.is_asked.wait()
                (stream,) = await stand_in.run(counted(TOKENS) | sizes, 1, TOKENS, far_ms)
                ended_s = stream.posts_s[-1] - stream.asked_s
                row.add(times([stream], TOKENS) | {"beyond_ms": 1000 * (ended_s - TOKENS / RATE)})
                row.curve = curve(stream)
    return rows


def curve(stream: Stream) -> list[tuple[float, float]]:
    """Return how many tokens there were by when, in seconds."""
    points = [(0.0, 0.0)]
    for when_s, post in zip(stream.posts_s, stream.posts, strict=True):
        tokens = output_tokens(json.loads(post)["output"])
        points.append((round(when_s - stream.asked_s, 3), tokens or points[-1][1]))
    return points


if __name__ == "__main__":
    in_rounds(__file__, __doc__, COLUMNS, compare, 2)
