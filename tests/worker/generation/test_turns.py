"""What one job may cost its neighbours."""

import asyncio

import pytest

from worker.errors import RequestError
from worker.generation.turns import Turns
from worker.processor.order import Order


def most_at_once(turns: Turns, jobs: list[int], *, is_costly: bool = False) -> int:
    """Run jobs of so many sequences each; return how many sequences ever ran together."""
    running = most = 0

    async def job(sequences: int) -> None:
        nonlocal running, most
        async with turns.taken(Order(), is_costly=is_costly, sequences=sequences):
            running += sequences
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= sequences

    async def main() -> None:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            for sequences in jobs:
                group.create_task(job(sequences))

    asyncio.run(main())
    return most


def test_no_more_sequences_than_turns() -> None:
    """However the jobs are cut, MAX_CHAINS sequences run at once, and every job has its turn."""
    assert most_at_once(Turns(5, 5), [1] * 20) == 5
    assert most_at_once(Turns(5, 5), [3, 3, 1, 5, 2, 4, 4, 1, 1]) <= 5
    assert most_at_once(Turns(5, 2), [2, 1, 2, 1, 1], is_costly=True) == 2


def test_what_could_never_run_is_refused() -> None:
    """More sequences than there are turns is a sentence, and not a wait for ever."""

    async def main() -> None:
        async with Turns(5, 2).taken(Order(), is_costly=True, sequences=3):
            pass

    with pytest.raises(RequestError, match="MAX_COSTLY_CHAINS"):
        asyncio.run(main())


def test_a_job_without_the_chain_waits_for_nobody() -> None:
    """The turns are for those that run the chain."""

    async def main() -> None:
        turns = Turns(1, 1)
        async with (
            asyncio.timeout(10),
            turns.taken(Order(), is_costly=False),
            turns.taken(None, is_costly=False, sequences=100),
        ):
            pass

    asyncio.run(main())


def test_a_job_that_is_stopped_while_it_waits_leaves_no_gap() -> None:
    """What a stopped job had taken is free again."""

    async def main() -> None:
        turns = Turns(3, 3)

        async def wait(sequences: int) -> None:
            async with turns.taken(Order(), is_costly=False, sequences=sequences):
                pass

        async with asyncio.timeout(10):
            async with turns.taken(Order(), is_costly=False, sequences=2):
                waiting = asyncio.create_task(wait(3))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
            await wait(3)

    asyncio.run(main())
