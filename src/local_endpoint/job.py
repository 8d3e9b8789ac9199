"""A job, one run of it, and a worker: plain values that only `Jobs` changes."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Kind = Literal["run", "sync", "openai", "http"]


class Status(StrEnum):
    """The states of a job, in the platform's words."""

    IN_QUEUE = "IN_QUEUE"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"

    @property
    def is_final(self) -> bool:
        return self not in (Status.IN_QUEUE, Status.IN_PROGRESS)


@dataclass(frozen=True)
class Policy:
    """How long a job may run once taken, and how long it may exist in all."""

    execution_timeout_s: float
    ttl_s: float
    is_low_priority: bool = False  # starts no worker


@dataclass(eq=False, slots=True)
class Run:
    """What one attempt at a job has given so far; a job that is queued again gets a new one."""

    worker_id: str | None = None
    taken_s: float | None = None
    ended_s: float | None = None
    output: Any = None
    has_output: bool = False
    result_bytes: int = 0  # of the output, or of the error
    error: str | None = None
    chunks: list[Any] = field(default_factory=list)  # streamed and not yet read by the customer
    chunk_bytes: int = 0
    chunk_count: int = 0  # all that were ever streamed
    posts: int = 0  # accepted stream and done posts, with their times and bytes
    post_bytes: int = 0
    first_post_s: float | None = None
    last_post_s: float | None = None
    tokens: int | None = None  # as the worker reports them
    events: int = 0  # SSE events that were streamed


@dataclass(eq=False, slots=True)
class Job:
    """One job. Only `Jobs` changes it."""

    id: str
    input: Any
    kind: Kind
    policy: Policy
    size: int
    extras: dict[str, Any]  # passed to the worker with the input: webhook, s3Config
    submitted_s: float
    status: Status = Status.IN_QUEUE
    history: list[tuple[float, Status]] = field(default_factory=list)
    lost: int = 0  # workers that vanished with it
    run: Run = field(default_factory=Run)

    @property
    def is_stream(self) -> bool:
        """Whether it asks for its answer in pieces, in any of the dialects."""
        question = self.input.get("openai_input", self.input) if isinstance(self.input, dict) else 0
        return isinstance(question, dict) and question.get("stream") is True

    @property
    def weight(self) -> int:
        """The bytes that it keeps in memory, as far as its values make them."""
        return self.size + self.run.chunk_bytes + self.run.result_bytes


@dataclass(eq=False, slots=True)
class Worker:
    """What the endpoint knows of one worker. Only `Jobs` changes it, except `open_polls`."""

    id: str
    seen_s: float = 0.0  # when it was last heard of
    expected: bool = False  # it is being started, and may be silent until it is ready
    ready: bool = False  # it has asked for jobs
    unhealthy: str | None = None
    retired: bool = False  # gets no more jobs
    open_polls: int = 0
    ping_s: float | None = None
    ping_jobs: set[str] = field(default_factory=set)
    sdk_version: str | None = None
    jobs: dict[str, Job] = field(default_factory=dict)
    idle_s: float | None = None  # since when it is ready and has nothing to do
    stops: dict[str, float | None] = field(default_factory=dict)  # job id: when last sent

    @property
    def state(self) -> Literal["initializing", "idle", "running", "unhealthy"]:
        if self.unhealthy is not None:
            return "unhealthy"
        if not self.ready:
            return "initializing"
        return "running" if self.jobs else "idle"

    @property
    def is_available(self) -> bool:
        """Whether it may be given a request."""
        return self.ready and self.unhealthy is None and not self.retired
