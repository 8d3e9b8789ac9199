"""`python -m worker` with both doors on one engine: jobs as ever, and HTTP requests on PORT.

Handler and Door, and the servers under them, are the worker's own. A worker has one of the two, so
that one engine for both is the tests' alone: it halves the engines that they start.
"""

import asyncio
import os
import sys
from typing import Any

import uvloop


def open_both(loop: asyncio.AbstractEventLoop) -> None:
    """Let the worker that is starting serve its door too, when it begins to take jobs."""
    from worker.start import sdk, serve, web

    make_door, take_jobs = serve._door, sdk.serve
    front = web.Front("/ping")
    port = web._listening(int(os.environ["PORT"]))

    def kept_door(*given: Any) -> Any:
        front.door = make_door(*given)
        return front.door

    def serve_both(*given: Any) -> None:
        serving = loop.create_task(web._server(front, 1).serve([port]))
        take_jobs(*given)
        serving.cancel()

    serve._door, sdk.serve = kept_door, serve_both


def opened_loop() -> asyncio.AbstractEventLoop:
    loop = make_loop()
    open_both(loop)
    return loop


make_loop = uvloop.new_event_loop

if __name__ == "__main__":
    from worker.__main__ import main

    uvloop.new_event_loop = opened_loop
    sys.exit(main())
