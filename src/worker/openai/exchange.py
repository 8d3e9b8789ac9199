"""One call of an ASGI app, as its server would see it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from worker.batching import Outbox, weight
from worker.engine.pacing import Pace
from worker.errors import RequestError
from worker.openai.events import (
    EventSplitter,
    is_comment,
    says_more,
    usage_in,
    usage_of,
    weigh,
    written_bytes,
)
from worker.openai.replies import value_of
from worker.processor.reports import Report, refuse_failure
from worker.record import Usage

Message = dict[str, Any]
# Writing a larger reply only to weigh it would hold the loop up: every comma and colon of it then
# counts as one that the SDK writes a space after.
EXACT_BYTES = 500_000


class Exchange:
    """The two ASGI channels of one call, and what came back through them."""

    def __init__(self, body: bytes, report: Report | None) -> None:
        self.gone = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.streams = False
        self.content = bytearray()
        self.error: Any = None
        self.usage = Usage()
        self._body: bytes | None = body
        self._report = report
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
            if self.streams:
                await self.pass_on(body, is_last=not message.get("more_body", False))
            else:
                self.content += body

    async def pass_on(self, content: bytes, *, is_last: bool) -> None:
        """Take a piece of a stream."""
        raise NotImplementedError

    async def finish(self) -> None:
        """Take what is left when the app has ended well."""
        raise NotImplementedError

    def refuse_failure(self) -> None:
        """Raise RequestError where the chain failed: the app takes that for an ordinary end."""
        if self._failure is None and self._report is not None:
            try:
                refuse_failure(self._report.read())
            except RequestError as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure

    def is_over(self) -> bool:
        """Say whether the rest of a stream would tell of a good end where there is none."""
        try:
            self.refuse_failure()
        except RequestError:
            self.gone.set()
        return self._failure is not None or bool(self.error)


class ForJob(Exchange):
    """An exchange whose reply goes into a job's outbox, event by event or whole."""

    def __init__(
        self,
        body: bytes,
        report: Report | None,
        outbox: Outbox[Any],
        pace: Pace,
        *,
        comments: bool,
    ) -> None:
        """`pace` is the outbox's.

        `comments` says whether whoever reads the stream takes events that only show life.
        """
        super().__init__(body, report)
        self._splitter = EventSplitter()
        self._pace = pace
        self._outbox = outbox
        self._comments = comments

    async def pass_on(self, content: bytes, *, is_last: bool) -> None:
        rest = self._splitter.rest if is_last else list
        for event in (*self._splitter.feed(content), *rest()):
            self._put(event)

    async def finish(self) -> None:
        if not self.streams:
            content = bytes(self.content)
            value = value_of(self.headers, content)
            self.usage = usage_of(content)
            if isinstance(value, dict | list) and len(content) > EXACT_BYTES:
                size = len(content) + content.count(b",") + content.count(b":")
            else:
                size = weight(value)
            self._outbox.put(value, 0, size)

    def _put(self, event: bytes) -> None:
        if self.is_over():
            return
        if is_comment(event):
            if self._comments:
                self._outbox.put_ahead(event, written_bytes(event))
            return
        if says_more(event):
            self.usage = usage_in(event, self.usage)
        carries, self.error = weigh(event)
        if not self.error:  # it is told in the dialect of the route, and is the end
            self._outbox.put(event, self._pace.take() if carries else 0, written_bytes(event))


class ForClient(Exchange):
    """An exchange whose reply goes to an HTTP client, a stream's pieces as they come."""

    def __init__(
        self, body: bytes, report: Report | None, leaving: asyncio.Future[None], send: Any
    ) -> None:
        """`leaving` ends when the client goes."""
        super().__init__(body, report)
        leaving.add_done_callback(lambda _: self.gone.set())
        self._to_client = send
        self._start: Message = {}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif self._is_plain(message):
            await self._to_client(message)
            return
        await super().send(message)

    def _is_plain(self, message: Message) -> bool:
        """Say whether a piece of a stream goes on as it is: that of nearly every token."""
        return (
            self.streams
            and not self._start
            and self._report is None
            and message.get("more_body", False)
            and not says_more(message["body"])
            and not self.error
        )

    async def pass_on(self, content: bytes, *, is_last: bool) -> None:  # noqa: ARG002
        if self.is_over():
            return
        if says_more(content):
            content = self._noted(content)
        if content:
            await self._forward(content, more_body=True)

    async def finish(self) -> None:
        if not self.streams:
            self.usage = usage_of(bytes(self.content))
        await self._forward(bytes(self.content), more_body=False)

    def _noted(self, content: bytes) -> bytes:
        """Note what events say of tokens and of an error; return what stands before the error."""
        splitter, good = EventSplitter(), b""
        for event in (*splitter.feed(content), *splitter.rest()):
            _, self.error = weigh(event)
            if self.error:
                return good
            self.usage = usage_in(event, self.usage)
            good += event
        return content

    async def _forward(self, content: bytes, *, more_body: bool) -> None:
        if self._start:
            await self._to_client(self._start)
            self._start = {}
        body = {"type": "http.response.body", "body": content, "more_body": more_body}
        await self._to_client(body)


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
