"""The start says what it does, and one that stands still is ended."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from worker.start.progress import Startup

pytestmark = pytest.mark.timeout(120)

STANDS_STILL = """
import os, time
from worker.start.progress import Startup
start = Startup()
start.phase("loading the model")
with start.watched(1, lambda: os._exit(1)):
    time.sleep(60)
"""
# Each gets on in its own way for three seconds, and would be ended after one.
GETS_ON = {
    "phases": "start.phase(str(step))",
    "writing": "open('file', 'wb').write(bytes(17_000_000))",
    "memory": "held.append(bytes(b'x') * 17_000_000)",
    "a child's reading": "child.stdin.write(b'x' * 17_000_000)",
}
SLOW = """
import os, subprocess, sys, time
from worker.start.progress import Startup
held = []
start = Startup()
start.phase("loading the model")
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
with start.watched(1, lambda: os._exit(1)):
    for step in range(6):
        time.sleep(0.5)
        {step}
child.kill()
print("ready")
"""


def run(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=30
    )


def test_a_start_that_stands_still(tmp_path: Path) -> None:
    """It is ended with a sentence that names its last phase, and the setting."""
    done = run(STANDS_STILL, tmp_path)

    assert 1 == done.returncode
    assert done.stderr == (
        "error: The start stood still for 1 s while loading the model (STARTUP_TIMEOUT_S).\n"
    )


@pytest.mark.parametrize("way", GETS_ON)
def test_a_slow_start_that_gets_on(tmp_path: Path, way: str) -> None:
    """New phases, bytes read or written and memory taken, by any process, are getting on."""
    done = run(SLOW.format(step=GETS_ON[way]), tmp_path)

    assert "ready" == (done.stdout.splitlines() or [done.stderr])[-1]


def test_how_long_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    """Each phase is said when it begins, and how long it took at the end."""
    start = Startup()
    for name in ("fetching the model", "loading the model", "ready"):
        start.phase(name)

    assert "The start took 0.0 s: fetching the model 0.0 s, loading the model 0.0 s." == (
        start.report()
    )
    assert "phase: fetching the model\nphase: loading the model\nphase: ready\n" == (
        capsys.readouterr().out
    )


def test_a_worker_that_gets_no_model(tmp_path: Path) -> None:
    """A worker whose hub says nothing leaves with code 1, and takes no job."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = subprocess.run(
            [sys.executable, "-m", "worker"],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "MODEL_NAME": "org/model",
                "STARTUP_TIMEOUT_S": "3",
                "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
                "RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1:9/job-take/$ID",
            },
            capture_output=True,
            text=True,
            timeout=100,
        )

    assert 1 == done.returncode
    assert "phase: ready" not in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "error: The start stood still for 3 s while fetching the model (STARTUP_TIMEOUT_S)."
    )
