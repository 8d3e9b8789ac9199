"""Whose errors are put into the caller's words."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineGenerateError

from worker.batching import BatchSizes
from worker.engine.refusals import Refusals
from worker.engine.server import Engine
from worker.errors import EngineDied, RequestError
from worker.processor.reports import Report

pytestmark = pytest.mark.timeout(120)

FAILED = "The worker failed to answer this job."


def translate(error: Exception, *, errored: bool = False) -> RequestError:
    client: Any = SimpleNamespace(errored=errored)
    nothing = Path("/dev/null")
    engine = Engine(client, None, None, "", nothing, Refusals(Report(nothing)))
    return engine.translate(error)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (VLLMValidationError("too long", parameter="prompt"), 400, "too long"),
        (caused(EngineGenerateError(), VLLMValidationError("too cold")), 400, "too cold"),
        (RequestError("ours", code=413), 413, "ours"),
    ],
)
def test_vllms_own_errors(error: Exception, code: int, message: str) -> None:
    """vLLM's own families keep their sentence, also where it stands in the cause alone."""
    told = translate(error)

    assert (code, message) == (told.code, told.message)


@pytest.mark.parametrize(
    "error",
    [
        TypeError("'NoneType' object is not subscriptable"),
        KeyError("online_renderer"),
        caused(EngineGenerateError(), AttributeError("renamed")),
    ],
)
def test_an_error_of_our_own(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Python's words never reach the caller; the log has them with their traceback."""
    with caplog.at_level(logging.ERROR, "worker"):
        told = translate(error)

    assert (500, FAILED) == (told.code, told.message)
    assert [True] == [record.exc_info is not None for record in caplog.records]


def test_a_value_error_of_a_room_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """A bare ValueError counts as vLLM's only where it was not raised in our own code."""
    with pytest.raises(ValueError, match="smallest") as caught:
        BatchSizes(min=0)

    assert FAILED == translate(caught.value).message
    assert 1 == len(caplog.records)


def test_a_dead_engine() -> None:
    """Once the engine is dead every error says so."""
    assert isinstance(translate(KeyError("x"), errored=True), EngineDied)
