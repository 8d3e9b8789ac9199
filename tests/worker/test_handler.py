"""What the handler promises of one job, whatever its dialect does."""

import asyncio
import inspect
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from worker.batching import BatchSizes, Outbox
from worker.errors import EngineDied, RequestError
from worker.handler import Handler
from worker.native.call import NativeCall
from worker.openai.call import RouteCall
from worker.record import Usage
from worker.request import NativeRequest, Request

pytestmark = pytest.mark.timeout(20)

IMPORT = """
import json, signal, sys, threading
before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
import worker.__main__
heavy = [name for name in ("vllm", "torch", "transformers", "runpod") if name in sys.modules]
after = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
print(json.dumps({
    "heavy": heavy,
    "threads": threading.active_count(),
    "signals": before == after,
}))
"""
FAILED = {"error": RequestError("The worker failed to answer this job.", code=500).text()}
REFUSED = RequestError("No.", code=400)

Answer = Callable[[Outbox[Any]], Coroutine[Any, Any, None]]


class Dialect:
    """A dialect whose answer is given: items become a list, an error ends the job."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def join(self, items: list[Any]) -> Any:
        return items

    def failure(self, error: RequestError) -> list[Any]:
        return ["frame", error.told()]

    @property
    def usage(self) -> Usage:
        return Usage(3, 2)


def handler(answer: Answer, max_result_bytes: int = 1000) -> Handler:
    sizes = BatchSizes(max_delay_s=0)
    return Handler(lambda _: Dialect(answer), sizes, max_result_bytes)


async def drain(yields: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in yields]


def job(**given: Any) -> dict[str, Any]:
    return {"id": "job-1", "input": {"prompt": "Hello", "stream": True} | given}


async def put_three(outbox: Outbox[Any]) -> None:
    for item in range(3):
        outbox.put(item, 1, 10)


def test_the_sdk_sees_a_generator() -> None:
    """The handler is an async generator function, the only kind whose yields the SDK streams."""
    assert inspect.isasyncgenfunction(Handler.handle)
    assert inspect.isasyncgenfunction(handler(put_three).handle)


def test_import_has_no_side_effects() -> None:
    """Importing the program, as vLLM's children do, starts nothing and loads nothing heavy."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )

    assert {"heavy": [], "threads": 1, "signals": True} == json.loads(done.stdout)
    assert done.stderr == ""


@pytest.mark.parametrize(("stream", "expected"), [(True, [[0], [1, 2]]), (False, [[0, 1, 2]])])
def test_a_job_leaves_in_batches(stream: bool, expected: list[Any]) -> None:
    """A stream leaves in growing batches, and what is not streamed in one piece."""
    assert expected == asyncio.run(drain(handler(put_three).handle(job(stream=stream))))


def test_an_error_after_batches() -> None:
    """What was ready before an error leaves first, then what the dialect says of the error."""

    async def answer(outbox: Outbox[Any]) -> None:
        outbox.put("ready", 1, 10)
        raise REFUSED

    assert [["ready"], "frame", REFUSED.told()] == asyncio.run(drain(handler(answer).handle(job())))


async def fails(_: Outbox[Any]) -> None:
    raise LookupError("our own fault")


async def is_cancelled(_: Outbox[Any]) -> None:
    """As when vLLM cancels a future of its own: nobody has stopped this job."""
    raise asyncio.CancelledError


@pytest.mark.parametrize("answer", [fails, is_cancelled])
def test_an_answer_that_nobody_foresaw_the_end_of(
    answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    """However an answer ends, its job ends: without Python's words, which the log has."""
    assert ["frame", FAILED] == asyncio.run(drain(handler(answer).handle(job())))
    assert [True] == [bool(record.exc_info) for record in caplog.records if record.exc_info]


async def breaks_in_a_group(outbox: Outbox[Any]) -> None:
    """As when one of several choices is cancelled from within: the group swallows that."""
    outbox.put("half", 1, 10)
    async with asyncio.TaskGroup() as group:
        group.create_task(is_cancelled(outbox))


async def dies(_: Outbox[Any]) -> None:
    raise EngineDied


@pytest.mark.parametrize(
    ("given", "answer", "kind", "word"),
    [
        ({"prompt": 7}, put_three, "BadRequestError", "prompt"),
        ({"unheard_of": 1}, put_three, "", "unheard_of"),
        ({"route": 7}, put_three, "", "route"),
        ({"prompt": "Hello"}, fails, "InternalServerError", "failed to answer"),
        ({"prompt": "Hello"}, is_cancelled, "InternalServerError", "failed to answer"),
        ({"prompt": "Hello"}, dies, "InternalServerError", "engine"),
    ],
)
def test_every_failure_is_a_line_in_the_log(
    given: dict[str, Any], answer: Answer, kind: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line with the job's id, the error's type and the sentence that the caller is told."""
    one = handler(answer)
    *_, told = asyncio.run(drain(one.handle({"id": "job-7", "input": given})))
    error = json.loads(told["error"])["error"]
    (line,) = [line for line in caplog.messages if "job-7" in line]

    assert "failed" in line
    assert error["type"] in line
    assert error["message"] in line
    assert kind in error["type"]
    assert word in error["message"]


def test_the_engines_death_is_counted() -> None:
    """The number of jobs that were told of the engine's death is known, however they were told."""

    async def main() -> Handler:
        one = handler(dies)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(drain(one.handle(job())))
        return one

    assert 3 == asyncio.run(main()).lost


def test_a_result_that_is_too_large() -> None:
    """A stream that grows beyond MAX_RESULT_MB ends with an error that says so."""

    async def answer(outbox: Outbox[Any]) -> None:
        outbox.put("a", 1, 900)
        outbox.put("b", 1, 900)

    *batches, frame, error = asyncio.run(drain(handler(answer).handle(job())))

    assert ([["a"]], "frame") == (batches, frame)
    assert 413 == json.loads(error["error"])["error"]["code"]


@pytest.mark.parametrize("while_posting", [True, False])
def test_a_stopped_job_stops_its_answer(
    while_posting: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK stops a job by cancelling its task, while it posts or while it waits for a batch."""

    async def main() -> None:
        started, stopped = asyncio.Event(), asyncio.Event()

        async def answer(outbox: Outbox[Any]) -> None:
            outbox.put("a", 1, 10)
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        one = handler(answer)
        posting = asyncio.Event()

        async def consume() -> None:
            async for _ in one.handle(job()):
                if while_posting:
                    posting.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(consume())
        await (posting if while_posting else started).wait()
        assert {task} == one.running
        task.cancel()
        await stopped.wait()
        await asyncio.wait([task])
        assert set() == one.running

    asyncio.run(main())

    assert [] == caplog.records


def test_a_closed_worker_answers_nothing() -> None:
    """Once the engine died a job gets no answer, so that the platform hands it out again."""

    async def main() -> None:
        one = handler(put_three)
        one.is_closed = True
        task = asyncio.create_task(drain(one.handle(job())))
        done, _ = await asyncio.wait([task], timeout=0.2)
        task.cancel()
        assert set() == done

    asyncio.run(main())


ROUTE: dict[str, Any] = {"openai_input": {"stream": True}}


@pytest.mark.parametrize("as_output", [False, True])
@pytest.mark.parametrize(
    ("given", "frame"),
    [
        ({"prompt": 7}, None),
        ({"openai_route": 7}, None),
        ({"route": 7, "body": {"stream": True}}, "data: "),
        ({"openai_route": "/v1/chat/completions", "input": 1} | ROUTE, "data: "),
        ({"openai_route": "/v1/messages", "input": 1} | ROUTE, "event: error\ndata: "),
    ],
)
def test_an_unreadable_job(given: dict[str, Any], frame: str | None, as_output: bool) -> None:
    """A job that is refused while it is read fails as any other: a stream tells it first.

    OPENAI_ERRORS_AS_OUTPUT holds for every job that calls a route.
    """
    nothing: Any = None

    def dialect(asked: Request) -> Any:
        if isinstance(asked, NativeRequest):
            return NativeCall(asked, nothing, nothing, nothing)
        options = {"model": "tiny", "raw": True, "errors_as_output": as_output}
        return RouteCall(asked, nothing, nothing, nothing, nothing, nothing, **options)

    one = Handler(dialect, BatchSizes(), 1000)
    told = asyncio.run(drain(one.handle({"id": "job-1", "input": given})))
    is_output = as_output and "prompt" not in given
    *frames, last = told if frame is None or not as_output else [*told, None]

    assert (frame is not None) == (len(frames) == 1)
    assert all(one.startswith(frame) for one in frames)
    if last is not None:
        assert is_output == isinstance(last, str)
        text = last if is_output else last["error"]
        assert 400 <= json.loads(text)["error"]["code"] < 500
