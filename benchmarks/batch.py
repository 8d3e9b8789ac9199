"""What is a batch worth, beside `vllm run-batch` and beside one job for each line?

2,000 chat lines from a file to a file, the same for all, with other prompts in each round. All are
started once and asked in turns. `vllm run-batch` is timed without its start. The jobs come at once,
a hundred run at a time, and each post takes a round trip. Memory is what the worker's own process
has gained when the batch is over. The goals: 0.95 of `vllm run-batch`, and three times the jobs
where answers are short.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil

import _report
from _contenders import CPU, MODEL, OPTIONS, SDK, WORKER, in_rounds
from _stand_in import LEAVE_S, START_S, Platform, serving

LINES = 2000
TOKENS = (8, 32)
FAR_MS = 50
BATCH, RUN_BATCH, JOBS = "batch", "vllm run-batch", "one job a line, 50 ms"
COLUMNS = {
    "tokens_per_s": "tokens/s",
    "of_run_batch_per_s": "of run-batch",
    "of_jobs_per_s": "of the jobs",
    "memory_mb": "memory, MB more",
}


def lines(tokens: int, turn: str) -> list[dict[str, Any]]:
    """Return lines that no other turn has."""
    return [
        {
            "custom_id": f"{turn}-{i}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": MODEL,
                "messages": [{"role": "user", "content": f"In turn {turn}: tell me of {i}."}],
                "max_tokens": tokens,
                "ignore_eos": True,
            },
        }
        for i in range(LINES)
    ]


@contextlib.asynccontextmanager
async def run_batch() -> AsyncIterator[Any]:
    """Start vLLM's; gives what returns the seconds that it takes for a file."""
    options = (f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items())
    program = [str(Path(__file__).with_name("_run_batch.py")), "-i", "none", "-o", "none"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        "--model",
        MODEL,
        *options,
        "--enforce-eager",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | CPU,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def said(word: str) -> list[str]:
        async with asyncio.timeout(START_S):
            async for line in process.stdout:
                if line.startswith(word.encode()):
                    return line.decode().split()
        raise RuntimeError("vllm run-batch ended")

    await said("ready")

    async def took_s(file: Path) -> float:
        process.stdin.write(f"{file}\n".encode())
        return float((await said("took"))[1])

    try:
        yield took_s
    finally:
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), LEAVE_S)
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def a_batch(stand_in: Platform, file: Path) -> float:
    """Return the seconds of one batch job."""
    batch = {"input": file.name, "output": f"{file.name}.results"}
    await stand_in.is_asked.wait()
    began_s = time.monotonic()
    ((stream, end),) = await stand_in.each([{"batch": batch}], 0)
    took_s = time.monotonic() - began_s
    said = json.loads(stream.posts[-1])["output"]["batch"] if stream.posts else {}
    if (said.get("done"), said.get("failed")) != (LINES, 0):
        raise RuntimeError(f"the batch is not whole: {end!r}")
    return took_s


async def jobs(stand_in: Platform, given: list[dict[str, Any]]) -> float:
    """Return the seconds of a job for each line."""
    inputs = [{"openai_route": one["url"], "openai_input": one["body"]} for one in given]
    await stand_in.is_asked.wait()
    began_s = time.monotonic()
    ended = await stand_in.each(inputs, FAR_MS)
    if any(b'"error"' in end for _, end in ended):
        raise RuntimeError("a job failed")
    return time.monotonic() - began_s


async def compare(rounds: int) -> list[_report.Row]:
    rows = {
        (name, tokens): _report.Row({"": name, "tokens a line": tokens})
        for tokens in TOKENS
        for name in (BATCH, RUN_BATCH, JOBS)
    }
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environ = WORKER | {"BATCH_FOLDER": str(folder), "SERVED_MODEL_NAME": MODEL}
        stand_in = await stack.enter_async_context(serving(environ, SDK))
        theirs = await stack.enter_async_context(run_batch())
        process = psutil.Process(stand_in.pid)
        for number in range(-1, rounds):
            for tokens in TOKENS:
                given = lines(tokens, f"{number}/{tokens}")
                file = folder / f"in-{number}-{tokens}.jsonl"
                file.write_text("".join(json.dumps(one) + "\n" for one in given))
                before = process.memory_info().rss
                batch_s = await a_batch(stand_in, file)
                memory_mb = (process.memory_info().rss - before) / 1e6
                theirs_s = await theirs(file)
                jobs_s = await jobs(stand_in, lines(tokens, f"{number}/{tokens} again"))
                if number < 0:  # warms up
                    continue
                made = LINES * tokens
                rows[BATCH, tokens].add(
                    {
                        "tokens_per_s": made / batch_s,
                        "of_run_batch_per_s": theirs_s / batch_s,
                        "of_jobs_per_s": jobs_s / batch_s,
                        "memory_mb": memory_mb,
                    }
                )
                rows[RUN_BATCH, tokens].add({"tokens_per_s": made / theirs_s})
                rows[JOBS, tokens].add({"tokens_per_s": made / jobs_s})
    return list(rows.values())


if __name__ == "__main__":
    in_rounds(__file__, __doc__, COLUMNS, compare, 3)
