"""How many tokens a second, at what CPU time and with what first token, beside those next to it?

The worker on both paths, `AsyncLLM.generate` in a plain process token by token (the mark) and with
one final output, `vllm serve` with an HTTP client, and the thinnest proxy in front of it. All are
started once and asked in turns, in another order each round; an engine that is not asked sleeps.
`proxy` and `vllm serve` are one server, and MAX_CONCURRENCY=256 for both that take jobs. 64 streams
and fewer have 128 tokens each, 256 have 64.
Host CPU is the CPU time of all processes but the engine's core and its workers.
"""

from contextlib import AsyncExitStack

import _contenders
import _report
from _contenders import (
    AT_ONCE,
    NATIVE,
    OPENAI,
    PROXY,
    Contender,
    in_rounds,
    measure,
    of_platform,
    openai,
)

TOKENS = {1: 128, 64: 128, 256: 64}  # of each stream, by the number of streams
FAR_MS, FAR = 50, (64, 256)  # a round trip, with which those that post are measured too
COLUMNS = {
    "tokens_per_s": "tokens/s",
    "host_us_per_token": "host CPU, µs/token",
    "first_p50_ms": "first token, ms",
    "first_last_ms": "last first, ms",
    "posts": "posts",
    "platform_us_per_token": "platform CPU, µs/token",
}


async def compare(rounds: int) -> list[_report.Row]:
    async with AsyncExitStack() as stack:
        server, url = await stack.enter_async_context(_contenders.vllm_serve())
        proxy = await stack.enter_async_context(_contenders.proxied(url))
        contenders = [
            *await stack.enter_async_context(_contenders.worker(MAX_CONCURRENCY=AT_ONCE)),
            *await stack.enter_async_context(_contenders.engine()),
            server,
            of_platform(PROXY, proxy, openai, *server.pids),
        ]
        for contender in contenders:
            for streams in TOKENS:
                await contender.run(streams, 16, 0)  # warms up, also for this number of rows
        loads: list[tuple[Contender, int, int]] = [
            *((one, streams, 0) for streams in TOKENS for one in contenders),
            *(
                (one, streams, FAR_MS)
                for streams in FAR
                for one in contenders
                if one.name in (OPENAI, NATIVE, PROXY)
            ),
        ]
        rows = [
            _report.Row({"": one.name, "streams": streams, "round trip, ms": far_ms})
            for one, streams, far_ms in loads
        ]
        for number in range(rounds):
            pairs = list(zip(loads, rows, strict=True))
            for (contender, streams, far_ms), row in pairs[:: -1 if number % 2 else 1]:
                row.add(await measure(contender, streams, TOKENS[streams], far_ms))
    return rows


if __name__ == "__main__":
    in_rounds(__file__, __doc__, COLUMNS, compare, 3)
