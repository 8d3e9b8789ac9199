"""The record of one request, whichever door it came by: a line in the log, and its metrics."""

import asyncio
import logging
import time
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Protocol

from opentelemetry import context, propagate, trace
from opentelemetry.trace import StatusCode

from worker.errors import EngineDied, RequestError, unforeseen
from worker.metrics import BATCH_WAIT, DURATION, FIRST_POST, JOBS, POSTED, POSTS, RUNNING
from worker.request import BatchRequest, NativeRequest, Request
from worker.sentences import shown

log = logging.getLogger("worker")
FLUSH_MS = 2000
tracer = trace.get_tracer("worker")  # does nothing without OTLP_TRACES_ENDPOINT


class Usage(NamedTuple):
    """How many tokens a request has read and written; None where nothing says so.

    `receipt` is more for the log, where it was asked for.
    """

    prompt: int | None = None
    output: int | None = None
    receipt: Mapping[str, Any] = MappingProxyType({})


class Answering(Protocol):
    """What of a call is read at its end."""

    @property
    def usage(self) -> Usage: ...


class Sent(Protocol):
    """What has left of an answer."""

    sent_tokens: int
    sent_bytes: int
    waited_s: float


class Record:
    """What becomes of one request: a `with` block around all that is sent of its answer.

    It ends as completed, unless `failed` was told before or the block is left by cancelling.
    The end is also that of the task it was begun in: a generator that is cancelled while it is
    suspended at a yield leaves no block.
    """

    def __init__(
        self, asked: Request, call: Answering, headers: Mapping[str, str] | None = None
    ) -> None:
        """`headers` may say which trace the request is a part of."""
        self._parent = propagate.extract(headers or {}, context=context.Context())
        self._asked = asked
        self._call = call
        self._dialect = asked.dialect
        self._state = "waiting"
        self._posts = 0
        self._sent: Sent | None = None
        self._first_s: float | None = None
        self._is_over = False

    def __enter__(self) -> "Record":
        self._began_s = time.monotonic()
        RUNNING.labels(self._dialect, self._state).inc()
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._end("cancelled"))
        self._span = tracer.start_span("job", self._parent)
        # For the tasks begun in the block; a job's own task ends with the job.
        context.attach(trace.set_span_in_context(self._span, self._parent))
        return self

    def __exit__(
        self, _: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end("completed")
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._end("cancelled")
        else:
            self.failed(unforeseen(error))

    def posted(self, sent: Sent) -> None:
        """Count one more post; nothing after the end, where a client has left."""
        if self._is_over:
            return
        self._posts += 1
        self._sent = sent
        if self._state == "waiting" and (sent.sent_tokens or not self._asked.stream):
            self._first_s = time.monotonic() - self._began_s
            RUNNING.labels(self._dialect, "waiting").dec()
            RUNNING.labels(self._dialect, "answering").inc()
            self._state = "answering"

    def cancelled(self) -> None:
        """End it because nobody waits for it."""
        self._end("cancelled")

    def failed(self, error: RequestError) -> None:
        """End it with what the caller is told."""
        self._end("lost" if isinstance(error, EngineDied) else "failed", error)

    def _end(self, outcome: str, error: RequestError | None = None) -> None:
        if self._is_over:
            return
        self._is_over = True
        took_s = time.monotonic() - self._began_s
        dialect, sent = self._dialect, self._sent
        RUNNING.labels(dialect, self._state).dec()
        JOBS.labels(dialect, outcome, error.type if error and outcome == "failed" else "").inc()
        DURATION.labels(dialect).observe(took_s)
        if sent is not None:
            POSTS.labels(dialect).inc(self._posts)
            POSTED.labels(dialect).inc(sent.sent_bytes)
            BATCH_WAIT.labels(dialect).inc(sent.waited_s)
        is_stream = self._asked.stream and self._first_s is not None
        if is_stream:
            FIRST_POST.labels(dialect).observe(self._first_s or 0.0)
        usage = self._call.usage
        said = {
            "dialect": dialect,
            **_target(self._asked),
            "prompt_tokens": usage.prompt,
            "output_tokens": usage.output,
            "first_output_s": self._first_s if is_stream else None,
            "duration_s": took_s,
            "tokens_per_s": usage.output / took_s if usage.output else None,
            **usage.receipt,
            "posts": self._posts,
            "bytes": sent.sent_bytes if sent else 0,
        }
        known = {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in said.items()
            if value is not None
        }
        self._span.set_attributes({"job": self._asked.job_id, "outcome": outcome, **known})
        if error is not None:
            self._span.set_status(StatusCode.ERROR, error.message)
        self._span.end()
        _log(self._asked.job_id, outcome, error, known)


def flush() -> None:
    """Send what traces are still here; the process is about to end without a word."""
    if flush := getattr(trace.get_tracer_provider(), "force_flush", None):
        flush(FLUSH_MS)


def _target(asked: Request) -> dict[str, str | None]:
    """Return the route and the model or adapter that a request names."""
    if isinstance(asked, NativeRequest):
        return {"model": asked.model}
    if isinstance(asked, BatchRequest):
        return {"output": asked.target and asked.target.partition("?")[0]}
    model = asked.body.get("model") if isinstance(asked.body, dict) else None
    return {"route": asked.path, "model": model if isinstance(model, str) else None}


def _log(job_id: str, outcome: str, error: RequestError | None, said: dict[str, Any]) -> None:
    fields = " ".join(
        f"{name}={shown(value) if isinstance(value, str) else value}"
        for name, value in said.items()
    )
    extra = {"job": job_id, "outcome": outcome, **said}
    if error is None:
        log.info("job %s %s: %s", job_id, outcome, fields, extra=extra)
        return
    sentence = " ".join(error.message.splitlines())
    extra |= {"error_type": error.type, "error": error.message}
    log.warning("job %s failed, %s: %s (%s)", job_id, error.type, sentence, fields, extra=extra)
