"""Classifier-free guidance: two requests in lock step, or a slow way that needs no step."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from transformers.generation.stopping_criteria import StopStringCriteria

from worker.errors import RequestError
from worker.processor import reports
from worker.processor.chain import build
from worker.processor.logits import NOTHING_LEFT, best, choose, possible, steered
from worker.processor.order import Order
from worker.routines.asker import Asker, Sequence, tensors

# After so many attempts in a row without a token, guidance takes one step by its slow way.
MOST_LOST = 2
# A pair runs no further than so many tokens at a time where something waits for them: stop strings
# to be looked for, or scores in shared memory.
STRIDE = 64


async def guide(
    asker: Asker, prompt: list[int], negative: list[int], max_tokens: int, index: int
) -> Sequence:
    """Generate with classifier-free guidance; `index` counts the answers of one job.

    Two requests, whose rows the chain combines and gives the same token. They can lose step, by a
    prefill in parts or a preemption, so a token counts only where both have it; a pair that lost
    step is sent again from there.
    """
    plan = asker.plan
    assert plan.guidance is not None
    assert plan.order is not None
    seed = plan.params.seed
    seed = secrets.randbelow(2**31) if seed is None else seed + index
    pair = {
        "scale": plan.guidance.scale,
        "seed": seed,
        "do_sample": bool(plan.order.fields["do_sample"]),
    }
    stops = None
    if plan.params.stop:
        stops = await asyncio.to_thread(StopStringCriteria, asker.tokenizer, list(plan.params.stop))
    deadline_s = time.monotonic() + plan.max_time_s if plan.max_time_s is not None else None
    order = replace(plan.order, max_new_tokens=max_tokens)
    made: list[int] = []
    records: list[dict[str, Any]] = []
    lost = 0
    reason = "length"
    stride = STRIDE if stops is not None or order.scores or order.logits else max_tokens
    while (left := max_tokens - len(made)) > 0:
        if lost >= MOST_LOST:
            new, told = await _slow_step(asker, prompt, negative, made, order, pair)
        else:
            most = min(left, stride)
            new, told = await _attempt(asker, prompt, negative, made, order, pair, deadline_s, most)
        records += told
        lost = 0 if new else lost + 1
        end = await asyncio.to_thread(_end, new, prompt + made, set(order.eos), stops)
        made += new[:end]
        if end is not None:
            reason = "stop"
            break
        if deadline_s is not None and time.monotonic() >= deadline_s and made:
            reason = "max_time"
            break
    held = {
        name: [steps[i] for i in range(len(made)) if i in steps]
        for name in ("scores", "logits")
        if (steps := reports.values(records, name))
    }
    return Sequence(made, asker.stopped(asker.text(prompt, made)), reason, values=held)


def _end(
    new: list[int], before: list[int], eos: set[int], stops: StopStringCriteria | None
) -> int | None:
    """Return after how many of the new tokens the answer ends; None where it goes on."""
    seen = before[-stops.maximum_token_len :] if stops is not None else []
    for count, token in enumerate(new, 1):
        seen.append(token)
        if token in eos:
            return count
        if stops is not None and stops(torch.tensor([seen[-stops.maximum_token_len :]]), None)[0]:
            return count
    return None


async def _attempt(
    asker: Asker,
    prompt: list[int],
    negative: list[int],
    made: list[int],
    order: Order,
    pair: Mapping[str, Any],
    deadline_s: float | None,
    most: int,
) -> tuple[list[int], list[dict[str, Any]]]:
    """Run the pair as far as it keeps step; return the tokens that both have, and the records."""
    name = secrets.token_hex(8)
    tasks = {}
    for role, start in (("prompt", prompt), ("negative", negative)):
        of_role = replace(order, prompt_len=len(start), pair={**pair, "name": name, "role": role})
        asked = asker.ask(
            start + made,
            of_role,
            f"{name}-{role}",
            max_tokens=most,
            # Without any, a pair that lost step could not be ended; it ends also by this token.
            stop_token_ids=list(order.eos) or [0],
        )
        tasks[role] = asyncio.ensure_future(asked)
    try:
        timeout = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.05)
        await asyncio.wait(tasks.values(), timeout=timeout)
        if not all(task.done() for task in tasks.values()):  # an abort delivers what there is
            await asker.client.abort([f"{asker.request_id}-{name}-{role}" for role in tasks])
        first, second = await asyncio.gather(*tasks.values())
    finally:
        for task in tasks.values():
            task.cancel()
    records = asker.records()
    # Where a pair was lost both were given a stop that neither chose.
    kept = min([record["lost"] - len(made) for record in records if "lost" in record], default=most)
    agreed = []
    both = zip(first.token_ids[:kept], second.token_ids[:kept], strict=False)
    for one, other in both:
        if one != other:
            break
        agreed.append(int(one))
    return agreed, records


async def _slow_step(
    asker: Asker,
    prompt: list[int],
    negative: list[int],
    made: list[int],
    order: Order,
    pair: Mapping[str, Any],
) -> tuple[list[int], list[dict[str, Any]]]:
    """Make one token from the full distributions of two requests that need not keep step.

    Returns it and the record of its step.
    """
    if "watermarking_config" in order.fields:
        raise RequestError(
            "The engine is too busy to keep the two requests of guidance in step. Send it again.",
            code=503,
        )
    vocab_size = asker.plan.facts.vocab_size
    async with asyncio.TaskGroup() as group:
        for tag, start in enumerate((prompt, negative)):
            plain = Order(
                log_probs=True,
                scores=vocab_size,
                logits=0 if tag else order.logits,
                prompt_len=len(start),
                tag=tag,
            )
            name = f"{secrets.token_hex(8)}-{tag}"
            group.create_task(asker.ask(start + made, plain, name, max_tokens=1))
    records = [record for record in asker.records() if "scores" in record]

    def token() -> tuple[list[int], list[dict[str, Any]]]:
        rows = {}
        told: dict[str, Any] = {"step": len(made)}
        for record in records:
            ids, numbers = tensors(record["scores"])
            row = torch.empty(1, vocab_size)
            rows[record["tag"]] = row.scatter_(1, ids[None].long(), numbers[None])
            if "logits" in record:
                told["logits"] = record["logits"]
        scores = steered(rows[0], rows[1], pair["scale"])
        ids = torch.tensor([prompt + made])
        chain = build(order, ids[:, : len(prompt)], order.max_new_tokens, vocab_size)
        scores = chain(ids, scores).masked_fill(torch.isneginf(rows[0]), float("-inf"))
        if not bool(possible(scores, torch.tensor([pair["do_sample"]]))):
            raise RequestError(NOTHING_LEFT, type="invalid_parameter")
        if order.scores:
            told["scores"] = best(scores[0], order.scores)
        return [choose(scores, pair, len(made))], [told]

    return await asyncio.to_thread(token)
