"""The end of a worker's process: at once, whatever state it is in."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)

# SIGTERM comes while Python's own buffer of the stream is locked: its flush refuses that.
WHILE_PRINTING = """
import io, os, signal, sys
from worker.start.ending import leave
signal.signal(signal.SIGTERM, lambda *_: leave(128 + signal.SIGTERM))

class Slow(io.RawIOBase):
    def writable(self):
        return True
    def write(self, content):
        os.kill(os.getpid(), signal.SIGTERM)
        return len(content)

sys.stdout = io.TextIOWrapper(io.BufferedWriter(Slow()))
print("a line", flush=True)
"""
UNFORESEEN = """
from worker.start.ending import fail
def tell(sentence):
    raise OSError("nobody listens")
try:
    {}["model_type"]
except KeyError as error:
    fail(error, tell)
"""


def test_a_signal_while_a_line_is_printed() -> None:
    """SIGTERM in the middle of a print ends the process with its code, and without a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", WHILE_PRINTING], capture_output=True, text=True, timeout=30
    )

    assert (143, "") == (done.returncode, done.stderr)


def test_an_exception_that_nobody_foresaw() -> None:
    """It ends the process with one sentence after its traceback, also when no caller hears it."""
    done = subprocess.run(
        [sys.executable, "-c", UNFORESEEN], capture_output=True, text=True, timeout=30
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]

    assert 1 == done.returncode
    assert "Traceback" in done.stderr
    assert 1 == len(errors)
    assert "unexpectedly: KeyError" in errors[0]
