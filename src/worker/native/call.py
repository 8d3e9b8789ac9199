"""RunPod's own dialect: a prompt or a conversation in, `choices[].tokens` and `usage` out."""

import asyncio
import json
from dataclasses import replace
from typing import Any

from worker.batching import Outbox, weight
from worker.call import Frames, PieceByPiece
from worker.engine import receipts, rendering
from worker.engine.pacing import paced
from worker.engine.receipts import Receipt
from worker.engine.server import Engine
from worker.errors import RequestError
from worker.facts import Facts
from worker.generation import reading
from worker.generation.plan import Plan
from worker.generation.turns import Turns
from worker.native.reply import LISTS, Piece
from worker.native.writing import Writer, text_only
from worker.processor.order import Order
from worker.record import Usage
from worker.request import NativeRequest, Prompt
from worker.routines.healing import heal

RECEIPT = "receipt"


class NativeCall(PieceByPiece):
    """One native job: `answer` runs it into an outbox, `join` makes a yield of its pieces."""

    frames = Frames(b"text/event-stream; charset=utf-8", b"data: ", b"\n\n", b"data: [DONE]\n\n")

    def __init__(self, request: NativeRequest, engine: Engine, facts: Facts, turns: Turns) -> None:
        self._request = request
        self._engine = engine
        self._facts = facts
        self._turns = turns
        self._choices = 0
        self._input_tokens = 0
        self._output_tokens = 0
        self._notes: dict[str, Any] = {}  # told once, in the first yield
        self._receipt: dict[str, Any] = {}

    @property
    def asked(self) -> NativeRequest:
        return self._request

    async def answer(self, outbox: Outbox[Piece]) -> None:
        """Generate for every prompt and put the pieces into the outbox as they come.

        Raises RequestError before anything runs when one prompt is wrong. Cancelling it aborts
        the engine's requests.
        """
        wants_receipt = self._request.receipt or self._facts.receipts
        try:
            async with self._engine.adapters.held(self._request.model):
                with receipts.kept(wanted=wants_receipt) as receipt:
                    await self._write(outbox, receipt)
        except Exception as error:
            raise self._engine.translate(_first(error)) from error

    async def _write(self, outbox: Outbox[Piece], receipt: Receipt | None) -> None:
        request = self._request
        if not self._engine.generates:
            raise RequestError(
                "This worker's model writes no text to a prompt, and has no native path. Use a "
                f"route of its own, such as {json.dumps(self._engine.example)}."
            )
        lora = rendering.adapter(self._engine.app, request.model)
        plan = reading.read(request.sampling_params, self._facts, stream=request.stream)
        self._limit(max(len(request.prompts), 1) * max(plan.sequences, plan.params.n))
        items = await self._render(plan)
        for item in items:
            plan.max_tokens(len(item["prompt_token_ids"]))
        if plan.warnings:
            self._notes["warnings"] = list(plan.warnings)
        writers = [
            Writer(
                self._engine,
                plan,
                lora,
                request.job_id + (f"-{index}" if len(items) > 1 else ""),
                item,
                index * plan.sequences,
            )
            for index, item in enumerate(items)
        ]
        if plan.heal:
            writers = [await self._healed(writer) for writer in writers]
        prompts = [list(writer.item["prompt_token_ids"]) for writer in writers]
        if plan.heal or plan.token_ids:
            self._notes["prompt_token_ids"] = prompts if len(prompts) > 1 else prompts[0]
        self._choices = len(writers) * plan.sequences
        self._input_tokens = sum(map(len, prompts))
        outbox.envelope_bytes = weight(self._reply())
        async with asyncio.TaskGroup() as group:
            sending = []
            for one in writers:
                sending.append(group.create_task(self._send(one, outbox)))
                await asyncio.sleep(0)  # all in one turn of the loop would hold it up
        if any(task.cancelled() for task in sending):  # by vLLM: a group takes it for an end
            raise RuntimeError("The engine gave a request up.")
        if receipt is not None:
            self._receipt = receipt.said() | {
                "adapter": lora and lora.lora_name,
                "seed": plan.params.seed,
            }
            told = self._receipt | {"versions": receipts.versions()}
            piece = Piece(0, "", (), {RECEIPT: told})
            self._outbox = outbox
            outbox.put(piece, 0, piece.size_bytes)

    def join(self, pieces: list[Piece]) -> dict[str, Any]:
        """Make one yield of a batch: every choice in it, empty where nothing is new."""
        reply = self._reply()
        for piece in pieces:
            if RECEIPT in piece.extra:
                reply[RECEIPT] = piece.extra[RECEIPT] | {"posts": self._outbox.sent_batches}
                continue
            choice = reply["choices"][piece.choice]
            choice["tokens"].append(piece.text)
            reply["usage"]["output"] += len(piece.token_ids)
            for key, value in piece.extra.items():
                if key in LISTS:
                    choice.setdefault(key, []).extend(value)
                else:
                    choice[key] = value
        self._output_tokens = reply["usage"]["output"]
        notes, self._notes = self._notes, {}
        return reply | notes

    def told(self, error: RequestError) -> tuple[RequestError, bytes]:
        return error, self.frames.written(error.body()) + self.frames.end

    def failure(self, error: RequestError) -> list[Any]:
        """Return the job's error: in this dialect the stream says nothing of it."""
        return [error.told()]

    @property
    def usage(self) -> Usage:
        """Say how many tokens went in, and how many have left."""
        if not self._choices:
            return Usage()
        return Usage(self._input_tokens, self._output_tokens, self._receipt)

    def _reply(self) -> dict[str, Any]:
        """Return a yield with nothing new in it."""
        return {
            "choices": [{"tokens": []} for _ in range(self._choices)],
            "usage": {"input": self._input_tokens, "output": self._output_tokens},
        }

    def _limit(self, sequences: int) -> None:
        most = self._facts.limits.max_sequences
        if sequences > most:
            raise RequestError(
                f"The job asks for {sequences:,} answers, and one job may have {most:,} "
                "(MAX_SEQUENCES).",
                param="prompt",
            )

    async def _render(self, plan: Plan) -> list[Any]:
        """Let vLLM's own renderer make token ids of the prompts or the conversation."""
        request, app = self._request, self._engine.app
        has_room = plan.has_length and plan.max_length is None
        room = plan.params.max_tokens if has_room else None
        if request.messages is None:
            prompts = (self._prompt(prompt, plan) for prompt in request.prompts)
            return [await rendering.prompt(app, prompt, room, plan.truncate) for prompt in prompts]
        if not self._facts.has_tokenizer:
            raise _no_tokenizer("A conversation", "messages")
        given = {
            "messages": request.messages,
            "chat_template_kwargs": request.chat_template_kwargs,
            "add_generation_prompt": request.add_generation_prompt,
            "continue_final_message": request.continues,
        }
        return [await rendering.conversation(app, given, room, plan.truncate)]

    def _prompt(self, prompt: Prompt, plan: Plan) -> Prompt:
        if isinstance(prompt, str) and prompt and not self._facts.has_tokenizer:
            raise _no_tokenizer("A text prompt", "prompt")
        if prompt:
            return prompt
        assert plan.bos is not None  # else the request was refused
        return [plan.bos]

    async def _healed(self, writer: Writer) -> Writer:
        plan = writer.plan
        prompt = text_only(writer.item, "token_healing", plan.facts.vocab_size)
        if plan.order is not None:
            # transformers gives the encoder_… parameters the prompt as it was.
            order = replace(plan.order, encoder=tuple(prompt))
            writer = replace(writer, plan=replace(plan, order=order))
        async with self._turns.taken(Order(), is_costly=False):
            with self._engine.reports.report() as report:
                healed = await heal(writer.asker(report, f"{self._request.job_id}-heal"), prompt)
        if healed is None:
            self._notes.setdefault("warnings", []).append(
                "token_healing: the prompt's last token cannot be taken back, and stays."
            )
            return writer
        return replace(writer, item=writer.item | {"prompt_token_ids": healed})

    async def _send(self, writer: Writer, outbox: Outbox[Piece]) -> None:
        plan = writer.plan
        sequences = plan.beams.width if plan.beams else 1 if plan.guidance else plan.params.n
        async with self._turns.taken(plan.order, is_costly=plan.is_costly, sequences=sequences):
            with paced(outbox, merges=self._facts.merges and not plan.shows_each_step):
                async for piece in writer.pieces():
                    outbox.put(piece, len(piece.token_ids), piece.size_bytes)


def _no_tokenizer(what: str, param: str) -> RequestError:
    return RequestError(
        f"{what} needs a tokenizer, and this worker runs without one (SKIP_TOKENIZER_INIT). "
        "Give token ids.",
        param=param,
    )


def _first(error: Exception) -> Exception:
    """Return what went wrong first in a group of tasks."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
