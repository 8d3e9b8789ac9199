"""What the entry point promises before any engine exists."""

import inspect
import json
import subprocess
import sys

from worker.handler import Worker

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


def test_the_sdk_sees_a_generator() -> None:
    """The handler is an async generator function, the only kind whose yields the SDK streams."""
    assert inspect.isasyncgenfunction(Worker.handle)
    assert inspect.isasyncgenfunction(Worker.__new__(Worker).handle)


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
