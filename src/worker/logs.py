"""What goes into the log, as text or, with LOG_FORMAT=json, as one JSON object a line."""

import logging
import sys
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from worker.sentences import hide


class _Json(JsonFormatter):
    """A record with all that it carries, and without secrets in any of it."""

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        return {k: hide(v) if isinstance(v, str) else v for k, v in log_data.items()}


_json = _Json(
    ["levelname", "name", "process", "message"],
    timestamp="time",
    rename_fields={"levelname": "level", "name": "logger"},
)
_is_json = False


def write_json(log_format: str) -> None:
    """Write what any library logs in this process as JSON, if `log_format` says so.

    Whatever formatters it gives its handlers: vLLM configures its own anew in each process.
    """
    global _is_json
    _is_json = log_format.strip().lower() == "json"
    if _is_json:
        logging.Handler.format = lambda _, record: _json.format(record)  # type: ignore
        logging.captureWarnings(True)
        _to_stderr("py.warnings", "%(message)s")


def to_stderr() -> None:
    """Let the worker's log be read."""
    _to_stderr("worker", "worker: %(message)s")


def _to_stderr(name: str, line: str) -> None:
    """Give a log a handler of its own: building vLLM's app raises the root and its to ERROR."""
    log, handler = logging.getLogger(name), logging.StreamHandler()
    handler.setFormatter(logging.Formatter(line))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def say(line: str, *, is_error: bool = False) -> None:
    """Tell whoever starts a worker something; the local endpoint reads some of these lines."""
    line = hide(line)
    if _is_json:
        level = logging.ERROR if is_error else logging.INFO
        line = _json.format(
            logging.makeLogRecord(
                {
                    "msg": line,
                    "name": "worker",
                    "levelno": level,
                    "levelname": logging.getLevelName(level),
                }
            )
        )
    print(line, file=sys.stderr if is_error else sys.stdout, flush=True)
