"""One worker process: started so that it ends with its parent, watched through its log, ended."""

import asyncio
import contextlib
import ctypes
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PHASE = re.compile(r'(?:\{.*"message": ")?phase: ([^"]+)')  # as text, or in a log of JSON lines
MAX_READ = 2**20  # bytes of a log at once
MAX_SHOWN = 2**17  # bytes of a log that are given out at once
TAIL_LINES = 20
PR_SET_PDEATHSIG = 1
AUTOGROUP_NICE = "10"
LIBC = ctypes.CDLL(None)


class WorkerError(Exception):
    """A worker did not become ready, or cannot do what was asked; the text says why."""


@dataclass(eq=False)
class Process:
    """One worker process. Only the supervisor changes it."""

    id: str
    process: asyncio.subprocess.Process
    log: Path
    starts: int  # of this worker and of the failed ones that it replaces
    metrics_port: int
    phase: str = ""
    ready_s: float | None = None
    kill_s: float | None = None  # it was told to stop, and is killed at this time
    is_orphaned: bool = False  # killed without notice: its heartbeat goes on
    log_read: int = 0

    @classmethod
    async def start(
        cls,
        worker_id: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        *,
        cwd: Path | None,
        starts: int,
        metrics_port: int,
    ) -> "Process":
        """Start a worker that writes to `log`. Raises `WorkerError` if there is no such command."""
        try:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    env=environ,
                    cwd=cwd,
                    start_new_session=True,
                    preexec_fn=_begin,
                )
        except OSError as error:
            raise WorkerError(f"cannot start {shlex.join(command)}: {error.strerror}") from None
        return cls(worker_id, process, log, starts, metrics_port)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    @property
    def is_wanted(self) -> bool:
        return self.kill_s is None and (not self.has_ended or self.is_orphaned)

    def look(self) -> str:
        """Read what is new in the log, and return the latest phase that it names."""
        new = _lines(self.log, self.log_read, MAX_READ)
        self.log_read += len(new)
        for line in new.decode(errors="replace").splitlines():
            if found := PHASE.match(line):
                self.phase = found[1].strip()
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
        """Return whether neither the worker nor a child of it is left."""
        if not self.has_ended:
            return False
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def how_it_ended(self) -> str:
        code = self.process.returncode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def end_of_log(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_READ))
            lines = log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        return f"; the end of {self.log}:" + "".join(f"\n  {line}" for line in lines)


def log_since(log: Path, since: int) -> dict[str, Any]:
    """Return the whole lines of a log from a byte on, at most the latest `MAX_SHOWN` bytes.

    `start` and `end` are the bytes before and after them: ask for `end` next.
    """
    size = log.stat().st_size
    start = min(max(since, size - MAX_SHOWN, 0), size)
    lines = _lines(log, start, MAX_SHOWN)
    return {"text": lines.decode(errors="replace"), "start": start, "end": start + len(lines)}


def _lines(log: Path, start: int, most: int) -> bytes:
    """Return the whole lines from a byte on; a line longer than `most` bytes comes in parts."""
    with log.open("rb") as file:
        file.seek(start)
        new = file.read(most)
    return new[: new.rfind(b"\n") + 1 or (most if len(new) == most else 0)]


def free_port(taken: Collection[int] = ()) -> int:
    """Return a port that nobody listens on, and that is none of those promised to others."""
    while True:
        with socket.create_server(("", 0)) as server:
            port: int = server.getsockname()[1]
        if port not in taken:
            return port


def _begin() -> None:
    """Let the kernel end this process when its parent dies, and give way to other sessions.

    With autogroups Linux schedules each session as one. While a worker kept two cores, kernel 6.18
    left whoever read its stream in another session without CPU for up to 6 s, with this for 0.1 s.
    """
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        with contextlib.suppress(OSError):  # a kernel without them
            Path("/proc/self/autogroup").write_text(AUTOGROUP_NICE)
