"""What happened to each job and when, for tests and for a look behind the scenes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from local_endpoint.jobs import Job, Status


@dataclass(frozen=True)
class Post:
    """One post of a worker: when it came (`time.monotonic`), its bytes, and the value in it."""

    at_s: float
    size: int
    value: Any
    worker_id: str


@dataclass(frozen=True)
class Record:
    """The life of one job; all times are `time.monotonic` in seconds.

    `stream` are the accepted stream posts, `value` being the yielded value; `done` are all done
    posts, `value` being the whole message (None if it was no JSON or too large); `stops` are
    the moments a stop signal left for a worker; `late` are posts that were ignored.
    """

    job_id: str
    input: Any
    states: tuple[tuple[float, Status], ...]
    stream: tuple[Post, ...]
    done: tuple[Post, ...]
    late: tuple[Post, ...]
    stops: tuple[float, ...]

    @property
    def submitted_s(self) -> float:
        return self.states[0][0]

    @property
    def taken_s(self) -> float | None:
        """When a worker took it, the last time."""
        times = [at_s for at_s, status in self.states if status is Status.IN_PROGRESS]
        return times[-1] if times else None

    @property
    def first_stream_s(self) -> float | None:
        return self.stream[0].at_s if self.stream else None

    @property
    def done_s(self) -> float | None:
        return self.done[-1].at_s if self.done else None

    @property
    def status(self) -> Status:
        return self.states[-1][1]


@dataclass(eq=False, slots=True)
class _Notes:
    input: Any
    states: list[tuple[float, Status]]
    stream: list[Post] = field(default_factory=list)
    done: list[Post] = field(default_factory=list)
    late: list[Post] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    size: int = 0


class Recording:
    """The latest jobs, bounded in number and in bytes; knows nothing of keys and headers."""

    def __init__(self, max_jobs: int, max_bytes: int) -> None:
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._bytes = 0
        self._notes: dict[str, _Notes] = {}

    def submitted(self, job: Job) -> None:
        if self._max_jobs:
            self._notes[job.id] = _Notes(job.input, job.history)
            self._count(self._notes[job.id], job.size)

    def streamed(self, job_id: str, post: Post) -> None:
        if notes := self._notes.get(job_id):
            notes.stream.append(self._fitting(notes, post))

    def done(self, job_id: str, post: Post) -> None:
        if notes := self._notes.get(job_id):
            notes.done.append(self._fitting(notes, post))

    def late(self, job_id: str, post: Post) -> None:
        if notes := self._notes.get(job_id):
            notes.late.append(self._fitting(notes, post))

    def stopped(self, job_id: str, at_s: float) -> None:
        if notes := self._notes.get(job_id):
            notes.stops.append(at_s)

    def record(self, job_id: str) -> Record:
        """Give what is recorded of a job. Raises `KeyError` if that is nothing."""
        notes = self._notes[job_id]
        return Record(
            job_id=job_id,
            input=notes.input,
            states=tuple(notes.states),
            stream=tuple(notes.stream),
            done=tuple(notes.done),
            late=tuple(notes.late),
            stops=tuple(notes.stops),
        )

    def records(self) -> Iterator[Record]:
        """Give all that is recorded, in the order of submission."""
        return map(self.record, self._notes)

    def _fitting(self, notes: _Notes, post: Post) -> Post:
        self._count(notes, post.size)
        if notes.size > self._max_bytes:  # one job alone fills the house: times and sizes only
            return Post(post.at_s, post.size, None, post.worker_id)
        return post

    def _count(self, notes: _Notes, size: int) -> None:
        notes.size += size
        self._bytes += size
        while len(self._notes) > self._max_jobs or (
            self._bytes > self._max_bytes and len(self._notes) > 1
        ):
            oldest = self._notes.pop(next(iter(self._notes)))
            self._bytes -= oldest.size
