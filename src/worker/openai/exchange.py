"""One call of an ASGI app, as its server would see it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from worker.batching import Outbox
from worker.errors import RequestError
from worker.openai.events import EventSplitter, is_comment, weigh, written_bytes
from worker.processor.reports import Report, refuse_failure

Message = dict[str, Any]


class Exchange:
    """The two ASGI channels of one call, and what came back through them."""

    def __init__(
        self, body: bytes, outbox: Outbox[Any], report: Report | None = None, *, comments: bool
    ) -> None:
        """`comments` says whether whoever reads the stream takes events that only show life."""
        self.gone = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.streams = False
        self.content = bytearray()
        self.splitter = EventSplitter()
        self.error: Any = None
        self._body: bytes | None = body
        self._outbox = outbox
        self._report = report
        self._comments = comments
        self._failure: RequestError | None = None

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                bytes(k).decode("latin-1").lower(): bytes(v).decode("latin-1")
                for k, v in message["headers"]
            }
            is_events = self.headers.get("content-type", "").startswith("text/event-stream")
            self.streams = is_events and self.status < 400
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            if not self.streams:
                self.content += body
                return
            for event in self.splitter.feed(body):
                self.put(event)

    def refuse_failure(self) -> None:
        """Raise RequestError where the chain failed: the app takes that for an ordinary end."""
        if self._failure is None and self._report is not None:
            try:
                refuse_failure(self._report.read())
            except RequestError as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure

    def put(self, event: bytes) -> None:
        try:
            self.refuse_failure()
        except RequestError:  # the rest would tell of a good end; it is dropped, and cut short
            self.gone.set()
            return
        if is_comment(event):
            if self._comments:
                self._outbox.put_ahead(event, written_bytes(event))
            return
        tokens, error = weigh(event)
        self.error = self.error or error
        if not self.error:  # it is told in the dialect of the route, and is the end
            self._outbox.put(event, tokens, written_bytes(event))


async def run(call: Coroutine[Any, Any, None], gone: asyncio.Event) -> None:
    """Run a call of the app to its end; when we are cancelled, tell it that the client is gone."""
    running = asyncio.ensure_future(call)
    # An error after the client has gone is nobody's: without this asyncio would log it.
    running.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        # Cancelling the call alone would leave a non-streaming request generating.
        gone.set()
        await asyncio.wait([running])
        raise
    if running.cancelled():  # by the app itself; raised here, it would look like our own end
        raise RequestError("The server gave this request up.", code=500)
    running.result()
