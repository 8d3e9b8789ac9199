"""The seam to uvicorn: the HTTP door's ports, answered from the first second to the last.

Importing vLLM holds a loop up for seconds, so until the engine is warm a thread with a loop of its
own answers on the same sockets: no connection is refused, and none is lost between the two.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Any

import uvicorn
from starlette.responses import JSONResponse, Response

from worker.configuration.environ import early
from worker.errors import RequestError, StartError
from worker.start.ending import leave

App = Callable[..., Awaitable[None]]
RETRY_AFTER_S = 10
# Longer than a proxy keeps an idle connection: else it may use one that is just being closed here.
KEEP_ALIVE_S = 75


class Front:
    """What stands on the ports: health, and the `door` once there is one.

    Health is 204 while the worker starts, 200 when it is ready, and 503 once `is_over`.
    """

    def __init__(self, health_path: str) -> None:
        self._health_path = health_path
        self.door: App | None = None
        self.is_over: Callable[[], bool] = lambda: False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        reply: App | None = self.door
        if scope["path"] == self._health_path:
            reply = Response(status_code=self._health())
        elif reply is None:
            error = RequestError("The worker is loading its model. Try again soon.", code=503)
            # Kept alive, a connection would end when the thread does.
            headers = {"retry-after": str(RETRY_AFTER_S), "connection": "close"}
            reply = JSONResponse(error.body(), 503, headers)
        await reply(scope, receive, send)

    def _health(self) -> int:
        if self.door is None:
            return 204
        return 503 if self.is_over() else 200


class Ports:
    """The open sockets, and who answers on them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Open `PORT` and `PORT_HEALTH` and answer on them, on a thread.

        Raises SettingsError, and StartError where a port is taken.
        """
        ports = early(environ, "PORT"), early(environ, "PORT_HEALTH")
        self._front = Front(early(environ, "HEALTH_CHECK_PATH"))
        self._sockets = [_listening(port) for port in dict.fromkeys(filter(None, ports))]
        self._waiting = _server(self._front, None)
        # Each server closes the sockets that it was given.
        own = [one.dup() for one in self._sockets]
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._waiting.serve(own)), name="health", daemon=True
        )
        self._thread.start()

    def serve(
        self,
        door: App,
        loop: asyncio.AbstractEventLoop,
        *,
        is_over: Callable[[], bool],
        grace_s: int,
    ) -> None:
        """Answer on `loop` until SIGTERM or SIGINT, and then what runs for up to `grace_s` more.

        A second signal ends the process at once. `is_over` says whether the engine is gone.
        """
        self._waiting.should_exit = True
        self._thread.join()
        self._front.door, self._front.is_over = door, is_over
        server = _server(self._front, grace_s)

        def stop(number: int) -> None:
            if server.should_exit:
                leave(128 + number)
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        loop.run_until_complete(server.serve(self._sockets))


class _Server(uvicorn.Server):
    def capture_signals(self) -> Any:
        """Leave the signals to us: uvicorn would raise them once more at its end."""
        return nullcontext()


def _server(app: App, grace_s: int | None) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=grace_s,
        )
    )


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server(("0.0.0.0", port), backlog=2048)
    except OSError as error:
        raise StartError(
            f"The port {port} cannot be used: {os.strerror(error.errno or 0)}."
        ) from None
