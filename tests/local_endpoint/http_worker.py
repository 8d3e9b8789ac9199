"""A worker of a load-balancing endpoint: an HTTP server without an engine or an SDK.

With the argument `loading` its health is 204 until the file `ready` is in its home. What it does
is in the addresses below; `/hold` answers only when somebody else asks for `/release`.
"""

import asyncio
import os
import sys
from pathlib import Path

from aiohttp import web

WORKER = os.environ["RUNPOD_POD_ID"]
routes = web.RouteTableDef()
releases: asyncio.Queue[None] = asyncio.Queue()
health = 200
clients_that_left = 0


@routes.get("/ping")
async def ping(_request):
    is_loading = "loading" in sys.argv and not (Path.home() / "ready").exists()
    return web.Response(status=204 if is_loading else health)


@routes.get("/seen")
async def seen(request):
    variables = {name: value for name, value in os.environ.items() if name.isupper()}
    headers = dict(request.headers)
    left = clients_that_left
    return web.json_response({"environ": variables, "headers": headers, "left": left})


@routes.post("/health/{status}")
async def set_health(request):
    global health
    health = int(request.match_info["status"])
    return web.Response()


@routes.get("/answer/{status}")
async def answer(request):
    headers = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("Location", "/elsewhere")]
    status = int(request.match_info["status"])
    return web.Response(status=status, text=request.path_qs, headers=headers)


@routes.post("/echo")
async def echo(request):
    response = web.StreamResponse()
    await response.prepare(request)
    async for data in request.content.iter_any():
        await response.write(data)
    return response


@routes.post("/read")
async def read(request):
    return web.Response(text=str(len(await request.read())))


@routes.get("/events")
async def events(request):
    global clients_that_left
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    try:
        for number in range(3):
            await response.write(b'data: {"number": %d}\n\n' % number)
            await releases.get()
    except BaseException:
        clients_that_left += 1
        raise
    return response


@routes.get("/done")
async def done(request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"data: [DONE]\n\n")
    await releases.get()
    return response


@routes.get("/hold")
async def hold(_request):
    global clients_that_left
    try:
        await releases.get()
    except BaseException:
        clients_that_left += 1
        raise
    return web.Response(text=WORKER)


@routes.post("/release")
async def release(_request):
    releases.put_nowait(None)
    return web.Response()


@routes.get("/large/{size}")
async def large(request):
    size = int(request.match_info["size"])
    if "declared" in request.query:
        return web.Response(body=b"x" * size)
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"x" * size)
    return response


@routes.post("/exit")
async def leave(_request):
    os._exit(3)


if __name__ == "__main__":
    app = web.Application(client_max_size=2**30)
    app.add_routes(routes)
    port = int(os.environ["PORT"])
    web.run_app(app, port=port, handler_cancellation=True, shutdown_timeout=5, print=None)
