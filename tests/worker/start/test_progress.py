"""The start says what it does, and one that stands still is ended."""

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import local_endpoint
from local_endpoint import Knobs
from worker.start.progress import Startup

pytestmark = pytest.mark.timeout(120)

LONG = """
import time
from worker.start.progress import Startup
start = Startup(alive_s=0.2)
start.phase("loading the model")
time.sleep(1)
start.phase("ready")
time.sleep(0.5)
"""
STANDS_STILL = """
import os, time
from worker.start.progress import Startup
start = Startup()
start.phase("loading the model")
with start.watched(1, lambda sentence: (print(sentence, flush=True), os._exit(1))):
    time.sleep(60)
"""
ENDS_LATE = """
import os, threading, time
from worker.start.progress import Startup
given_up = threading.Event()
def give_up(_):
    given_up.set()
    time.sleep(1)
    os._exit(1)
start = Startup()
start.phase("loading the model")
with start.watched(1, give_up):
    given_up.wait()
print("went on")
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
with start.watched(1, lambda _: os._exit(1)):
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
    assert done.stdout.splitlines()[-1] == (
        "The start stood still for 1 s while loading the model (STARTUP_TIMEOUT_S)."
    )


def test_a_start_that_ends_while_it_is_given_up(tmp_path: Path) -> None:
    """It does not go on to take jobs beside the thread that fails one: the block never ends."""
    done = run(ENDS_LATE, tmp_path)

    assert 1 == done.returncode
    assert "went on" not in done.stdout


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


@pytest.mark.slow
def test_a_worker_that_gets_no_model(tmp_path: Path) -> None:
    """A worker whose hub says nothing leaves with code 1, and tells one caller why."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        local_endpoint.serve(Knobs(take_hold_s=5, stop_hold_s=5)) as endpoint,
    ):
        jobs = [endpoint.submit({"prompt": "Hello"}) for _ in range(2)]
        done = subprocess.run(
            [sys.executable, "-m", "worker"],
            env={"PATH": os.environ["PATH"]}
            | endpoint.worker_environ("worker-1", tmp_path)
            | {
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "MODEL_NAME": "org/model",
                "STARTUP_TIMEOUT_S": "3",
                "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            },
            capture_output=True,
            text=True,
            timeout=100,
        )
        records = [endpoint.record(job) for job in jobs]

    assert 1 == done.returncode
    assert "phase: ready" not in done.stdout
    sentence = "The start stood still for 3 s while fetching the model (STARTUP_TIMEOUT_S)."
    assert f"error: {sentence}" in done.stderr.splitlines()
    told = [json.loads(record.done[0].value["error"]) for record in records if record.done]
    is_2 = not importlib.metadata.version("runpod").startswith("1.")  # 1.12 has no hook for it
    assert [sentence] * is_2 == [error["error_message"] for error in told]


def test_a_long_phase_says_that_it_goes_on(tmp_path: Path) -> None:
    """Without a terminal too somebody who waits sees a line now and then, until it is ready."""
    lines = run(LONG, tmp_path).stdout.splitlines()

    assert [line for line in lines if line.startswith("still loading the model, after ")]
    assert "phase: ready" == lines[-1]
