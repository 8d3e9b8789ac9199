"""START HERE. A job comes from RunPod's SDK, is read and answered, and leaves in batches.

    job["input"] ─ request.read ─ openai.Call | native.Call ─ batching.Outbox ─ yield

The SDK has its own event loop, the engine another one on another thread. A task on the engine's
side owns the engine's request and fills the outbox; the generator here, on the SDK's side, only
drains it. So an answer can be aborted at any moment, and only whole batches cross the threads.
"""

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from worker import request
from worker.batching import BatchSizes, Outbox
from worker.configuration.settings import Settings
from worker.engine.facts import facts_of, model_defaults
from worker.engine.server import Engine
from worker.errors import RequestError, StartError
from worker.facts import Limits
from worker.generation import inherited
from worker.generation.turns import Turns
from worker.native.call import NativeCall
from worker.openai.call import RouteCall
from worker.openai.routes import Routes
from worker.start.ending import DELIVERY_S, leave

# What is not streamed leaves in one piece, at its end.
WHOLE = BatchSizes(min=10**12, max=10**12, max_delay_s=0, max_bytes=10**12)
log = logging.getLogger("worker")


class Worker:
    """Answers jobs with one engine."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine
        self._routes = Routes(engine.app, settings.extra_routes)
        config = engine.client.vllm_config
        facts = facts_of(
            config,
            default_max_tokens=settings.default_max_tokens,
            no_chain=engine.no_chain,
            limits=Limits(
                settings.max_num_beams,
                settings.max_sequences,
                settings.max_scores,
                settings.max_word_sequences,
            ),
        )
        self._deployment = replace(facts, inherited=inherited.read(model_defaults(config), facts))
        self._turns = Turns(settings.max_chains, settings.max_dear_chains)
        self._sizes = BatchSizes(
            settings.min_batch_size,
            settings.max_batch_size,
            settings.batch_size_growth_factor,
            settings.max_batch_delay_ms / 1000,
        )
        self._in_hand: set[asyncio.Task[Any]] = set()
        self._leaving = False

    async def handle(self, job: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Answer one job: yield its batches, and an error, if there is one, as the last.

        This is the generator that RunPod's SDK (1.12) consumes: each yield is one post, and the
        next one is asked for when that post has been answered.
        """
        if self._leaving:
            # No answer: the platform hands the job to another worker.
            await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        self._in_hand.add(task)
        task.add_done_callback(self._in_hand.discard)
        try:
            asked = request.read(job, self._sizes)
        except RequestError as error:
            given = job.get("input")
            yield self._failure(error, isinstance(given, dict) and "openai_route" in given)
            return
        call = self._call(asked)
        sizes = asked.sizes if asked.stream else WHOLE
        answer = Answer(call, sizes, self._settings.max_result_mb, self._engine.loop)
        running = self._engine.submit(answer.run())
        # The SDK stops a job by cancelling its task, mostly while this generator is suspended at
        # a yield: then nothing in here runs, and only the task's own callback hears of it.
        task.add_done_callback(lambda _: running.cancel())
        try:
            while (batch := await answer.next()) is not None:
                yield batch
        except RequestError as error:
            running.cancel()
            log.warning("job %s failed: %s", asked.job_id, error.message)
            frame = call.frame(error)
            if frame is not None:
                yield frame
            is_route = isinstance(asked, request.RouteRequest)
            # A stream has told its error by now; as an output the error would follow it.
            if not (asked.stream and is_route and self._settings.openai_errors_as_output):
                yield self._failure(error, is_route)
        finally:
            running.cancel()

    def _call(self, asked: request.Request) -> RouteCall | NativeCall:
        if isinstance(asked, request.NativeRequest):
            return NativeCall(asked, self._engine, self._deployment, self._turns)
        return RouteCall(
            asked,
            self._engine,
            self._routes,
            self._deployment,
            self._turns,
            model=self._settings.served_model_names[0],
            raw=self._settings.raw_openai_output,
        )

    def _failure(self, error: RequestError, is_route: bool) -> Any:
        # The SDK calls str() on the error, so it is text already. A dict would become Python's.
        if is_route and self._settings.openai_errors_as_output:
            return error.text()
        return {"error": error.text()}

    async def warm_up(self) -> None:
        """Answer one job of each kind, so that the first customer's is not the first.

        Raises StartError when the engine does not survive it. A kind that this model cannot do,
        such as a conversation without a chat template, is no failure.
        """
        for given in self._warm_up_inputs():
            async for batch in self.handle({"id": "warm-up", "input": given}):
                log.debug("warm-up: %s", batch)
        if self._engine.client.errored:
            raise StartError("The engine stopped while it was warmed up.")

    def _warm_up_inputs(self) -> list[dict[str, Any]]:
        if not self._engine.generates:
            return [{"openai_route": "/v1/embeddings", "openai_input": {"input": "Hello"}}]
        short = {"max_tokens": 2}
        if not self._deployment.has_tokenizer:
            return [{"prompt": [1], "sampling_params": short}]
        chat = {"messages": [{"role": "user", "content": "Hello"}], **short}
        text = {"prompt": "Hello", **short}
        return [
            {"prompt": "Hello", "sampling_params": short},
            *(
                {"openai_route": route, "openai_input": body | {"stream": stream}}
                for route, body in (("/v1/chat/completions", chat), ("/v1/completions", text))
                for stream in (False, True)
            ),
        ]

    async def watch(self) -> None:
        """Wait for the engine's death, then end this process; runs on the engine's loop."""
        await self._engine.died()
        self._leaving = True
        threading.Thread(target=self._leave, name="leave").start()

    def _leave(self) -> NoReturn:
        log.error("The engine died. Failing %d jobs and leaving.", len(self._in_hand))
        deadline = time.monotonic() + DELIVERY_S
        while self._in_hand and time.monotonic() < deadline:
            time.sleep(0.05)  # a job's task ends when the SDK has delivered its error
        self._engine.reports.remove()
        leave(1, self._engine.children)


class Answer:
    """A call's way from the engine's loop to the SDK's: `run` there, `next` here.

    Each batch crosses on demand, with one callback in each direction. This is the hot path: a
    task and two chained futures a batch were a tenth of this process's time at 64 streams.
    """

    def __init__(
        self,
        call: RouteCall | NativeCall,
        sizes: BatchSizes,
        max_result_mb: int,
        engine_loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._call = call
        self._outbox: Outbox[Any] = Outbox(sizes)
        self._max_bytes = max_result_mb * 1_000_000
        self._bytes = 0
        self._engine_loop = engine_loop
        self._sdk_loop = asyncio.get_running_loop()
        self._wanted = asyncio.Event()
        self._arrived: asyncio.Future[Any] = self._sdk_loop.create_future()

    async def next(self) -> Any:
        """Return the next yield, or None at the end; on the SDK's loop.

        Raises RequestError when the call failed, or when the result grows beyond MAX_RESULT_MB:
        RunPod drops a larger one without a word.
        """
        self._arrived = self._sdk_loop.create_future()
        self._engine_loop.call_soon_threadsafe(self._wanted.set)
        return await self._arrived

    async def run(self) -> None:
        """Own the engine's request until its last batch is delivered; on the engine's loop."""
        producing = asyncio.create_task(self._produce())
        try:
            batch: Any = ...
            while batch is not None:
                await self._wanted.wait()
                self._wanted.clear()
                try:
                    batch = await self._batch()
                except Exception as error:  # whatever it is: next() must not wait for ever
                    self._sdk_loop.call_soon_threadsafe(_settle, self._arrived, None, _told(error))
                    return
                self._sdk_loop.call_soon_threadsafe(_settle, self._arrived, batch, None)
        finally:
            producing.cancel()

    async def _produce(self) -> None:
        try:
            await self._call.answer(self._outbox)
        except Exception as error:
            self._outbox.close(error)
        else:
            self._outbox.close()

    async def _batch(self) -> Any:
        items = await self._outbox.next()
        if items is None:
            return None
        value = self._call.join(items)
        # Written as the SDK writes it, whose spaces count too.
        self._bytes += len(json.dumps(value, ensure_ascii=False).encode())
        if self._bytes > self._max_bytes:
            raise RequestError(
                f"The result has {self._bytes:,} bytes so far, and RunPod takes "
                f"{self._max_bytes:,} (MAX_RESULT_MB). Ask for fewer tokens, choices or logprobs.",
                code=413,
            )
        return value


def _told(error: Exception) -> RequestError:
    """Return what the caller is told of an error; one that nobody foresaw goes to the log."""
    if isinstance(error, RequestError):
        return error
    log.error("An answer failed in a way that nobody foresaw", exc_info=error)
    return RequestError("The worker failed to answer this job.", code=500)


def _settle(future: asyncio.Future[Any], value: Any, error: RequestError | None) -> None:
    if future.done():  # the job was stopped meanwhile
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
