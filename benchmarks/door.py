"""Does the HTTP door cost more than `vllm serve`, which has the same app behind uvicorn?

Both run at once and are asked in turns by one client: 64 streams of 128 tokens.
"""

from contextlib import AsyncExitStack

import _contenders
import _report
from _contenders import WORKER, in_rounds, measure
from local_endpoint.process import free_port

STREAMS, TOKENS = 64, 128
COLUMNS = {
    "tokens_per_s": "tokens/s",
    "host_us_per_token": "host CPU, µs/token",
    "first_p50_ms": "first token, ms",
    "first_last_ms": "last first, ms",
}


async def compare(rounds: int) -> list[_report.Row]:
    port = str(free_port())
    environ = WORKER | {"WORKER_MODE": "load_balancer", "PORT": port}
    door = _contenders.over_http("the door", ["-m", "worker"], port, environ)
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(door)
        theirs, _ = await stack.enter_async_context(_contenders.vllm_serve())
        pairs = [(one, _report.Row({"": one.name})) for one in (ours, theirs)]
        for contender, _ in pairs:
            await measure(contender, STREAMS, TOKENS)  # warms up
        for number in range(rounds):
            for contender, row in reversed(pairs) if number % 2 else pairs:
                row.add(await measure(contender, STREAMS, TOKENS))
    return [row for _, row in pairs]


if __name__ == "__main__":
    in_rounds(__file__, __doc__, COLUMNS, compare, 5)
