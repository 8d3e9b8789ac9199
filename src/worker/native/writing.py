"""What writes the answers to one prompt, in pieces."""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from worker.engine import rendering, sampling_params
from worker.engine.server import Engine
from worker.errors import RequestError
from worker.generation.plan import Plan
from worker.native.reply import Piece, extra_of, logprobs_of, piece_of
from worker.processor import reports
from worker.processor.reports import Report, refuse_failure
from worker.routines.asker import Asker
from worker.routines.beams import beam_search
from worker.routines.guidance import guide


@dataclass(frozen=True)
class Writer:
    """Writes the answers to one prompt: `item` is its engine input.

    `name` is its engine requests' id, and `first` the number of its first answer in the job.
    """

    engine: Engine
    plan: Plan
    lora: Any
    name: str
    item: Any
    first: int

    def pieces(self) -> AsyncIterator[Piece]:
        """Return the pieces of all its answers, as they come."""
        plan = self.plan
        if plan.beams:
            return self._search()
        if plan.guidance:
            return self._guide()
        params = plan.params.clone()
        params.max_tokens = plan.max_tokens(len(self.item["prompt_token_ids"]))
        if params.n == 1 or not (plan.scores or plan.logits or plan.max_time_s):
            return self._write(params, self.name, self.first)
        # A report holds one sequence, and a deadline ends one, so each is a request; vLLM too
        # takes n apart like this.
        each = sampling_params.apart(params)
        names = ((f"{self.name}-{i}", self.first + i) for i in range(len(each)))
        return _merged([self._write(one, *name) for one, name in zip(each, names, strict=True)])

    async def _write(self, params: Any, name: str, first: int) -> AsyncIterator[Piece]:
        """Write the answers of one engine request; `first` is the number of the first."""
        plan = self.plan
        deadline_s = math.inf
        if plan.max_time_s is not None:
            deadline_s = time.monotonic() + plan.max_time_s
        if plan.max_time_s is not None or plan.scores or plan.logits:
            sampling_params.show_each_step(params)  # to look at the clock and to empty the report
        if plan.ranked:
            sampling_params.show_the_end(params)
        is_whole = not sampling_params.shows_pieces(params)
        with ExitStack() as stack:
            values = None
            if plan.order is not None:
                report = stack.enter_context(self.engine.reports.report())
                values = _Values(report, plan)
                params.extra_args = plan.order.extra_args(report.path)
            outputs = self.engine.client.generate(self.item, params, name, lora_request=self.lora)
            # They come with the first output. Where vLLM joins outputs of several sequences it
            # loses those of the others, which are the same.
            of_prompt: list[Any] | None = None
            told: set[int] = set()
            async for output in outputs:
                if output.prompt_logprobs and of_prompt is None:
                    of_prompt = logprobs_of(output.prompt_token_ids, output.prompt_logprobs)
                if values:
                    values.read()
                late = time.monotonic() >= deadline_s and not output.finished
                if is_whole and not (output.finished or late):
                    continue
                for index, one in self._kept(output.outputs):
                    if one.finish_reason == "error":
                        raise self.engine.failed(self.name)
                    extra: dict[str, Any] = values.take(len(one.token_ids)) if values else {}
                    extra |= extra_of(one, plan)
                    if of_prompt is not None and index not in told:
                        told.add(index)
                        extra["prompt_logprobs"] = of_prompt
                    if late and one.finish_reason is None:
                        extra["finish_reason"] = "max_time"
                    if plan.ranked and not plan.has_logprobs:
                        extra.pop("logprobs", None)  # asked for the ranking's sake
                    yield Piece(first + index, one.text, tuple(one.token_ids), extra)
                if late:
                    await outputs.aclose()
                    return

    def _kept(self, outputs: list[Any]) -> list[tuple[int, Any]]:
        """Return vLLM's outputs under the numbers of their answers: of best_of the likeliest."""
        if not self.plan.ranked:
            return [(one.index, one) for one in outputs]
        best = sorted(outputs, key=lambda one: one.cumulative_logprob or 0.0, reverse=True)
        return list(enumerate(best[: self.plan.ranked]))

    async def _search(self) -> AsyncIterator[Piece]:
        prompt = text_only(self.item, "num_beams", self.plan.facts.vocab_size)
        with self.engine.reports.report() as report:
            asker = self.asker(report, self.name)
            found = await beam_search(asker, prompt, self.plan.max_tokens(len(prompt)))
        for i, sequence in enumerate(found):
            yield piece_of(self.first + i, sequence, self.plan)

    async def _guide(self) -> AsyncIterator[Piece]:
        assert self.plan.guidance is not None
        prompt = text_only(self.item, "guidance_scale", self.plan.facts.vocab_size)
        negative = self.plan.guidance.negative
        if isinstance(negative, str):
            rendered = await rendering.prompt(self.engine.app, negative)
            negative = list(rendered["prompt_token_ids"])
        length = self.plan.max_tokens(len(prompt))
        for i in range(self.plan.params.n):
            with self.engine.reports.report() as report:
                asker = self.asker(report, f"{self.name}-{i}")
                sequence = await guide(asker, prompt, negative or prompt[-1:], length, i)
            yield piece_of(self.first + i, sequence, self.plan)

    def asker(self, report: Report, name: str) -> Asker:
        """Return what sends a routine's requests to the engine."""
        client = self.engine.client
        rank = random.randrange(client.vllm_config.parallel_config.data_parallel_size_local)
        return Asker(client, name, self.lora, report, self.plan, rank)


class _Values:
    """The scores and logits of one sequence, which arrive beside its tokens."""

    def __init__(self, report: Report, plan: Plan) -> None:
        self._report = report
        self._names = [name for name in ("scores", "logits") if getattr(plan, name)]
        self._records: dict[int, dict[str, Any]] = {}  # by step
        self._done = 0

    def read(self) -> None:
        """Take over what has arrived. Raises RequestError for a failure.

        First of all, because the engine's own word for a failure would be another.
        """
        records = self._report.read()
        refuse_failure(records)
        self._records |= {record["step"]: record for record in records}

    def take(self, tokens: int) -> dict[str, list[Any]]:
        """Return what belongs to so many more tokens."""
        steps = range(self._done, self._done + tokens)
        self._done += tokens
        records = [self._records.pop(step) for step in steps if step in self._records]
        return {name: list(reports.values(records, name).values()) for name in self._names}


def text_only(item: Any, name: str, vocab_size: int) -> list[int]:
    """Return a prompt's token ids, which tensors are made of before vLLM looks at them."""
    if item.get("type") == "multimodal":
        raise RequestError(f"{name} takes text prompts only.", param=name)
    ids = list(item["prompt_token_ids"])
    if ids and max(ids) >= vocab_size:
        raise RequestError(f"Token id {max(ids)} is out of vocabulary.", param="prompt")
    return ids


async def _merged(sources: list[AsyncIterator[Piece]]) -> AsyncIterator[Piece]:
    """Return the pieces of several sources as they come; leaving ends them all."""
    queue: asyncio.Queue[Piece | None] = asyncio.Queue()

    async def drain(source: AsyncIterator[Piece]) -> None:
        async for piece in source:
            queue.put_nowait(piece)

    tasks = [asyncio.ensure_future(drain(source)) for source in sources]
    everything = asyncio.ensure_future(asyncio.gather(*tasks))
    everything.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (piece := await queue.get()) is not None:
            yield piece
        await everything
    finally:
        for task in tasks:
            task.cancel()
