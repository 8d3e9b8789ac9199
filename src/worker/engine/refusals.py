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
from vllm.v1 import structured_output
from vllm.v1.structured_output import backend_xgrammar

from worker.errors import RequestError
from worker.processor.reports import Report, append

MOST_KEPT = 100
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

    def note(record: logging.LogRecord) -> bool:
        if record.funcName == "_create_grammar" and record.exc_info:
            reason = _reason(record.exc_info[1] or Exception())
            append(path, {"request": record.getMessage(), "reason": reason})
        return True

    logging.getLogger(structured_output.__name__).addFilter(note)


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
