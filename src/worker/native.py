"""RunPod's own dialect: a prompt or a conversation in, `choices[].tokens` and `usage` out."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from worker.batching import Outbox
from worker.engine.server import Engine
from worker.errors import RequestError
from worker.facts import Deployment
from worker.generation import reading
from worker.generation.plan import Plan
from worker.generation.turns import Turns
from worker.processor import reports
from worker.processor.reports import Report, refuse_failure
from worker.request import NativeRequest, Prompt

# JSON has no infinity; vLLM's own server writes this number for an impossible token.
IMPOSSIBLE_LOGPROB = -9999.0
# What a choice holds for each token, which the pieces of a batch add up.
LISTS = ("logprobs", "scores", "logits", "token_ids")


@dataclass(frozen=True)
class Piece:
    """What one engine output adds to one sequence: `choice` is prompt index times n plus index."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    extra: dict[str, Any] = field(default_factory=dict)


class Call:
    """One native job: `answer` runs it into an outbox, `join` makes a yield of its pieces."""

    def __init__(
        self, request: NativeRequest, engine: Engine, deployment: Deployment, turns: Turns
    ) -> None:
        self._request = request
        self._engine = engine
        self._deployment = deployment
        self._turns = turns
        self._choices = 0
        self._input_tokens = 0
        self._output_tokens = 0
        self._notes: dict[str, Any] = {}  # told once, in the first yield

    async def answer(self, outbox: Outbox[Piece]) -> None:
        """Generate for every prompt and put the pieces into the outbox as they come.

        Raises RequestError before anything runs when one prompt is wrong. Cancelling it aborts
        the engine's requests.
        """
        try:
            lora = self._lora()
            plan = reading.read(
                self._request.sampling_params, self._deployment, stream=self._request.stream
            )
            inputs = await self._render(plan)
            self._limit(len(inputs) * max(plan.sequences, plan.params.n))
            for item in inputs:
                plan.max_tokens(len(item["prompt_token_ids"]))
            if plan.warnings:
                self._notes["warnings"] = list(plan.warnings)
            plans = [plan] * len(inputs)
            if plan.heal:
                plans = [_before_healing(plan, item) for item in inputs]
                inputs = [await self._healed(item, plan, lora) for item in inputs]
            if plan.heal or plan.token_ids:
                ids = [list(item["prompt_token_ids"]) for item in inputs]
                self._notes["prompt_token_ids"] = ids if len(ids) > 1 else ids[0]
            self._choices = len(inputs) * plan.sequences
            self._input_tokens = sum(len(item["prompt_token_ids"]) for item in inputs)
            async with asyncio.TaskGroup() as group:
                for index, (item, chosen) in enumerate(zip(inputs, plans, strict=True)):
                    source = self._source(index, item, chosen, lora)
                    group.create_task(self._send(source, chosen, outbox))
        except Exception as error:
            raise self._engine.translate(_first(error)) from error

    def join(self, pieces: list[Piece]) -> dict[str, Any]:
        """Make one yield of a batch: every choice in it, empty where nothing is new."""
        choices: list[dict[str, Any]] = [{"tokens": []} for _ in range(self._choices)]
        for piece in pieces:
            choice = choices[piece.choice]
            choice["tokens"].append(piece.text)
            self._output_tokens += len(piece.token_ids)
            for key, value in piece.extra.items():
                if key in LISTS:
                    choice.setdefault(key, []).extend(value)
                else:
                    choice[key] = value
        usage = {"input": self._input_tokens, "output": self._output_tokens}
        notes, self._notes = self._notes, {}
        return {"choices": choices, "usage": usage, **notes}

    def frame(self, error: RequestError) -> None:  # noqa: ARG002 - the other dialects have one
        """Return nothing: in this dialect an error is the job's, and its stream just ends."""
        return

    def _lora(self) -> Any:
        """Return the adapter that the job's `model` names, None for the base model."""
        models = self._engine.app.state.openai_serving_models
        name = self._request.model
        if not self._engine.generates:
            raise RequestError(
                "This worker serves a pooling model, which writes no text and has no native path. "
                'Use a route of its own, such as {"openai_route": "/v1/embeddings", …}.'
            )
        if name is None or models.registry.is_base_model(name):
            return None
        if name in models.lora_requests:
            return models.lora_requests[name]
        known = [path.name for path in models.base_model_paths] + list(models.lora_requests)
        raise RequestError(
            f"The model {name!r} does not exist. Served here: {', '.join(known)}.",
            code=404,
            param="model",
        )

    def _limit(self, sequences: int) -> None:
        most = self._deployment.limits.max_sequences
        if sequences > most:
            raise RequestError(
                f"The job asks for {sequences:,} answers, and one job may have {most:,} "
                "(MAX_SEQUENCES).",
                param="prompt",
            )

    async def _render(self, plan: Plan) -> list[Any]:
        """Let vLLM's own renderer make token ids of the prompts or the conversation."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse

        renderer = self._engine.app.state.online_renderer
        limit = {"max_tokens": plan.params.max_tokens} if plan.has_length else {}
        if plan.max_length is not None:
            limit = {}
        if self._request.messages is not None and not self._deployment.has_tokenizer:
            raise _no_tokenizer("A conversation", "messages")
        if self._request.messages is None:
            prompts = (self._prompt(prompt, plan) for prompt in self._request.prompts)
            return [await self._rendered(prompt, limit) for prompt in prompts]
        chat = ChatCompletionRequest.model_validate(
            {
                "messages": self._request.messages,
                "chat_template_kwargs": self._request.chat_template_kwargs,
            }
            | limit
        )
        rendered = await renderer.render_chat(chat)
        if isinstance(rendered, ErrorResponse):
            raise RequestError(rendered.error.message, code=rendered.error.code)
        return list(rendered[1])

    async def _rendered(self, prompt: Any, limit: dict[str, int]) -> Any:
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        renderer = self._engine.app.state.online_renderer
        completion = CompletionRequest.model_validate({"prompt": prompt} | limit)
        (rendered,) = await renderer.render_completion(completion)
        return rendered

    def _prompt(self, prompt: Prompt, plan: Plan) -> Prompt:
        if isinstance(prompt, str) and prompt and not self._deployment.has_tokenizer:
            raise _no_tokenizer("A text prompt", "prompt")
        if prompt:
            return prompt
        assert plan.bos is not None  # else the request was refused
        return [plan.bos]

    async def _healed(self, item: Any, plan: Plan, lora: Any) -> Any:
        from worker import routines

        with self._engine.reports.report() as report:
            asker = self._asker(plan, lora, report, "-heal")
            healed = await routines.heal(asker, _text_only(item, "token_healing"))
        if healed is None:
            self._notes.setdefault("warnings", []).append(
                "token_healing: the prompt's last token cannot be taken back, and stays."
            )
            return item
        return item | {"prompt_token_ids": healed}

    def _asker(self, plan: Plan, lora: Any, report: Report, name: str) -> Any:
        from worker.routines import Asker

        return Asker(self._engine.client, self._request.job_id + name, lora, report, plan)

    def _source(self, index: int, item: Any, plan: Plan, lora: Any) -> AsyncIterator[Piece]:
        """Return what writes the answers to one prompt, in pieces."""
        name = f"-{index}" if len(self._request.prompts) > 1 else ""
        first = index * plan.sequences
        if plan.beams:
            return self._search(item, plan, lora, name, first)
        if plan.guidance:
            return self._guide(item, plan, lora, name, first)
        params = plan.params.clone()
        params.max_tokens = plan.max_tokens(len(item["prompt_token_ids"]))
        if plan.ranked:
            return self._rank(item, params, plan, lora, name, first)
        if params.n == 1 or not (plan.scores or plan.logits or plan.max_time_s):
            return self._write(item, params, plan, lora, name, first)
        # A report holds one sequence, and a deadline ends one, so each is a request; vLLM too
        # takes n apart like this.
        sources = []
        for i in range(params.n):
            one = params.clone()
            one.n, one.seed = 1, None if params.seed is None else params.seed + i
            sources.append(self._write(item, one, plan, lora, f"{name}-{i}", first + i))
        return _merged(sources)

    async def _send(self, source: AsyncIterator[Piece], plan: Plan, outbox: Outbox[Piece]) -> None:
        sequences = plan.beams.width if plan.beams else plan.params.n
        async with self._turns.taken(plan.order, is_dear=plan.is_dear, sequences=sequences):
            async for piece in source:
                outbox.put(piece, len(piece.token_ids), len(piece.text))

    async def _write(
        self, item: Any, params: Any, plan: Plan, lora: Any, name: str, first: int
    ) -> AsyncIterator[Piece]:
        """Write the answers of one engine request; `first` is the number of the first."""
        from vllm.sampling_params import RequestOutputKind

        deadline_s = math.inf
        if plan.max_time_s is not None:
            deadline_s = time.monotonic() + plan.max_time_s
            if not self._request.stream:  # to be able to look at the clock after each token
                params.output_kind = RequestOutputKind.CUMULATIVE
        is_whole = params.output_kind != RequestOutputKind.DELTA
        with contextlib.ExitStack() as stack:
            values = None
            if plan.order is not None:
                report = stack.enter_context(self._engine.reports.report())
                values = _Values(report, plan)
                params.extra_args = replace(plan.order, report=str(report.path)).extra_args()
            outputs = self._engine.client.generate(
                item, params, self._request.job_id + name, lora_request=lora
            )
            # They come with the first output. Where vLLM joins outputs of several sequences it
            # loses those of the others, which are the same.
            of_prompt: list[Any] | None = None
            told: set[int] = set()
            async for output in outputs:
                if output.prompt_logprobs and of_prompt is None:
                    of_prompt = _logprobs(output.prompt_token_ids, output.prompt_logprobs)
                late = time.monotonic() >= deadline_s and not output.finished
                if is_whole and not (output.finished or late):
                    continue
                for one in output.outputs:
                    # First of all what failed: the engine's own word for it would be another.
                    extra: dict[str, Any] = values.take(len(one.token_ids)) if values else {}
                    extra |= self._extra(one, plan)
                    if of_prompt is not None and one.index not in told:
                        told.add(one.index)
                        extra["prompt_logprobs"] = of_prompt
                    if late and one.finish_reason is None:
                        extra["finish_reason"] = "max_time"
                    yield Piece(first + one.index, one.text, tuple(one.token_ids), extra)
                if late:
                    await outputs.aclose()
                    return

    def _extra(self, one: Any, plan: Plan) -> dict[str, Any]:
        """Return what a piece holds beside its text."""
        if one.finish_reason == "error":
            raise RequestError(
                "The engine could not go on with this request; its structured output may be one "
                "that nothing can match.",
                code=500,
            )
        extra: dict[str, Any] = {}
        if one.logprobs is not None:
            extra["logprobs"] = _logprobs(one.token_ids, one.logprobs)
        if plan.token_ids:
            extra["token_ids"] = list(one.token_ids)
        if one.finish_reason is not None:
            extra["finish_reason"] = one.finish_reason
            # An end that the job named itself is an end like the model's own.
            if one.stop_reason is not None and one.stop_reason not in plan.eos:
                extra["stop_reason"] = one.stop_reason
        return extra

    async def _rank(
        self, item: Any, params: Any, plan: Plan, lora: Any, name: str, first: int
    ) -> AsyncIterator[Piece]:
        """Write `best_of` answers and return the likeliest."""
        from vllm.sampling_params import RequestOutputKind

        params.output_kind = RequestOutputKind.FINAL_ONLY
        with self._engine.reports.report() as report:
            if plan.order is not None:
                params.extra_args = replace(plan.order, report=str(report.path)).extra_args()
            last = None
            async for output in self._engine.client.generate(
                item, params, self._request.job_id + name, lora_request=lora
            ):
                last = output
            assert last is not None
            refuse_failure(report.read())
        best = sorted(last.outputs, key=lambda one: one.cumulative_logprob or 0.0, reverse=True)
        for i, one in enumerate(best[: plan.ranked]):
            extra = self._extra(one, plan)
            if last.prompt_logprobs:
                extra["prompt_logprobs"] = _logprobs(last.prompt_token_ids, last.prompt_logprobs)
            if self._request.sampling_params.get("logprobs") is None:
                extra.pop("logprobs", None)  # asked for the ranking's sake
            yield Piece(first + i, one.text, tuple(one.token_ids), extra)

    async def _search(
        self, item: Any, plan: Plan, lora: Any, name: str, first: int
    ) -> AsyncIterator[Piece]:
        from worker import routines

        prompt = _text_only(item, "num_beams")
        with self._engine.reports.report() as report:
            asker = self._asker(plan, lora, report, name)
            answers = await routines.beam_search(asker, prompt, plan.max_tokens(len(prompt)))
        for i, answer in enumerate(answers):
            yield _piece(first + i, answer, plan)

    async def _guide(
        self, item: Any, plan: Plan, lora: Any, name: str, first: int
    ) -> AsyncIterator[Piece]:
        from worker import routines

        assert plan.guidance is not None
        prompt = _text_only(item, "guidance_scale")
        negative = plan.guidance.negative
        if isinstance(negative, str):
            negative = list((await self._rendered(negative, {}))["prompt_token_ids"])
        length = plan.max_tokens(len(prompt))
        for i in range(plan.params.n):
            with self._engine.reports.report() as report:
                asker = self._asker(plan, lora, report, f"{name}-{i}")
                answer = await routines.guide(asker, prompt, negative or prompt[-1:], length, i)
            yield _piece(first + i, answer, plan)


class _Values:
    """The scores and logits of one sequence, which arrive beside its tokens."""

    def __init__(self, report: Report, plan: Plan) -> None:
        self._report = report
        self._held: dict[str, dict[int, Any]] = {
            name: {} for name in ("scores", "logits") if getattr(plan, name)
        }
        self._done = 0

    def take(self, tokens: int) -> dict[str, list[Any]]:
        """Return what belongs to so many more tokens. Raises RequestError for a failure."""
        records = self._report.read()
        refuse_failure(records)
        steps = range(self._done, self._done + tokens)
        self._done += tokens
        taken = {}
        for name, held in self._held.items():
            held.update(reports.values(records, name))
            taken[name] = [held.pop(step) for step in steps if step in held]
        return taken


def _no_tokenizer(what: str, param: str) -> RequestError:
    return RequestError(
        f"{what} needs a tokenizer, and this worker runs without one (SKIP_TOKENIZER_INIT). "
        "Give token ids.",
        param=param,
    )


def _piece(choice: int, answer: Any, plan: Plan) -> Piece:
    extra: dict[str, Any] = {"finish_reason": answer.finish_reason, **answer.values}
    if answer.score is not None:
        extra["score"] = answer.score
    if plan.token_ids:
        extra["token_ids"] = answer.token_ids
    return Piece(choice, answer.text, tuple(answer.token_ids), extra)


def _before_healing(plan: Plan, item: Any) -> Plan:
    # transformers gives the encoder_… parameters the prompt as it was.
    if plan.order is None:
        return plan
    return replace(plan, order=replace(plan.order, encoder=tuple(item["prompt_token_ids"])))


def _text_only(item: Any, name: str) -> list[int]:
    if item.get("type") == "multimodal":
        raise RequestError(f"{name} takes text prompts only.", param=name)
    return list(item["prompt_token_ids"])


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


def _logprobs(token_ids: Iterable[int], positions: Any) -> list[Any]:
    """Return for each token its own log-probability and the likeliest ones beside it."""
    listed: list[dict[str, Any] | None] = []
    for token_id, position in zip(token_ids, positions, strict=False):
        if not position:  # the first token of a prompt has none
            listed.append(None)
            continue
        ranked = sorted(position.items(), key=lambda entry: entry[1].rank or 0)
        entries = [
            {
                "token_id": other,
                "token": entry.decoded_token,
                "logprob": max(entry.logprob, IMPOSSIBLE_LOGPROB),
            }
            for other, entry in ranked
        ]
        own = next(entry for entry in entries if entry["token_id"] == token_id)
        listed.append(own | {"top": entries})
    return listed


def _first(error: Exception) -> Exception:
    """Return what went wrong first in a group of tasks."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
