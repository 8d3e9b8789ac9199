"""vLLM's engine and vLLM's own web app, inside this process, on an event loop of their own.

This is the one room that knows how vLLM 0.32 puts its server together
(`vllm.entrypoints.launchers.api_server.entry`): an upgrade of vLLM is checked here.
"""

import argparse
import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import psutil
from anyio.from_thread import start_blocking_portal
from pydantic import ValidationError
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.exception_handling.handlers.validation import clean_loc_for_param
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.logger import configure_logging_from_args
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from worker.engine.probe import reason, why_not_live, with_chain
from worker.errors import EngineDied, RequestError, StartError
from worker.processor.reports import Folder

T = TypeVar("T")
DEATH_POLL_S = 0.25


@dataclass(frozen=True)
class Engine:
    """A running engine. Everything on it must be used on `loop`.

    `client` is vLLM's AsyncLLM; `app` its FastAPI application, an ASGI callable, and `app.state`
    what that application's routes work with; `children` are the engine's processes. `reports` is
    where the chain writes; `no_chain` says why there is no chain, and is empty where it runs.
    """

    client: Any
    app: Any
    loop: asyncio.AbstractEventLoop
    children: tuple[psutil.Process, ...]
    reports: Folder
    no_chain: str

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run `work` as a task on the engine's loop; callable from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    @property
    def generates(self) -> bool:
        """Whether the model writes text; a pooling model does not."""
        return hasattr(self.app.state, "openai_serving_completion") and bool(
            self.app.state.openai_serving_completion
        )

    async def died(self) -> None:
        """Return once the engine is gone."""
        while not self.client.errored:  # noqa: ASYNC110 - vLLM tells nobody
            await asyncio.sleep(DEATH_POLL_S)

    def translate(self, error: Exception) -> RequestError:
        """Say what vLLM's server would have answered for an exception of vLLM's."""
        if isinstance(error, RequestError):
            return error
        if self.client.errored:
            return EngineDied()
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            where = clean_loc_for_param(first["loc"])
            return RequestError(f"{where}: {first['msg']}.", param=where)
        info = create_error_response(error).error
        message = info.message.partition(" (parameter=")[0]  # which `param` says again
        return RequestError(message, code=info.code, type=info.type, param=info.param)


@contextmanager
def running(args: argparse.Namespace, model: str) -> Iterator[Engine]:
    """Start the engine on a thread of its own; inside the block it is ready, outside it is gone.

    `args` are vLLM's serve arguments, `model` is the name to show where vLLM would show a path.
    Raises StartError with a sentence when the engine does not come up.
    """
    with (
        start_blocking_portal(backend_options={"use_uvloop": True}) as portal,
        portal.wrap_async_context_manager(_running(args, model)) as engine,
    ):
        yield engine


@asynccontextmanager
async def _running(args: argparse.Namespace, model: str) -> AsyncIterator[Engine]:
    cli_env_setup()
    configure_logging_from_args(args)
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    args, no_chain = with_chain(args)
    reports = Folder()
    before = set(psutil.Process().children(recursive=True))
    building = build_async_engine_client(args)
    try:
        client = await building.__aenter__()
    except Exception as error:
        raise StartError(reason(error)) from error
    try:
        try:
            tasks = await client.get_supported_tasks()
            app = build_app(args, tasks, client.model_config)
            await init_app_state(client, app.state, args, tasks)
        except Exception as error:
            raise StartError(reason(error)) from error
        # vLLM's handler for engine errors asks its server to stop; there is none to stop.
        app.state.server = SimpleNamespace(should_exit=False)
        for path in app.state.openai_serving_models.base_model_paths:
            path.model_path = model
        children = set(psutil.Process().children(recursive=True)) - before
        async with app.router.lifespan_context(app):
            yield Engine(
                client,
                app,
                asyncio.get_running_loop(),
                tuple(children),
                reports,
                no_chain or await why_not_live(client, reports),
            )
    finally:
        reports.remove()
        await building.__aexit__(None, None, None)
