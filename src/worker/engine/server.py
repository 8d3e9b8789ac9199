"""vLLM's engine and vLLM's own web app, inside this process and on its event loop.

This is the one room that knows how vLLM 0.32 puts its server together
(`vllm.entrypoints.launchers.api_server.entry`): an upgrade of vLLM is checked here.
"""

import argparse
import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from types import SimpleNamespace
from typing import Any

import jinja2
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from opentelemetry import propagate
from prometheus_fastapi_instrumentator.middleware import PrometheusInstrumentatorMiddleware
from pydantic import ValidationError
from starlette.middleware.cors import CORSMiddleware
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.envs import enable_envs_cache
from vllm.exceptions import VLLMError
from vllm.logger import configure_logging_from_args
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.v1.engine.core_client import AsyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError

from worker.engine import admission, death, forked, models, pacing, places, refusals, rendering
from worker.engine.adapters import Adapters
from worker.engine.causes import sentence
from worker.engine.pacing import Collector
from worker.engine.probe import rules_of, why_not_live, with_chain
from worker.engine.refusals import Refusals
from worker.engine.validation import in_words
from worker.errors import EngineDied, RequestError, StartError, unforeseen
from worker.facts import Limits
from worker.processor.reports import Folder

DEATH_POLL_S = 0.25
TWICE = (CORSMiddleware, PrometheusInstrumentatorMiddleware)
NO_FORM = "The request is not of the form that this route takes."
# What a model that writes no text is asked instead; the first route that its server has is told.
EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "Hello"},
    "/v1/rerank": {"query": "Hello", "documents": ["Hello"]},
    "/classify": {"input": "Hello"},
    "/pooling": {"input": "Hello"},
    "/v1/audio/transcriptions": {"file": "<base64>"},
}
NOTED = "worker.errors"  # in the scope of a call: the list that takes the errors behind its answer

log = logging.getLogger("worker")


@dataclass(frozen=True)
class Engine:
    """A running engine, on the event loop that it was started on.

    `client` is vLLM's AsyncLLM; `app` its FastAPI application, an ASGI callable, and `app.state`
    what that application's routes work with. `reports` is where the chain writes; `why_no_chain`
    says why there is no chain, and is empty where it runs; `died_of` is the file in which the
    engine's processes note what ended them, `refusals` what they say of grammars; `adapters` are
    those that are loaded when a request names them.
    """

    client: Any
    app: Any
    reports: Folder
    why_no_chain: str
    died_of: Path
    refusals: Refusals
    adapters: Adapters = field(default_factory=Adapters)

    @property
    def generates(self) -> bool:
        """Whether the model writes text; a pooling model does not."""
        return bool(getattr(self.app.state, "openai_serving_completion", None))

    @property
    def example(self) -> dict[str, Any]:
        """A job for a model that writes no text, by a route that it has."""
        paths = {route.path for route in self.app.routes}
        path = next(path for path in EXAMPLES if path in paths)
        return {"openai_route": path, "openai_input": EXAMPLES[path]}

    @property
    def is_dead(self) -> bool:
        """Whether the engine is gone, or leaves the requests that it has."""
        return bool(self.client.errored or Collector.engine_left)

    async def died(self) -> None:
        """Return once the engine is gone."""
        while not self.is_dead:  # noqa: ASYNC110 - vLLM tells nobody
            await asyncio.sleep(DEATH_POLL_S)

    def why_it_died(self, otherwise: str) -> str:
        """Return what ended the engine, in one sentence, else `otherwise`."""
        return sentence(StartError(otherwise), self.died_of)

    def translate(self, error: Exception) -> RequestError:
        """Say what vLLM's server would have answered for an error of vLLM's own.

        Any other error is a fault of the worker's: its traceback goes into the log, and the caller
        hears nothing of Python's.
        """
        if self.is_dead:
            return EngineDied()
        if isinstance(error, RequestError):
            return error
        cause = error.__cause__
        if isinstance(error, VLLMError) and not str(error) and isinstance(cause, Exception):
            return self.translate(cause)
        if isinstance(error, ValidationError | RequestValidationError):
            sentence, param = in_words(error.errors(), getattr(error, "body", None))
            return RequestError(sentence, param=param)
        if not _is_vllms(error):
            return RequestError(NO_FORM) if _is_of_reading(error) else unforeseen(error)
        info = create_error_response(error).error
        message = info.message.partition(" (parameter=")[0]  # which `param` says again
        return RequestError(message, code=info.code, type=info.type, param=info.param)

    def failed(self, job_id: str) -> RequestError:
        """Say why the engine ended a request of this job with an error."""
        if self.is_dead:
            return EngineDied()
        if why := self.refusals.why(job_id):
            return RequestError(f"The grammar was refused: {why}", param="structured_outputs")
        return RequestError("The engine failed to answer this request.", code=500)


def _is_vllms(error: Exception) -> bool:
    """Say whether an error is vLLM's word for the caller: of its own families, or of Jinja's.

    vLLM 0.32 still raises a bare ValueError in places, which its server answers with 400: it counts
    where it was raised in vLLM's or its libraries' code.
    """
    if isinstance(error, VLLMError | jinja2.TemplateError):
        return True
    if type(error) not in (ValueError, NotImplementedError, OverflowError):
        return False
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = frame.tb_frame.f_globals.get("__name__", "") if frame is not None else ""
    return not where.startswith("worker.")


def _is_of_reading(error: Exception) -> bool:
    """Say whether it was raised while a body was read: vLLM's own checks trust its values' types.

    FastAPI reads a request's parts in `solve_dependencies`.
    """
    frames = walk_tb(error.__traceback__)
    return any(frame.f_code.co_name == "solve_dependencies" for frame, _ in frames)


@contextmanager
def running(
    args: argparse.Namespace,
    model: str,
    loop: asyncio.AbstractEventLoop,
    limits: Limits,
    reports: Folder,
) -> Iterator[Engine]:
    """Start the engine on `loop`; inside the block it is ready, outside it is gone.

    The loop stands still when the block is entered and when it is left, and may run in between.
    `args` are vLLM's serve arguments, `model` is the name to show where vLLM would show a path,
    by `limits` requests are judged, and `reports`, which is removed at the end, is where the
    engine's processes write.
    Raises StartError with a sentence when the engine does not come up.
    """
    ready: asyncio.Future[Engine] = loop.create_future()
    over = asyncio.Event()

    async def own() -> None:  # one task enters and leaves: vLLM's contexts belong to a task
        async with _running(args, model, limits, reports) as engine:
            ready.set_result(engine)
            await over.wait()

    owner = loop.create_task(own())
    either: list[asyncio.Future[Any]] = [owner, ready]
    loop.run_until_complete(asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED))
    if not ready.done():
        owner.result()
    try:
        yield ready.result()
    finally:
        over.set()
        loop.run_until_complete(owner)


@asynccontextmanager
async def _running(
    args: argparse.Namespace, model: str, limits: Limits, reports: Folder
) -> AsyncIterator[Engine]:
    cli_env_setup()
    forked.install(args)
    configure_logging_from_args(args)
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    args, why_no_chain = with_chain(args)
    async with AsyncExitStack() as stack:
        stack.callback(reports.remove)
        os.environ.setdefault("VLLM_RPC_BASE_PATH", str(reports.path))  # vLLM's sockets
        died, refused = reports.report().path, stack.enter_context(reports.report())
        death.listen(died, refused.path)
        refusals.add_reasons()
        pacing.install()
        rendering.continue_messages()
        _answer_of_death()
        try:
            client = await stack.enter_async_context(build_async_engine_client(args))
            tasks = await client.get_supported_tasks()
            app = build_app(args, tasks, client.model_config)
            await init_app_state(client, app.state, args, tasks)
        except Exception as error:
            stack.pop_all()  # the process ends now, and its end would wait for the engine's
            raise StartError(sentence(error, died)) from error
        # vLLM's handler for engine errors asks its server to stop; there is none to stop.
        app.state.server = SimpleNamespace(should_exit=False)
        for path in app.state.openai_serving_models.base_model_paths:
            path.model_path = model
        # The door answers for origins, and the worker counts its requests: not the app once more.
        app.user_middleware = [one for one in app.user_middleware if one.cls not in TWICE]
        _note_errors(app)
        models.complete(app)
        if why := models.warning(client.vllm_config):
            log.warning(why)
        await stack.enter_async_context(app.router.lifespan_context(app))
        admission.install(client, rules_of(client, limits))
        places.install(client)
        if client.observability_config.otlp_traces_endpoint is not None:
            _trace(client)
        if not why_no_chain:
            why_no_chain = await why_not_live(client, reports, died)
        enable_envs_cache()  # vLLM reads a variable for every token, here without this
        yield Engine(client, app, reports, why_no_chain, died, Refusals(refused))


def _answer_of_death() -> None:
    """Let what asks a dead engine something raise EngineDeadError.

    vLLM tells of the death who waits for a request, and leaves who asks anything else to wait.
    """
    ask = AsyncMPClient._call_utility_async

    async def ask_alive(self: Any, *args: Any, **others: Any) -> Any:
        asking = asyncio.ensure_future(ask(self, *args, **others))
        try:
            while not (await asyncio.wait({asking}, timeout=DEATH_POLL_S))[0]:
                if self.resources.engine_dead:
                    raise EngineDeadError()
            return asking.result()
        finally:
            asking.cancel()

    AsyncMPClient._call_utility_async = ask_alive


def _trace(client: Any) -> None:
    """Make each request of the engine a part of the job's trace that it is asked in."""
    add_request = client.add_request

    async def traced(*args: Any, trace_headers: Any = None, **others: Any) -> Any:
        headers: dict[str, str] = {}
        propagate.inject(headers)
        return await add_request(*args, trace_headers=headers or trace_headers, **others)

    client.add_request = traced


def _note_errors(app: Any) -> None:
    """Let a call see the error itself behind vLLM's answer to it, which stays as it is."""
    for kind in (RequestValidationError, VLLMError, ValueError, TypeError):
        answer = app.exception_handlers[kind]

        async def noted(request: Request, error: Exception, answer: Any = answer) -> Any:
            if type(error) is TypeError:  # vLLM's answer is 400 with Python's words
                error = RequestError(NO_FORM)
            request.scope.get(NOTED, []).append(error)
            return await answer(request, error)

        app.add_exception_handler(kind, noted)
    app.middleware_stack = None  # where it is built already it holds vLLM's own; it is built anew
