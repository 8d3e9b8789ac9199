"""What is unknown, or worth varying, about the platform: each knob with its default."""

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import msgspec

MB = 1_000_000  # the strict reading of the platform's "MB": a worker that fits here fits there

Basis = Literal["documented", "observed", "assumed", "ours"]


def _knob(default: Any, basis: Basis, meaning: str) -> Any:
    """Describe a knob: `basis` is what its default rests on."""
    return dataclasses.field(default=default, metadata={"basis": basis, "meaning": meaning})


@dataclass(frozen=True)
class Knobs:
    """How this endpoint behaves where the real platform is undocumented or configurable.

    `_s` are seconds, `_ms` milliseconds, sizes are bytes of the JSON text. A value may be given
    as text. Raises `ValueError`, with the knob's name, for a value that makes no sense.
    """

    # Worker side
    take_hold_s: float = _knob(
        20.0, "assumed", "how long a poll for jobs is held; the SDK gives up after 90 s"
    )
    stop_hold_s: float = _knob(20.0, "assumed", "how long a poll for stop signals is held")
    stop_repeat_s: float = _knob(
        1.0, "assumed", "a stop signal is sent again after this, until the job is gone"
    )
    late_post_status: int = _knob(
        200, "assumed", "answer to a post for a job that is not, or no longer, that worker's"
    )
    worker_lost_s: float = _knob(
        30.0, "assumed", "silence, without an open poll, after which a worker is lost"
    )
    worker_lost_retries: int = _knob(
        2,
        "assumed",
        "how often a job is queued again after its worker was lost, before it is FAILED",
    )
    rtt_ms: float = _knob(
        0.0, "ours", "round trip added to each stream and done post, half before and half after"
    )

    # Scaling, where workers are started here
    scaler: Literal["QUEUE_DELAY", "REQUEST_COUNT"] = _knob(
        "QUEUE_DELAY", "documented", "what starts a worker: a long wait, or the number of jobs"
    )
    scaler_value: float = _knob(
        4.0, "documented", "QUEUE_DELAY: seconds in the queue; REQUEST_COUNT: jobs for a worker"
    )
    idle_timeout_s: float = _knob(
        5.0, "documented", "a worker above the minimum that is idle for this time is stopped"
    )
    sigterm_grace_s: float = _knob(30.0, "assumed", "from SIGTERM to SIGKILL at a scale-down")

    # Public side
    stream_hold_s: float = _knob(
        9.0, "observed", "how long an empty /stream is held; with 10 s the Python client gives up"
    )
    runsync_wait_ms: int = _knob(90_000, "documented", "how long /runsync and /status-sync wait")
    execution_timeout_s: float = _knob(
        600.0, "documented", "how long a job may run, unless its policy has its own"
    )
    ttl_s: float = _knob(
        86_400.0, "documented", "how long a job exists, unless its policy has its own"
    )
    policy_limits: bool = _knob(
        False, "documented", "refuse an executionTimeout under 5 s, a ttl under 10 s, any over 7 d"
    )
    exec_timeout_status: Literal["FAILED", "TIMED_OUT"] = _knob(
        "FAILED", "observed", "state of a job that ran too long"
    )
    ttl_mode: Literal["delete", "timed_out"] = _knob(
        "delete",
        "documented",
        "at the end of a ttl the job is gone, or (older) ends only if it is still queued",
    )
    webhook_retry_s: float = _knob(10.0, "documented", "pause between the three tries of a webhook")
    rate_limits: float = _knob(
        0.0, "documented", "1 means the documented limits, 0.5 half of them, 0 none"
    )

    # OpenAI side
    openai_failed_status: int | Literal["code"] = _knob(
        500,
        "assumed",
        "HTTP status for a job that failed before it sent anything; code: that of its error",
    )
    openai_timeout_s: float = _knob(300.0, "observed", "time for a whole answer")
    cancel_on_disconnect: bool = _knob(
        True, "assumed", "a client that leaves an OpenAI request has its job cancelled"
    )
    models_input: Literal["absent", "null", "empty"] = _knob(
        "absent", "observed", "openai_input of a request without a body"
    )
    x_api_key: bool = _knob(False, "assumed", "accept the key also in an x-api-key header")

    # Load balancing
    worker_wait_s: float = _knob(
        120.0, "documented", "how long a request waits for a ready worker; then it is answered 400"
    )
    strict_wait_s: float = _knob(
        300.0, "documented", "the same for a request that must go to one worker"
    )
    request_timeout_s: float = _knob(
        330.0, "documented", "time of a worker for a whole answer; then it is 524, or cut"
    )
    max_body_http: int = _knob(30 * MB, "documented", "bytes of a request, and of its answer")
    health_check_s: float = _knob(1.0, "assumed", "pause between two checks of a worker's health")
    forward_authorization: bool = _knob(
        True, "assumed", "a worker sees the Authorization header of its requests"
    )

    # Limits
    max_body_run: int = _knob(10 * MB, "documented", "request and result of /run and /openai")
    max_body_sync: int = _knob(20 * MB, "documented", "request and result of /runsync")
    max_depth: int = _knob(
        900, "assumed", "how deep a request's JSON may be nested; the SDK loses jobs from about 980"
    )
    max_stream_chunk: int = _knob(1 * MB, "documented", "one stream post")
    oversize_chunk: Literal["split", "reject", "allow"] = _knob(
        "split", "documented", "what happens to a larger one"
    )
    oversize_request_status: int = _knob(400, "assumed", "answer to a request that is too large")

    # Memory
    retention_run_s: float = _knob(1800.0, "documented", "how long a result of /run is kept")
    retention_sync_s: float = _knob(60.0, "documented", "how long a result of /runsync is kept")
    retain_jobs: int = _knob(2000, "ours", "finished jobs that are kept; the oldest go first")
    retain_bytes: int = _knob(256 * MB, "ours", "bytes of finished jobs that are kept")
    record_jobs: int = _knob(1000, "ours", "jobs whose times and posts are recorded")
    record_bytes: int = _knob(128 * MB, "ours", "bytes of these, recorded requests included")

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            value = getattr(self, name)
            try:
                converted = msgspec.convert(value, kind, strict=False)
                if isinstance(converted, int | float) and not converted >= 0:
                    raise ValueError
            except ValueError:
                raise ValueError(f"{name}={value!r} is not {_accepted(kind)}") from None
            object.__setattr__(self, name, converted)

    @classmethod
    def parse(cls, assignments: Iterable[str]) -> Self:
        """Make knobs from `name=value` texts, as the command line gives them."""
        values = {}
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            name = name.strip().replace("-", "_")
            if not equals:
                raise ValueError(f"{assignment!r} is not a knob and its value{_hint(name)}")
            values[name] = text.strip()
        return cls().replace(values)

    def replace(self, changes: Mapping[str, Any]) -> Self:
        """Return knobs with some changed. Raises `ValueError`."""
        for name in changes:
            if name not in KINDS:
                raise ValueError(f"{name!r} is not a knob{_hint(name)}")
        return dataclasses.replace(self, **changes)


KINDS: dict[str, Any] = typing.get_type_hints(Knobs)


def describe() -> list[dict[str, Any]]:
    """Describe every knob, in their order: name, default, basis, meaning, and what it accepts."""
    return [
        {
            "name": field.name,
            "accepts": _accepted(KINDS[field.name]),
            "default": field.default,
            **field.metadata,
        }
        for field in dataclasses.fields(Knobs)
    ]


def _accepted(kind: Any) -> str:
    words = {bool: "true or false", int: "a whole number from 0 up", float: "a number from 0 up"}
    if kind in words:
        return words[kind]
    parts = typing.get_args(kind)
    return " or ".join(part if isinstance(part, str) else _accepted(part) for part in parts)


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, KINDS, n=1)
    return f"; did you mean {near[0]}=…?" if near else ""
