"""The seam to RunPod's SDK, 1.12.0 and 2.0.0rc2: its jobs run on the event loop of the engine.

Import this room late: importing `runpod` reads the environment, and 2.0 runs fitness checks then.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import aiohttp
import msgspec
import runpod.serverless
from runpod.http_client import AsyncClientSession
from runpod.serverless.modules import rp_fitness, rp_http, rp_ping, rp_scale

from worker.errors import StartError, WorkerError
from worker.facts import DEEPEST
from worker.lifetime import die_with_parent
from worker.metrics import UNDELIVERED

RETRY_S = 1.0  # between two questions for jobs that failed

log = logging.getLogger("worker")


def serve(
    handler: Callable[[dict[str, Any]], AsyncIterator[Any]],
    loop: asyncio.AbstractEventLoop,
    concurrency: int,
) -> None:
    """Answer jobs, up to `concurrency` at once, on `loop` until SIGTERM or SIGINT.

    `handler` is an async generator function. `loop` is not running yet and is open afterwards, with
    every task on it that is not the SDK's own: what has to be closed is closed by the caller.
    The fitness checks come first, on a loop that the SDK makes for them, while `loop` stands still.

    At the first signal no job is taken any more, those that run are answered and delivered, and
    this returns. A further one changes nothing.

    Raises StartError before the first job is taken when the SDK does not use `loop`, and
    WorkerError when the SDK's ping process ended, once every job is delivered. Whatever else it
    raises, jobs may still be running: exit at once.
    """

    def allowed(_current: int) -> int:
        # The SDK asks before each take, on the loop that its jobs will run on.
        if asyncio.get_running_loop() is not loop:
            raise StartError(
                f"RunPod's SDK {runpod.__version__} runs its jobs on another event loop than the "
                "engine's. Install a version that this worker is tested with."
            )
        return concurrency

    rp_scale.JobScaler = PromptJobLoop if _counts_fresh_jobs_twice() else JobLoop
    if rp_scale.JobScaler is JobLoop:
        log.warning(
            "RunPod's SDK %s counts its jobs in a new way, which is left as it is: some jobs of a "
            "burst may start a second late.",
            runpod.__version__,
        )
    if hasattr(rp_http, "_transmit"):
        rp_http._transmit = partial(_transmit, rp_http._transmit)
    _start(
        {
            "handler": handler,
            "return_aggregate_stream": True,
            "concurrency_modifier": allowed,
            "loop": loop,  # for JobLoop; the SDK does not look at it
        }
    )


async def _transmit(transmit: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Post something, with the SDK's retries, and count what got lost: the SDK only logs it."""
    try:
        await transmit(*args)
    except Exception:
        UNDELIVERED.inc()
        raise


async def tell_progress(job_id: str, progress: dict[str, Any]) -> None:
    """Tell RunPod how far a job is, and return when that has arrived or is given up.

    The SDK's own `progress_update` goes by a thread that nobody can wait for: RunPod would take an
    update that comes after the result for a job that runs again.
    """
    with suppress(Exception):
        async with AsyncClientSession() as session:
            update = {"status": "IN_PROGRESS", "output": progress}
            await rp_http.send_result(session, update, {"id": job_id})


class Take(aiohttp.ClientResponse):
    """The platform's answer, read by a parser that holds the loop up a quarter as long as Python's.

    Both refuse what nests deeper than they recurse, and the SDK would lose such a job without a
    word, and with it all that came in the same answer.
    """

    async def json(self, **options: Any) -> Any:
        try:
            return msgspec.json.decode(await self.read())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # stricter than Python's: NaN, halves of surrogate pairs, numbers without end
        try:
            return await super().json(**options)
        except RecursionError:
            return json.loads(await asyncio.to_thread(_cut, await self.text()))


def _cut(text: str) -> str:
    """Return JSON with null for what nests deeper than DEEPEST, which no job may (request.py)."""
    depth, kept, begun, parts = 0, 0, 0, []
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text):
        if found[0] in "[{":
            depth += 1
            if depth == DEEPEST + 1:
                begun = found.start()
        elif found[0] in "]}":
            if depth == DEEPEST + 1:
                parts += [text[kept:begun], "null"]
                kept = found.end()
            depth -= 1
    return "".join([*parts, text[kept:]])


class JobLoop(rp_scale.JobScaler):  # type: ignore[misc]  # the SDK has no types
    """The SDK's job loop on a loop of ours, with an end that waits for nothing but running jobs."""

    jobs_fetcher: Any  # the SDK's own, which it takes jobs with

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._delivered = asyncio.Event()
        self._is_unheard = False
        self._fetch = self.jobs_fetcher
        self.jobs_fetcher = self._take

    def start(self) -> None:
        """Run until a signal came and every job is delivered.

        The SDK's own `start` calls `asyncio.run`, which would make a loop, and at the end cancel
        all tasks on it and close it.
        """
        loop: asyncio.AbstractEventLoop = self.config["loop"]
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.kill_worker)
        for ping in Ping.started:
            loop.add_reader(ping.sentinel, self._ping_ended, ping.sentinel)
        loop.run_until_complete(self.run())
        if self._is_unheard:
            raise WorkerError("RunPod's ping process ended, and a worker that is silent is no use.")

    def _ping_ended(self, sentinel: int) -> None:
        """Take no more jobs: without a ping the platform gives this worker's to another."""
        asyncio.get_running_loop().remove_reader(sentinel)
        self._is_unheard = True
        log.error("RunPod's ping process ended. Finishing the running jobs and leaving.")
        self.kill_worker()

    async def _take(self, *asked: Any) -> Any:
        """Ask for jobs; after a failure wait, since the SDK would ask again at once, for ever."""
        try:
            return await self._fetch(*asked)
        except Exception:
            await asyncio.sleep(RETRY_S)
            raise

    async def get_jobs(self, session: Any) -> None:
        """Take jobs until the worker is told to leave.

        The SDK would wait for the answer of its last poll, for up to 90 s, and take a job that
        comes with it but never run it.
        """
        session._response_class = Take
        await _until(self._shutdown_event, super().get_jobs(session))

    async def stop_job(self, job_id: str) -> bool:
        """Stop a job, after its first step: stopped before it, the SDK would keep its slot taken.

        The same turn of the loop may bring a job and its stop.
        """
        await asyncio.sleep(0)
        return bool(await super().stop_job(job_id))

    async def run_jobs(self, session: Any) -> None:
        """Run what is taken until the worker leaves and all of it is delivered."""
        try:
            await super().run_jobs(session)
        finally:
            self.kill_worker()  # also when this failed: then nothing more may be taken
            self._delivered.set()

    async def monitor_stop_signals(self, session: Any) -> None:
        """Stop jobs as the platform says, as long as there are any."""
        await _until(self._delivered, super().monitor_stop_signals(session))


class Ping(multiprocessing.Process):
    """The SDK's ping process, which ends with this worker and not before.

    The ping must go on while a worker that got SIGTERM, as its whole group may, finishes its jobs.
    """

    started: ClassVar[list["Ping"]] = []

    def start(self) -> None:
        super().start()
        self.started.append(self)

    def run(self) -> None:
        """Ping; in the child process."""
        die_with_parent()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        super().run()


class PromptJobLoop(JobLoop):
    """The job loop without its pauses of one second.

    The SDK asks for `concurrency - occupancy` jobs, and sleeps for a second when that is nothing.
    Its occupancy is too large: a job that was taken and is not started yet counts twice. So when
    half of the slots were filled at once, the next job waited although there was room for it.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._freed = asyncio.Event()

    def current_occupancy(self) -> int:
        """Return the number of jobs that are taken and not finished."""
        return int(self.job_progress.get_job_count())

    async def set_scale(self) -> None:
        """Wait for a free slot too: the SDK comes here before each take."""
        await super().set_scale()
        while self.current_occupancy() >= self.current_concurrency:
            self._freed.clear()
            await self._freed.wait()

    async def handle_job(self, session: Any, job: dict[str, Any]) -> None:
        """Run one job, and then tell that its slot is free."""
        try:
            await super().handle_job(session, job)
        finally:
            self._freed.set()


def _counts_fresh_jobs_twice() -> bool:
    """Say whether the SDK counts as 1.12.0 and 2.0.0rc2 do, so that PromptJobLoop fits."""
    used = {
        "current_occupancy": {"jobs_queue", "qsize", "job_progress", "get_job_count"},
        "get_jobs": {"set_scale", "current_concurrency", "current_occupancy"},
        "handle_job": {"job_progress", "remove"},
    }
    for method, names in used.items():
        code = getattr(getattr(rp_scale.JobScaler, method, None), "__code__", None)
        if code is None or not names <= set(code.co_names):
            return False
    return True


async def _until(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` until it ends; it is cancelled when `event` is set."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        working.cancel()
    with suppress(asyncio.CancelledError):
        await working


class StartFailed(Exception):  # noqa: N818 - callers read this name
    """What a caller is told of a start that failed."""

    # The SDK puts the traceback into the job's error, and callers have no use for our files.
    __traceback__ = None


def fail_one_job(sentence: str) -> None:
    """Fail one waiting job with `sentence`, since this worker could not start; then return.

    Nobody else would tell a caller why nothing answers. It takes up to 15 s, 10 s of them when no
    job is waiting. With SDK 1.12.0, which has no hook for it, nothing happens. No event loop may be
    running, and the process has to end afterwards, with code 1.

    The job's error is the SDK's own: JSON text whose `error_message` is the sentence.
    """
    register = getattr(runpod.serverless, "register_prestart_hook", None)
    if register is None:
        return

    async def start() -> NoReturn:
        raise StartFailed(sentence) from None  # else the SDK would show what failed before it

    def leave(code: int = 1) -> NoReturn:
        raise SystemExit(code)

    register(start)
    # The SDK would end the process here and now, and its heartbeat process would live on.
    rp_fitness._terminate_unhealthy = leave
    # With room for no job it takes none by itself, and claims exactly one when the hook has failed.
    # (With room for one it would begin a take of its own, and cancel it, whatever that may bring.)
    with suppress(SystemExit):
        _start({"concurrency_modifier": lambda _current: 0})


def _start(config: dict[str, Any]) -> None:
    # 2.0 would append the end of the log to errors that callers see.
    os.environ.setdefault("RUNPOD_LOG_CAPTURE", "off")
    rp_ping.Process = Ping
    if threading.current_thread() is not threading.main_thread():
        # The SDK handles SIGINT, which Python allows in the main thread only.
        runpod.serverless.signal = SimpleNamespace(signal=lambda *_: None, SIGINT=signal.SIGINT)
    runpod.serverless.start(config)
