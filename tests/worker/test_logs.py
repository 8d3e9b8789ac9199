"""The log as JSON: one object a line, whoever logs it."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from local_endpoint.process import PHASE

pytestmark = pytest.mark.timeout(60)

# As vLLM does: a library configures handlers and formatters of its own, also after the worker.
LOGS = """
import logging, logging.config, sys, warnings
import worker.__main__
from worker.errors import unforeseen
from worker.logs import say, to_stderr
to_stderr()
logging.config.dictConfig({
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"own": {"format": "own %(message)s"}},
    "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
    "loggers": {"library": {"handlers": ["own"], "level": "INFO", "propagate": False}},
})
logging.getLogger().setLevel("ERROR")
say("phase: ready")
logging.getLogger("library").info("two\\nlines and hf_sekrit123456")
logging.getLogger("worker").warning("a job", extra={"job": "job-1", "error": "token=sekrit"})
warnings.warn("deprecated")
try:
    raise LookupError("our own fault, password=sekrit")
except LookupError as error:
    unforeseen(error)
say("error: late", is_error=True)
"""


def lines(log_format: str, code: str = LOGS) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "LOG_FORMAT": log_format},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=True,
    )
    return done.stdout.splitlines()


def test_every_line_is_an_object() -> None:
    """What the worker says, a library logs and Python warns of: no line is anything but JSON."""
    said: list[dict[str, Any]] = [json.loads(line) for line in lines(" JSON ")]
    messages = [one["message"].splitlines()[0] for one in said]

    assert ["phase: ready", "two", "a job"] == messages[:3]
    assert "deprecated" in messages[3]
    assert ["An answer failed unexpectedly", "error: late"] == messages[4:]
    assert ["INFO", "INFO", "WARNING", "WARNING", "ERROR", "ERROR"] == [x["level"] for x in said]
    assert ["worker", "library", "worker"] == [one["logger"] for one in said[:3]]
    assert all(one["time"] and one["process"] for one in said)
    assert "job-1" == said[2]["job"]
    assert "Traceback" in said[4]["exc_info"]
    assert "LookupError" in said[4]["exc_info"]


def test_secrets_stay_hidden() -> None:
    """Also in fields beside the message, and in tracebacks."""
    assert "sekrit" not in "".join(lines("json"))


def test_text_is_the_default() -> None:
    """Without LOG_FORMAT each library's lines are as it wants them."""
    said = lines("")

    assert "phase: ready" in said
    assert "own two" in said
    assert "worker: a job" in said
    assert "Traceback (most recent call last):" in said


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_local_endpoint_reads_phases(log_format: str) -> None:
    """The phases of a start are shown whichever way they are written."""
    found = [found[1] for line in lines(log_format) if (found := PHASE.match(line))]

    assert ["ready"] == found
