"""What is unknown, or worth varying, about the platform: each knob with its default."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self

MB = 1_000_000  # the strict reading of the platform's "MB": a worker that fits here fits there


@dataclass(frozen=True)
class Knobs:
    """How this endpoint behaves where the real platform is undocumented or configurable.

    `_s` are seconds, `_ms` milliseconds, sizes are bytes of the JSON text.
    Raises `ValueError`, with the knob's name, for a value that makes no sense.
    """

    # Worker side
    take_hold_s: float = 20.0  # the SDK gives a poll up after 90 s
    stop_hold_s: float = 20.0
    stop_repeat_s: float = 1.0  # a stop signal is sent again after this, until the job is gone
    late_post_status: int = 200  # answer to a post for a job that is not that worker's (any more)
    worker_lost_s: float = 30.0  # silence, no open poll included, after which a worker is lost
    worker_lost_retries: int = 2  # how often a job outlives its worker before it is FAILED
    rtt_ms: float = 0.0  # added to each stream and done post, half before and half after

    # Public side
    stream_hold_s: float = 9.0  # the platform's is 10 s, which is also the Python client's timeout
    runsync_wait_ms: int = 90_000
    execution_timeout_s: float = 600.0  # unless the job's policy says otherwise
    ttl_s: float = 86_400.0
    exec_timeout_status: Literal["FAILED", "TIMED_OUT"] = "FAILED"
    ttl_mode: Literal["delete", "timed_out"] = "delete"
    webhook_retry_s: float = 10.0

    # OpenAI side
    openai_failed_status: int = 500  # HTTP status for a job that failed before it gave anything
    openai_timeout_s: float = 300.0
    cancel_on_disconnect: bool = True
    models_input: Literal["absent", "null", "empty"] = "absent"  # openai_input without a body

    # Limits
    max_body_run: int = 10 * MB  # request and result of /run and of /openai
    max_body_sync: int = 20 * MB  # request and result of /runsync
    max_stream_chunk: int = 1 * MB
    oversize_chunk: Literal["split", "reject", "allow"] = "split"
    oversize_request_status: int = 400

    # Memory
    retention_run_s: float = 1800.0
    retention_sync_s: float = 60.0
    retain_jobs: int = 2000  # finished jobs; the oldest go first
    retain_bytes: int = 256 * MB
    record_jobs: int = 1000  # jobs in the recording; 0 turns it off
    record_bytes: int = 64 * MB

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            choices = typing.get_args(hints[field.name])
            if choices and value not in choices:
                raise ValueError(f"{field.name}={value!r} is not one of {', '.join(choices)}")
            if isinstance(value, int | float) and value < 0:
                raise ValueError(f"{field.name}={value!r} is below zero")

    @classmethod
    def parse(cls, assignments: Iterable[str], **defaults: Any) -> Self:
        """Make knobs from `name=value` texts, as the command line gives them."""
        hints = typing.get_type_hints(cls)
        values: dict[str, Any] = dict(defaults)
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            name = name.strip().replace("-", "_")
            if name not in hints or not equals:
                near = difflib.get_close_matches(name, hints, n=1)
                hint = f"; did you mean {near[0]}=…?" if near else ""
                raise ValueError(f"{assignment!r} is not a knob and its value{hint}")
            values[name] = _value(name, text.strip(), hints[name])
        return cls(**values)


def _value(name: str, text: str, kind: Any) -> object:
    if kind is bool:
        words = {"true": True, "1": True, "false": False, "0": False}
        if text.lower() not in words:
            raise ValueError(f"{name}={text!r} is neither true nor false")
        return words[text.lower()]
    if isinstance(kind, type) and not isinstance(kind, types.GenericAlias):
        try:
            return kind(text)
        except ValueError:
            noun = "a whole number" if kind is int else "a number"
            raise ValueError(f"{name}={text!r} is not {noun}") from None
    return text
