"""Why the engine refused a grammar, noted where it happens: its output says only "error".

vLLM 0.32 judges a grammar where the request is taken and compiles it in the engine, with the one
backend that the engine's first grammar chose. What another backend had accepted may fail there.
"""

import logging
import re
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.v1.core.sched import scheduler
from vllm.v1.structured_output import StructuredOutputManager, backend_xgrammar

from worker.errors import RequestError
from worker.processor.reports import Report, append

MOST_KEPT = 100
_REJECTED = "Unexpected: grammar rejected"
_WHERE = re.compile(r"^\[[\d:]+\] \S+: ")  # xgrammar begins with a time and a line of its own


def add_reasons() -> None:
    """Let vLLM's own refusal of a grammar say why: it keeps xgrammar's reason to itself."""
    validate = backend_xgrammar.validate_xgrammar_grammar

    def explained(params: Any) -> None:
        try:
            validate(params)
        except VLLMValidationError as error:
            if error.__cause__ is None or not str(error).endswith("specification."):
                raise
            raise VLLMValidationError(f"{str(error)[:-1]}: {_reason(error.__cause__)}") from error

    backend_xgrammar.validate_xgrammar_grammar = explained


def _reason(error: BaseException) -> str:
    return _WHERE.sub("", str(error).strip())[:1000]


def listen(path: str) -> None:
    """Let the process write into the file `path` why it refuses a grammar; in the engine's."""
    create = StructuredOutputManager._create_grammar

    def created(manager: Any, request: Any) -> Any:
        try:
            grammar: Any = create(manager, request)
            _refuse_dead_end(grammar, manager.backend)
        except Exception as error:
            append(path, {"request": request.request_id, "reason": _reason(error)})
            raise
        return grammar

    def note(record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(_REJECTED):
            reason = "it came to a place where it allows nothing."
            append(path, {"request": record.getMessage(), "reason": reason})
        return True

    StructuredOutputManager._create_grammar = created
    logging.getLogger(scheduler.__name__).addFilter(note)


def _refuse_dead_end(grammar: Any, backend: Any) -> None:
    """Refuse a grammar without a first token: one backend answers nothing, the other anything.

    A backend writes a bit for each token that may come next, 32 in an int32.
    """
    mask = backend.allocate_token_bitmask(1)
    grammar.fill_bitmask(mask, 0)
    failed = hasattr(grammar, "ll_matcher") and grammar.ll_matcher.get_error()  # only logged
    if failed or not mask.any():
        raise ValueError("it allows nothing at all.")


class Refusals:
    """What was noted, on the worker's side."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._noted: OrderedDict[str, str] = OrderedDict()

    def why(self, job_id: str) -> str:
        """Return why a request of this job was refused, else nothing."""
        with suppress(RequestError):  # shared memory is full, and nothing was noted
            for record in self._report.read():
                self._noted[record["request"]] = record["reason"]
        while len(self._noted) > MOST_KEPT:
            self._noted.popitem(last=False)
        return next((why for name, why in self._noted.items() if job_id in name), "")
