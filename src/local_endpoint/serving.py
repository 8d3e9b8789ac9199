"""A running endpoint for Python: on a thread of its own, used from any other."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from local_endpoint import control, wire
from local_endpoint.app import listening
from local_endpoint.control import WorkerInfo
from local_endpoint.endpoint import Endpoint, Type
from local_endpoint.faults import Faults
from local_endpoint.knobs import Knobs
from local_endpoint.process import WorkerError
from local_endpoint.recording import Record

T = TypeVar("T")


class LocalEndpoint:
    """A running endpoint, for use from other threads than its own."""

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self.id = endpoint.id
        self.api_key = endpoint.api_key
        self.worker_key = endpoint.worker_key
        self.url = endpoint.url
        self.openai_url = endpoint.openai_url

    @property
    def faults(self) -> Faults:
        """What must fail: `endpoint.faults.add("posts", status=500, times=3)`."""
        return self._endpoint.faults

    @property
    def knobs(self) -> Knobs:
        return self._endpoint.knobs

    def set_knobs(self, **changes: Any) -> None:
        """Change some knobs: `endpoint.set_knobs(rtt_ms=50)`. Raises `ValueError`."""
        self._call(lambda: self._endpoint.set_knobs(self._endpoint.knobs.replace(changes)))

    def set_recording(self, is_on: bool) -> None:
        """Record values and requests from now on, or only times and sizes."""
        self._call(lambda: setattr(self._endpoint.recording, "is_on", is_on))

    def act(self, action: str, worker_id: str | None = None, **options: Any) -> str | None:
        """Do something to the workers that are run here; see `Supervisor.act`::

            endpoint.act("kill", "local-1", orphan=True)
            endpoint.act("scale", min=0, max=3)

        Returns the worker's id. Raises `WorkerError`.
        """
        supervisor = self._endpoint.supervisor
        if supervisor is None:
            raise WorkerError("no workers are started here")
        return self._await(supervisor.act(action, worker_id, **options))

    def state(self) -> dict[str, Any]:
        """Return what `GET /control/state` answers."""
        return self._call(lambda: control.state(self._endpoint))

    def worker_environ(self, worker_id: str, home: Path | str) -> dict[str, str]:
        """Return the variables that a worker needs in addition to the caller's environment."""
        return self._endpoint.worker_environ(worker_id, home)

    def record(self, job_id: str) -> Record:
        """Return what is recorded about a job up to now. Raises `KeyError` if that is nothing."""
        return self._call(lambda: self._endpoint.recording.record(job_id))

    def records(self) -> list[Record]:
        """Return all recorded jobs in the order of submission, for when their ids are unknown."""
        return self._call(lambda: list(self._endpoint.recording.records()))

    def workers(self) -> list[WorkerInfo]:
        """Return the workers that are known at present."""
        known = self._endpoint.jobs.workers
        return self._call(
            lambda: [control.worker_info(self._endpoint, worker) for worker in known.values()]
        )

    def wait_ready(self, workers: int = 1, timeout_s: float = 60.0) -> None:
        """Wait until this number of workers have asked for jobs. Raises `TimeoutError`."""
        deadline_s = time.monotonic() + timeout_s
        while sum(worker.state in ("idle", "running") for worker in self.workers()) < workers:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{workers} worker(s) not ready within {timeout_s:g} s")
            time.sleep(0.02)

    def wait_for_end(self, job_id: str, timeout_s: float = 30.0) -> Record:
        """Wait until a recorded job is in a final state. Raises `TimeoutError`."""
        deadline_s = time.monotonic() + timeout_s
        while not (record := self.record(job_id)).status.is_final:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"job {job_id} is {record.status} after {timeout_s:g} s")
            time.sleep(0.01)
        return record

    def submit(self, job_input: object) -> str:
        """Queue a job as `/run` does, and return its id."""
        size = len(wire.dump(job_input))
        return self._call(lambda: self._endpoint.jobs.submit(job_input, size=size)).id

    def lose_worker(self, worker_id: str) -> None:
        """Treat a worker as gone, as when its process has ended: its jobs are queued again."""
        self._call(lambda: self._endpoint.jobs.lose(worker_id))

    def _call(self, function: Callable[[], T]) -> T:
        if self._loop.is_closed():
            return function()

        async def call() -> T:
            return function()

        return self._await(call())

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=60)


@contextlib.contextmanager
def serve(
    knobs: Knobs | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    endpoint_id: str = "local",
    api_key: str = "local-api-key",
    worker_key: str = "local-worker-key",
    is_recording: bool = True,
    command: Sequence[str] = (),
    min_workers: int = 1,
    max_workers: int | None = None,
    own_cwd: bool = False,
    endpoint_type: Type = "queue",
) -> Iterator[LocalEndpoint]:
    """Run an endpoint on a thread of its own, on a free port unless one is given::

        with local_endpoint.serve(Knobs(rtt_ms=50)) as endpoint:
            client = openai.OpenAI(base_url=endpoint.openai_url, api_key=endpoint.api_key)

    With a `command` it starts workers too, as `Supervisor` says, and waits for the minimum.
    Raises `OSError` if it cannot listen there, and `WorkerError` if a worker does not start.
    """
    endpoint = Endpoint(
        knobs or Knobs(),
        endpoint_id=endpoint_id,
        api_key=api_key,
        worker_key=worker_key,
        is_recording=is_recording,
        endpoint_type=endpoint_type,
    )
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def live() -> None:
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()

    thread = threading.Thread(
        target=lambda: asyncio.run(live()), name="local-endpoint", daemon=True
    )
    thread.start()
    loop, stop = started.result()

    def run(coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    stack = contextlib.AsyncExitStack()
    try:
        run(stack.enter_async_context(listening(endpoint, host, port)))
        if command:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="local-endpoint-")))
            scale: dict[str, Any] = {"min_workers": min_workers, "max_workers": max_workers}
            workers = endpoint.working(command, directory, own_cwd=own_cwd, **scale)
            run(stack.enter_async_context(workers))
        yield LocalEndpoint(endpoint, loop)
    finally:
        run(stack.aclose())
        loop.call_soon_threadsafe(stop.set)
        thread.join()
