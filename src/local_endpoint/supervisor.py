"""Worker processes: started with the right environment, watched, restarted, ended to the last one.

A worker that prints lines of the form `phase: loading weights` gets these words shown while it
starts. It is ready when it first asks for a job.
"""

import asyncio
import contextlib
import ctypes
import itertools
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from local_endpoint.endpoint import Endpoint
from local_endpoint.jobs import news_of

PHASE = "phase: "
LOOK_S = 0.1  # between two looks at a starting worker
TERM_S = 1.0  # from SIGTERM to SIGKILL
GONE_S = 0.02  # between two looks whether all are gone
TAIL_LINES = 20
MAX_RESTART_DELAY_S = 30.0
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class WorkerError(Exception):
    """A worker did not become ready; the text says why, and shows the end of its log."""


@dataclass(eq=False)
class _Worker:
    id: str
    process: asyncio.subprocess.Process
    log: Path
    phase: str = ""
    log_read: int = 0

    def look(self) -> str:
        """Give the latest phase which the log names."""
        with self.log.open("rb") as log:
            log.seek(self.log_read)
            new = log.read()
        complete = new.rfind(b"\n") + 1
        self.log_read += complete
        for line in new[:complete].decode(errors="replace").splitlines():
            if line.startswith(PHASE):
                self.phase = line.removeprefix(PHASE).strip()
        return self.phase

    def signal(self, number: signal.Signals) -> None:
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
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "".join(f"\n  {line}" for line in lines)


class Supervisor:
    """Keeps `count` workers running the same command, each with its own home in `directory`."""

    def __init__(
        self,
        endpoint: Endpoint,
        command: Sequence[str],
        count: int,
        directory: Path,
        say: Callable[[str], None],
    ) -> None:
        self._endpoint = endpoint
        self._command = command
        self._count = count
        self._directory = directory
        self._say = say
        self._numbers = itertools.count(1)
        self._workers: set[_Worker] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self.has_failures = False

    async def start(self, show: "Progress") -> None:
        """Start all workers and wait until they are ready. Raises `WorkerError`."""
        workers = [await self._spawn() for _ in range(self._count)]
        with show:
            await self._until_ready(workers, show.phase)
        self._keepers = [asyncio.create_task(self._keep(worker)) for worker in workers]

    def logs(self) -> list[Path]:
        return sorted(worker.log for worker in self._workers)

    async def stop(self) -> None:
        """End every process: SIGTERM, and SIGKILL to what is left soon after."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self._end(self._workers)

    def kill(self) -> None:
        """End every process at once."""
        for worker in self._workers:
            worker.signal(signal.SIGKILL)

    async def _spawn(self) -> _Worker:
        worker_id = f"local-{next(self._numbers)}"
        home = self._directory / worker_id
        home.mkdir()
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
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
        except OSError as error:
            self._endpoint.jobs.lose(worker_id)
            raise WorkerError(
                f"cannot start {shlex.join(self._command)}: {error.strerror}"
            ) from None
        worker = _Worker(worker_id, process, log)
        self._workers.add(worker)
        return worker

    async def _until_ready(self, workers: Sequence[_Worker], show: Callable[[str], None]) -> None:
        starting = list(workers)
        while starting:
            for worker in list(starting):
                if self._endpoint.jobs.is_ready(worker.id):
                    starting.remove(worker)
                elif worker.process.returncode is not None:
                    raise WorkerError(
                        f"the worker {worker.obituary()} before it was ready; "
                        f"the end of {worker.log}:{worker.last_words()}"
                    )
            if starting:
                show(starting[0].look())
                await asyncio.sleep(LOOK_S)

    async def _keep(self, worker: _Worker) -> None:
        """Watch a ready worker, and put another in its place whenever it ends, for ever."""
        delay_s = 0.0
        while True:
            ready_s = time.monotonic()
            await self._until_ended(worker)
            if time.monotonic() - ready_s > MAX_RESTART_DELAY_S:
                delay_s = 0.0  # it was well for a while
            while True:
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s + 1.0, MAX_RESTART_DELAY_S)
                try:
                    worker = await self._spawn()
                    await self._until_ready([worker], lambda _phase: None)
                    break
                except WorkerError as error:
                    self.has_failures = True
                    self._say(f"{error}")
                    self._bury(worker)
            self._say(f"worker {worker.id} is ready (log: {worker.log})")

    async def _until_ended(self, worker: _Worker) -> None:
        """Wait for the end of a worker, or end it once it is retired and has no job left."""
        ended = asyncio.create_task(worker.process.wait())
        retired = asyncio.create_task(self._until_retired(worker))
        try:
            await asyncio.wait({ended, retired}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            retired.cancel()
        if ended.done():
            self.has_failures = True
            self._say(f"worker {worker.id} {worker.obituary()} (log: {worker.log}); restarting it")
        else:
            self._say(f"worker {worker.id} asked to be replaced")
            await self._end({worker})
        self._bury(worker)

    async def _until_retired(self, worker: _Worker) -> None:
        def is_free() -> bool:
            known = self._endpoint.jobs.workers.get(worker.id)
            return known is not None and known.retired and not known.jobs

        await self._endpoint.waiters.wait_until(news_of(worker.id), is_free, float("inf"))

    def _bury(self, worker: _Worker) -> None:
        if worker in self._workers:
            worker.signal(signal.SIGKILL)  # its heartbeat process would go on as if it lived
            self._workers.remove(worker)
            self._endpoint.jobs.lose(worker.id)

    async def _end(self, workers: set[_Worker]) -> None:
        for worker in workers:
            known = self._endpoint.jobs.workers.get(worker.id)
            if known is not None:
                self._endpoint.jobs.retire(known)
            worker.signal(signal.SIGTERM)
        for _ in range(round(TERM_S / GONE_S)):
            if all(worker.is_gone() for worker in workers):
                break
            await asyncio.sleep(GONE_S)
        for worker in workers:
            worker.signal(signal.SIGKILL)
        for worker in workers:
            await worker.process.wait()


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
