"""Worker processes: started with the right environment, watched, restarted, and all ended.

A worker that prints lines of the form `phase: loading weights` gets these words shown while it
starts. It is ready when it first asks for a job, or answers 200 to a check of its health.
"""

import asyncio
import itertools
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from local_endpoint.jobs import Jobs
from local_endpoint.process import Process, WorkerError, free_port

LOOK_S = 0.1  # between two looks at the workers
TERM_S = 0.8  # from SIGTERM to SIGKILL at the end; all of it has 2 s, and engines are large
GONE_S = 0.02  # between two looks whether all are gone
MAX_RESTART_DELAY_S = 30.0


class Supervisor:
    """Keeps between `min_workers` and `max_workers` workers running the same command.

    Above the minimum they are started as the knobs say, by the wait of jobs or by their number,
    and stopped when idle. Each has its own home in `directory`, with its log beside it, and
    with `own_cwd` its own working directory; and a free port for its metrics in METRICS_PORT.
    `environ` returns the variables for a worker's id and home; `say` gets a line of text for
    each thing that happens by itself.
    """

    def __init__(
        self,
        jobs: Jobs,
        environ: Callable[[str, Path], Mapping[str, str]],
        command: Sequence[str],
        directory: Path,
        *,
        min_workers: int = 1,
        max_workers: int | None = None,
        own_cwd: bool = False,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._jobs = jobs
        self._environ = environ
        self._command = command
        self._directory = directory
        self._say = say
        self._own_cwd = own_cwd
        self.min_workers = min_workers
        self.max_workers = min_workers if max_workers is None else max_workers
        self._numbers = itertools.count(1)
        self._processes: dict[str, Process] = {}
        self._logs: dict[str, Path] = {}  # also of workers that are gone
        self._to_replace: list[int] = []  # the starts of each worker that another must replace
        self._not_before_s = 0.0
        self._restart_delay_s = 0.0
        self._changing = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self.has_failures = False

    async def start(self, show: Callable[[str], None]) -> None:
        """Start the minimum of workers and wait until they are ready. Raises `WorkerError`.

        `show` is called ten times a second with the phase of one that is not ready.
        """
        starting = [await self._spawn() for _ in range(self.min_workers)]
        while starting := [process for process in starting if not self._is_ready(process)]:
            for process in starting:
                if process.has_ended:
                    self.has_failures = True
                    raise WorkerError(
                        f"the worker {process.how_it_ended()} before it was ready"
                        f"{process.end_of_log()}"
                    )
            show(starting[0].look())
            await asyncio.sleep(LOOK_S)
        self._keeper = asyncio.create_task(self._keep())

    def process(self, worker_id: str) -> Process | None:
        return self._processes.get(worker_id)

    def processes(self) -> list[Process]:
        return list(self._processes.values())

    def log(self, worker_id: str) -> Path:
        """Return the log of a worker that is or was run here. Raises `WorkerError`."""
        if worker_id not in self._logs:
            raise WorkerError(f"no worker {worker_id!r} is run here")
        return self._logs[worker_id]

    def logs(self) -> list[Path]:
        return sorted(process.log for process in self._processes.values())

    async def act(
        self,
        action: str,
        id: str | None = None,  # noqa: A002
        **options: Any,
    ) -> str | None:
        """Do one thing to the workers, and return the id of the worker it was done to.

        - `start`: one more, above the maximum if necessary
        - `stop`: no more jobs for it, then SIGTERM and, after a grace, SIGKILL; no replacement
        - `restart`: the same, and another in its place
        - `sigterm`: only the signal; it is still given jobs while it asks for them
        - `kill`: SIGKILL; with `orphan=True` its heartbeat goes on and nobody notices
        - `scale`: `min=` and `max=` workers from now on

        Raises `WorkerError`.
        """
        if action == "start":
            return await self._start_one(**options)
        if action == "scale":
            self._scale(**options)
            return None
        acts: dict[str, Callable[..., Awaitable[None] | None]] = {
            "stop": self._stop_one,
            "restart": self._restart_one,
            "sigterm": lambda process: process.signal_it(signal.SIGTERM),
            "kill": self._kill_one,
        }
        if action not in acts:
            raise WorkerError(
                f"action={action!r} is not start, stop, restart, sigterm, kill, scale"
            )
        if (process := self._processes.get(id or "")) is None:
            raise WorkerError(f"no worker {id!r} is run here")
        if (awaitable := acts[action](process, **options)) is not None:
            await awaitable
        return process.id

    async def stop(self) -> None:
        """End every process: SIGTERM, and SIGKILL to what is left soon after."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        processes = self._processes.values()
        for process in processes:
            self._retire(process)
            process.signal_all(signal.SIGTERM)
        for _ in range(round(TERM_S / GONE_S)):
            if all(process.is_gone() for process in processes):
                break
            await asyncio.sleep(GONE_S)
        self.kill()
        for process in processes:
            await process.process.wait()

    def kill(self) -> None:
        """End every process at once."""
        for process in self._processes.values():
            process.signal_all(signal.SIGKILL)

    async def _start_one(self) -> str:
        async with self._changing:
            wanted = len(self._wanted()) + 1
            if self.min_workers == self.max_workers:
                self.min_workers = max(self.min_workers, wanted)
            self.max_workers = max(self.max_workers, wanted)
            return (await self._spawn()).id

    def _stop_one(self, process: Process) -> None:
        if process.is_wanted:
            self.min_workers = min(self.min_workers, len(self._wanted()) - 1)
        self._tell_to_stop(process)

    async def _restart_one(self, process: Process) -> None:
        async with self._changing:
            self._tell_to_stop(process)
            await self._spawn(process.starts + 1)

    def _kill_one(self, process: Process, *, orphan: bool = False) -> None:
        process.is_orphaned = orphan
        (process.signal_it if orphan else process.signal_all)(signal.SIGKILL)

    def _scale(self, min: int | None = None, max: int | None = None) -> None:  # noqa: A002
        least = self.min_workers if min is None else min
        most = self.max_workers if max is None else max
        if not 0 <= least <= most:
            raise WorkerError(f"min={least} and max={most} are not a range of workers")
        self.min_workers, self.max_workers = least, most

    async def _spawn(self, starts: int = 1) -> Process:
        worker_id = f"local-{next(self._numbers)}"
        home = self._directory / worker_id
        cwd = home / "work"
        cwd.mkdir(parents=True)
        log = self._logs[worker_id] = self._directory / f"{worker_id}.log"
        metrics_port = free_port({one.metrics_port for one in self._processes.values()})
        environ = {**os.environ, **self._environ(worker_id, home)}
        environ["METRICS_PORT"] = str(metrics_port)
        environ.setdefault("PYTHONUNBUFFERED", "1")  # a phase must be seen while it lasts
        self._jobs.expect(worker_id)
        try:
            process = await Process.start(
                worker_id,
                self._command,
                environ,
                log,
                cwd=cwd if self._own_cwd else None,
                starts=starts,
                metrics_port=metrics_port,
            )
        except WorkerError:
            self._jobs.lose(worker_id)
            raise
        self._processes[worker_id] = process
        return process

    def _is_ready(self, process: Process) -> bool:
        if process.ready_s is None and self._jobs.is_ready(process.id):
            process.ready_s = time.monotonic()
        return process.ready_s is not None

    def _tell_to_stop(self, process: Process) -> None:
        if process.kill_s is None:
            process.kill_s = time.monotonic() + self._jobs.knobs.sigterm_grace_s
            process.signal_it(signal.SIGTERM)
            self._retire(process)
        if process.is_orphaned:
            process.kill_s = 0.0

    def _retire(self, process: Process) -> None:
        if (known := self._jobs.workers.get(process.id)) is not None:
            self._jobs.retire(known)

    def _remove(self, process: Process) -> None:
        process.signal_all(signal.SIGKILL)  # its heartbeat would go on as if it lived
        del self._processes[process.id]
        self._jobs.lose(process.id)

    async def _keep(self) -> None:
        """Keep as many workers as are wanted, forever."""
        while True:
            async with self._changing:
                for process in list(self._processes.values()):
                    self._look_after(process)
                self._stop_idle()
                await self._start_missing()
            await asyncio.sleep(LOOK_S)

    def _wanted(self) -> list[Process]:
        return [process for process in self._processes.values() if process.is_wanted]

    def _look_after(self, process: Process) -> None:
        now_s = time.monotonic()
        if process.kill_s is not None and now_s >= process.kill_s:
            process.signal_all(signal.SIGKILL)
        if process.has_ended:
            if process.kill_s is not None:
                self._say(f"worker {process.id} has stopped")
                self._remove(process)
            elif not process.is_orphaned:
                self._failed(process, now_s)
            return
        was_ready = process.ready_s is not None
        if not was_ready:
            process.look()
        if self._is_ready(process) and not was_ready:
            self._say(f"worker {process.id} is ready (log: {process.log})")
        known = self._jobs.workers.get(process.id)
        if known is not None and known.retired and not known.jobs and process.kill_s is None:
            self._say(f"worker {process.id} asked to be replaced")
            self._to_replace.append(process.starts)
            self._tell_to_stop(process)

    def _failed(self, process: Process, now_s: float) -> None:
        """Make room for a replacement of a worker that ended by itself."""
        self.has_failures = True
        if process.ready_s is None:
            self._say(f"worker {process.id} {process.how_it_ended()}{process.end_of_log()}")
        else:
            self._say(
                f"worker {process.id} {process.how_it_ended()} (log: {process.log}); restarting it"
            )
            if now_s - process.ready_s > MAX_RESTART_DELAY_S:
                self._restart_delay_s = 0.0  # it was well for a while
        self._to_replace.append(process.starts)
        self._remove(process)
        self._not_before_s = now_s + self._restart_delay_s
        self._restart_delay_s = min(self._restart_delay_s + 1.0, MAX_RESTART_DELAY_S)

    def _stop_idle(self) -> None:
        """Stop workers that have been idle for long, or are more than the maximum."""
        since_s = time.monotonic() - self._jobs.knobs.idle_timeout_s
        idle = [
            (worker.idle_s, process)
            for process in self._wanted()
            if (worker := self._jobs.workers.get(process.id)) is not None
            and worker.idle_s is not None
        ]
        for idle_s, process in sorted(idle, key=lambda item: item[0]):
            count = len(self._wanted())
            if count > self.max_workers or (count > self.min_workers and idle_s <= since_s):
                self._say(f"worker {process.id} is idle; stopping it")
                self._tell_to_stop(process)

    async def _start_missing(self) -> None:
        if time.monotonic() < self._not_before_s:
            return
        wanted = self._wanted()
        is_starting = sum(process.ready_s is None for process in wanted)
        count = wanted_workers(self._jobs, len(wanted), is_starting)
        for _ in range(min(max(count, self.min_workers), self.max_workers) - len(wanted)):
            starts = self._to_replace.pop() + 1 if self._to_replace else 1
            try:
                process = await self._spawn(starts)
            except WorkerError as error:
                self._say(f"{error}")
                self._not_before_s = time.monotonic() + MAX_RESTART_DELAY_S
                return
            if len(wanted) >= self.min_workers:
                self._say(f"worker {process.id} starts, since jobs wait")
        self._to_replace.clear()


def wanted_workers(jobs: Jobs, count: int, starting: int) -> int:
    """Return how many workers the jobs call for, when there are `count`, of which some still start.

    Jobs of low priority call for none. By `QUEUE_DELAY` each job that has waited too long calls
    for one more, or any job if there is none at all; `REQUEST_COUNT` divides all jobs evenly.
    """
    knobs = jobs.knobs
    if knobs.scaler == "REQUEST_COUNT":
        return math.ceil((jobs.overdue(0) + jobs.in_progress) / max(knobs.scaler_value, 0.001))
    overdue = jobs.overdue(knobs.scaler_value if count else 0.0)
    return count + max(0, overdue - starting)
