"""Worker processes: started with the right environment, watched, restarted, ended to the last one.

A worker that prints lines of the form `phase: loading weights` gets these words shown while it
starts. It is ready when it first asks for a job.
"""

import asyncio
import contextlib
import ctypes
import itertools
import math
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_endpoint.endpoint import Endpoint
from local_endpoint.jobs import Jobs
from local_endpoint.knobs import Knobs

PHASE = "phase: "
LOOK_S = 0.1  # between two looks at the workers
TERM_S = 0.8  # from SIGTERM to SIGKILL at the end; all of it has 2 s, and engines are large
MAX_READ = 2**20  # bytes of a log at once
GONE_S = 0.02  # between two looks whether all are gone
TAIL_LINES = 20
MAX_RESTART_DELAY_S = 30.0
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class WorkerError(Exception):
    """A worker did not become ready, or what is wanted of it cannot be done; the text says why."""


@dataclass(eq=False)
class Process:
    """One worker process. Only the supervisor changes it."""

    id: str
    process: asyncio.subprocess.Process
    log: Path
    starts: int  # of this worker and of those that ended unasked before it, in its place
    phase: str = ""
    ready_s: float | None = None
    kill_s: float | None = None  # it was told to stop, and is killed then
    is_orphaned: bool = False  # killed in secret: its heartbeat goes on
    log_read: int = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_wanted(self) -> bool:
        return self.kill_s is None and (self.process.returncode is None or self.is_orphaned)

    def look(self) -> str:
        """Give the latest phase which the log names."""
        with self.log.open("rb") as log:
            log.seek(self.log_read)
            new = log.read(MAX_READ)
        complete = new.rfind(b"\n") + 1 or (len(new) if len(new) == MAX_READ else 0)
        self.log_read += complete
        for line in new[:complete].decode(errors="replace").splitlines():
            if line.startswith(PHASE):
                self.phase = line.removeprefix(PHASE).strip()
        return self.phase

    def signal_it(self, number: signal.Signals) -> None:
        """Send a signal to the worker alone, as a container's runtime does."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the worker and to all its children: each has a process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def is_gone(self) -> bool:
        """Say whether neither the worker nor a child of it is left."""
        if self.process.returncode is None:
            return False
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def obituary(self) -> str:
        code = self.process.returncode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def last_words(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_READ))
            lines = log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        return f"; the end of {self.log}:" + "".join(f"\n  {line}" for line in lines)


class Supervisor:
    """Keeps between `min_workers` and `max_workers` workers running the same command.

    Above the minimum they are started as the knobs say, by the wait of jobs or by their number,
    and stopped when idle. Each has its own home in `directory`, with its log beside it, and
    with `own_cwd` its own working directory.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        command: Sequence[str],
        directory: Path,
        say: Callable[[str], None],
        *,
        min_workers: int = 1,
        max_workers: int = 1,
        own_cwd: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._command = command
        self._directory = directory
        self._say = say
        self._own_cwd = own_cwd
        self.min_workers = min_workers
        self.max_workers = max_workers
        self._numbers = itertools.count(1)
        self._processes: dict[str, Process] = {}
        self._predecessors: list[int] = []  # the starts of workers to be replaced
        self._not_before_s = 0.0
        self._restart_delay_s = 0.0
        self._changing = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self.has_failures = False

    async def start(self, show: "Progress") -> None:
        """Start the least number of workers and wait until they are ready. Raises `WorkerError`."""
        starting = [await self._spawn() for _ in range(self.min_workers)]
        with show:
            while starting := [process for process in starting if not self._is_ready(process)]:
                for process in starting:
                    if process.process.returncode is not None:
                        raise WorkerError(
                            f"the worker {process.obituary()} before it was ready"
                            f"{process.last_words()}"
                        )
                show.phase(starting[0].look())
                await asyncio.sleep(LOOK_S)
        self._keeper = asyncio.create_task(self._keep())

    def process(self, worker_id: str) -> Process | None:
        return self._processes.get(worker_id)

    def logs(self) -> list[Path]:
        return sorted(process.log for process in self._processes.values())

    async def act(
        self,
        action: str,
        id: str | None = None,  # noqa: A002
        **options: Any,
    ) -> str | None:
        """Do one thing to the workers, and give the id of the worker it was done to.

        - `start`: one more, above the maximum if need be
        - `stop`: no more jobs for it, then SIGTERM and, after a grace, SIGKILL; none in its place
        - `restart`: the same, and another in its place
        - `sigterm`: the bare signal; it is still given jobs while it asks for them
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
        process = self._processes.get(id or "")
        if process is None:
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

    # --- single workers --------------------------------------------------------------------

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
        home.mkdir()
        cwd = home / "work"
        if self._own_cwd:
            cwd.mkdir()
        log = self._directory / f"{worker_id}.log"
        environ = {**os.environ, **self._endpoint.worker_environ(worker_id, home)}
        environ.setdefault("PYTHONUNBUFFERED", "1")  # a phase is news only while it lasts
        self._endpoint.jobs.expect(worker_id)
        try:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    env=environ,
                    cwd=cwd if self._own_cwd else None,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
        except OSError as error:
            self._endpoint.jobs.lose(worker_id)
            raise WorkerError(
                f"cannot start {shlex.join(self._command)}: {error.strerror}"
            ) from None
        worker = self._processes[worker_id] = Process(worker_id, process, log, starts)
        return worker

    def _is_ready(self, process: Process) -> bool:
        if process.ready_s is None and self._endpoint.jobs.is_ready(process.id):
            process.ready_s = time.monotonic()
        return process.ready_s is not None

    def _tell_to_stop(self, process: Process) -> None:
        if process.kill_s is None:
            process.kill_s = time.monotonic() + self._endpoint.knobs.sigterm_grace_s
            process.signal_it(signal.SIGTERM)
            self._retire(process)
        if process.is_orphaned:
            process.kill_s = 0.0

    def _retire(self, process: Process) -> None:
        known = self._endpoint.jobs.workers.get(process.id)
        if known is not None:
            self._endpoint.jobs.retire(known)

    def _bury(self, process: Process) -> None:
        process.signal_all(signal.SIGKILL)  # its heartbeat would go on as if it lived
        del self._processes[process.id]
        self._endpoint.jobs.lose(process.id)

    # --- all of them -----------------------------------------------------------------------

    async def _keep(self) -> None:
        """Keep as many workers as are wanted, for ever."""
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
        if process.process.returncode is not None:
            if process.kill_s is not None:
                self._say(f"worker {process.id} has stopped")
                self._bury(process)
            elif not process.is_orphaned:
                self._ended_unasked(process, now_s)
            return
        was_ready = process.ready_s is not None
        if not was_ready:
            process.look()
        if self._is_ready(process) and not was_ready:
            self._say(f"worker {process.id} is ready (log: {process.log})")
        known = self._endpoint.jobs.workers.get(process.id)
        if known is not None and known.retired and not known.jobs and process.kill_s is None:
            self._say(f"worker {process.id} asked to be replaced")
            self._predecessors.append(process.starts)
            self._tell_to_stop(process)

    def _ended_unasked(self, process: Process, now_s: float) -> None:
        self.has_failures = True
        if process.ready_s is None:
            self._say(f"worker {process.id} {process.obituary()}{process.last_words()}")
        else:
            self._say(
                f"worker {process.id} {process.obituary()} (log: {process.log}); restarting it"
            )
            if now_s - process.ready_s > MAX_RESTART_DELAY_S:
                self._restart_delay_s = 0.0  # it was well for a while
        self._predecessors.append(process.starts)
        self._bury(process)
        self._not_before_s = now_s + self._restart_delay_s
        self._restart_delay_s = min(self._restart_delay_s + 1.0, MAX_RESTART_DELAY_S)

    def _stop_idle(self) -> None:
        """Stop workers which have been idle for long, or are more than the maximum."""
        wanted = self._wanted()
        workers = self._endpoint.jobs.workers
        since_s = time.monotonic() - self._endpoint.knobs.idle_timeout_s
        idle = [
            (worker.idle_s, process)
            for process in wanted
            if (worker := workers.get(process.id)) is not None and worker.idle_s is not None
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
        count = wanted_workers(self._endpoint.jobs, self._endpoint.knobs, len(wanted), is_starting)
        for _ in range(min(max(count, self.min_workers), self.max_workers) - len(wanted)):
            starts = self._predecessors.pop() + 1 if self._predecessors else 1
            try:
                process = await self._spawn(starts)
            except WorkerError as error:
                self._say(f"{error}")
                self._not_before_s = time.monotonic() + MAX_RESTART_DELAY_S
                return
            if len(wanted) >= self.min_workers:
                self._say(f"worker {process.id} starts, since jobs wait")
        self._predecessors.clear()


def wanted_workers(jobs: Jobs, knobs: Knobs, count: int, starting: int) -> int:
    """Say how many workers the jobs call for, when there are `count`, of which some still start.

    Jobs of low priority call for none. By `QUEUE_DELAY` each job that has waited too long calls
    for one more, or any job if there is none at all; `REQUEST_COUNT` divides all jobs evenly.
    """
    if knobs.scaler == "REQUEST_COUNT":
        return math.ceil((jobs.overdue(0) + jobs.in_progress) / max(knobs.scaler_value, 0.001))
    overdue = jobs.overdue(knobs.scaler_value if count else 0.0)
    return count + max(0, overdue - starting)


class Progress:
    """One line that says what a starting worker does: redrawn on a terminal, else a line a phase.

    ``starting worker: loading weights 12 s``
    """

    def __init__(self, write: Callable[[str], None], *, is_tty: bool) -> None:
        self._write = write
        self._is_tty = is_tty
        self._started_s = time.monotonic()
        self._shown: str | None = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_tty:
            self._write("\r\x1b[K")

    def phase(self, phase: str) -> None:
        seconds = f"{time.monotonic() - self._started_s:.0f} s"
        line = f"starting worker: {phase} {seconds}" if phase else f"starting worker {seconds}"
        if self._is_tty:
            if line != self._shown:
                width = shutil.get_terminal_size().columns - 1
                self._write(f"\r\x1b[K{line[:width]}")
            self._shown = line
        elif phase != self._shown:
            self._write(line + "\n")
            self._shown = phase


def _die_with_parent() -> None:
    """Have the kernel end this process when its parent dies, however that happens."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
