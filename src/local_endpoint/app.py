"""The endpoint as a web application, and the socket it listens on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from local_endpoint import page
from local_endpoint.control import ControlSide
from local_endpoint.endpoint import Endpoint
from local_endpoint.gate import Gate
from local_endpoint.openai_side import OpenAISide
from local_endpoint.public_side import PublicSide
from local_endpoint.side import Side
from local_endpoint.worker_side import WorkerSide

SHUTDOWN_S = 0.5  # for requests that are still being answered


def application(endpoint: Endpoint) -> web.Application:
    """Build the web application of an endpoint."""

    async def background(app: web.Application) -> AsyncIterator[None]:  # noqa: ARG001
        clock = asyncio.create_task(endpoint.keep_time())
        async with endpoint.balancer.watching() if endpoint.balancer else contextlib.nullcontext():
            yield
        clock.cancel()
        await asyncio.gather(clock, return_exceptions=True)
        await endpoint.webhooks.close()

    # `wire.read` has the limits on the size of bodies.
    app = web.Application(middlewares=[Gate(endpoint).admit], client_max_size=2**40)
    sides: list[type[Side]] = [ControlSide]
    if endpoint.balancer is None:  # else `Gate` passes requests on, whatever their address
        sides += [WorkerSide, PublicSide, OpenAISide]
    for side in sides:
        app.add_routes(side(endpoint).routes())
    app.add_routes(page.routes())
    app.cleanup_ctx.append(background)
    return app


@contextlib.asynccontextmanager
async def listening(
    endpoint: Endpoint, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[None]:
    """Serve an endpoint on this event loop: inside the block it answers. Port 0 is a free one.

    Raises `OSError` if it cannot listen there.
    """
    runner = web.AppRunner(
        application(endpoint),
        access_log=None,
        handle_signals=False,
        handler_cancellation=True,  # a client that goes away ends its long poll at once
        shutdown_timeout=SHUTDOWN_S,
        auto_decompress=endpoint.balancer is None,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        name = f"[{host}]" if ":" in host else host.replace("0.0.0.0", "127.0.0.1")
        endpoint.origin = f"http://{name}:{runner.addresses[0][1]}"
        yield
    finally:
        endpoint.close()
        await runner.cleanup()
