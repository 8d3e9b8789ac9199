"""Whoever of a worker's processes is told to end, or is killed, and when: what becomes of the rest.

A cell is one process, one moment and one signal. In each the worker ends with the right code, its
running job ends whole or with a sentence or is left to the platform, and within two seconds of the
worker's end no process of it lives and no file of it is left in shared memory or /tmp.
"""

import contextlib
import itertools
import time
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import psutil
import pytest

import models
from local_endpoint import Status
from served import START_S, Served, serve, start
from waiting import is_alive, wait_until

pytestmark = pytest.mark.timeout(400)

ENVIRON = {"MODEL_NAME": str(models.path("tiny")), "MAX_MODEL_LEN": "2048"}
TOKENS = 1500
JOB = {
    "prompt": "Hello you. " * 50,
    "stream": True,
    "sampling_params": {"max_tokens": TOKENS, "ignore_eos": True},
}
WHO = ("core", "engine worker", "worker", "ping", "fork server")
IGNORED = {("ping", SIGTERM), ("fork server", SIGTERM)}
WHEN = ("loading", "idle", "prefill", "mid-stream", "at exit")
LOST_SIGNAL = "Exception ignored in"
BY_DAY = {
    ("core", "loading", SIGKILL),
    ("worker", "mid-stream", SIGKILL),
}


def exit_code(who: str, when: str, signal: Signals) -> int:
    """Return what the worker has to end with, told to end by SIGTERM where nothing else ends it."""
    if who == "worker":
        if signal == SIGKILL:
            return -SIGKILL
        return 128 + SIGTERM if when == "loading" else 0
    if (who, signal) not in IGNORED:
        return 1
    return 128 + SIGTERM if when == "loading" else 0


def process_of(served: Served, who: str) -> psutil.Process | None:
    """Return one of the worker's processes, once it is there."""
    worker = psutil.Process(served.process.pid)
    if who == "worker":
        return worker
    titles = {
        "core": "VLLM::EngineCore",
        "engine worker": "VLLM::Worker",
        "fork server": "multiprocessing.forkserver",
        "ping": " ".join(worker.cmdline()),
    }
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in worker.children(recursive=who in ("core", "engine worker")):
            if titles[who] in " ".join(process.cmdline()):
                return process
    return None


def files_of(family: list[psutil.Process]) -> set[Path]:
    """Return what these processes have in shared memory and /tmp, caches of compilers left out."""
    found, sockets = set(), set()
    for process in family:
        with contextlib.suppress(psutil.Error):
            found |= {Path(one.path) for one in process.memory_maps()}
            found |= {Path(one.path) for one in process.open_files()}
            sockets |= {Path(one.laddr) for one in process.net_connections("unix") if one.laddr}
    found = {path for path in found if path.is_relative_to("/dev/shm") or "vllm" in path.name}
    found |= {path for path in sockets if path.is_absolute()}
    made = ("worker-vllm-", "pymp-")  # ours, and Python's
    folders = {path.parent for path in found if path.parent.name.startswith(made)}
    return {path for path in found | folders if path.exists() and path.parent != Path("/proc")}


def test_the_core_comes_from_the_fork_server(tiny: Served) -> None:
    """The engine core is forked from a process that has imported vLLM: no variable forbids it."""
    core, server = process_of(tiny, "core"), process_of(tiny, "fork server")
    assert core is not None
    assert server is not None

    assert server == core.parent()
    assert any("libtorch" in one.path for one in server.memory_maps())


@pytest.mark.parametrize(
    ("who", "when", "signal"),
    [
        pytest.param(
            *cell,
            marks=[] if cell in BY_DAY else pytest.mark.slow,
            id="-".join((*cell[:2], cell[2].name)),
        )
        for cell in itertools.product(WHO, WHEN, (SIGTERM, SIGKILL))
        if cell[:2] != ("ping", "loading")  # there is none yet
    ],
)
def test_a_cell(who: str, when: str, signal: Signals) -> None:
    """One process gets one signal at one moment."""
    job = None
    with (start if when == "loading" else serve)(ENVIRON) as served:
        if when == "loading":
            seen = "engine worker" if who in ("worker", "fork server") else who
            wait_until(
                lambda: served.process.poll() is not None or process_of(served, seen),
                START_S,
                served.log,
            )
            assert served.process.poll() is None, served.log()[-3000:]
        elif when != "idle":
            job = served.endpoint.submit(JOB)
            wait_until(lambda: served.endpoint.record(job).taken_s)
        if when in ("mid-stream", "at exit"):
            wait_until(lambda: served.endpoint.record(job).stream)
        if when == "at exit":
            served.process.send_signal(SIGTERM)
        family = served.family()
        files = files_of(family)
        target = process_of(served, who)
        assert target is not None
        target.send_signal(signal)
        signalled_s = time.monotonic()
        if (who, signal) in IGNORED:
            served.process.send_signal(SIGTERM)
        wait_until(
            lambda: served.process.poll() is not None or LOST_SIGNAL in served.log(),
            60,
            served.log,
        )
        if served.process.poll() is None and (who, when) == ("engine worker", "loading"):
            pytest.skip("vLLM's handler raised where Python drops errors: nobody was told to end")
        served.process.wait(60)
        code = served.process.returncode
        ended_s = time.monotonic()
        wait_until(
            lambda: not any(map(is_alive, family)),
            timeout_s=2,
            explain=lambda: [*map(str, family)],
        )
        gone_s = time.monotonic()
        wait_until(
            lambda: not any(path.exists() for path in files), timeout_s=2, explain=lambda: files
        )
        print(
            f"\ncell | {who} | {when} | {signal.name} | exit {code} after "
            f"{ended_s - signalled_s:.2f} s | nothing left {gone_s - ended_s:.2f} s later | "
            f"{len(family)} processes, {len(files)} files | ",
            served.endpoint.record(job).status.value if job else "no job",
        )

        assert exit_code(who, when, signal) == code, served.log()[-3000:]
        if job is not None:
            record = served.endpoint.record(job)
            if Status.FAILED == record.status:
                assert who in ("core", "engine worker", "fork server")
                assert "engine stopped" in record.done[-1].value["error"]
                assert f"job {job} failed" in served.log()
            elif Status.COMPLETED == record.status:
                assert TOKENS == record.stream[-1].value["usage"]["output"]
            else:  # it was killed, and the platform gives the job to another
                assert ("worker", SIGKILL) == (who, signal)
