"""What happened to each job and when, for tests and for a look inside.

Times and sizes are always noted; values and the raw requests of workers only while it is on.
"""

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from local_endpoint.job import Job, Status

POST_BYTES = 200  # what a post costs in memory in addition to its value
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
OTHER_REQUESTS = 1000  # kept of those that belong to no job: polls, heartbeats


@dataclass(frozen=True)
class Post:
    """One post of a worker: when it came (`time.monotonic`), its bytes, and the value in it."""

    at_s: float
    size: int
    value: Any
    worker_id: str


@dataclass(frozen=True)
class Request:
    """A worker's request as it came and how it was answered; never with its authorization."""

    at_s: float
    duration_s: float
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    status: int


@dataclass(frozen=True)
class Record:
    """The life of one job; all times are `time.monotonic` in seconds.

    `stream` are the accepted stream posts, `value` being the yielded value; `done` are all done
    posts, `value` being the whole message (None if it was not JSON or too large); `stops` are
    the moments a stop signal left for a worker; `late` are posts that were ignored; `requests`
    are the worker's requests about it, also those with a fault. Without recording
    `input` and each `value` are None, and there are no `requests`.
    """

    job_id: str
    input: Any
    states: tuple[tuple[float, Status], ...]
    stream: tuple[Post, ...]
    done: tuple[Post, ...]
    late: tuple[Post, ...]
    stops: tuple[float, ...]
    requests: tuple[Request, ...]

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


class _Notes:
    def __init__(self, job: Job, *, has_values: bool) -> None:
        self.input = job.input if has_values else None
        self.states = job.history
        self.stream: list[Post] = []
        self.done: list[Post] = []
        self.late: list[Post] = []
        self.stops: list[float] = []
        self.requests: list[Request] = []
        self.size = 0


class Recording:
    """The latest jobs, bounded in number and in bytes."""

    def __init__(self, max_jobs: int, max_bytes: int, *, is_on: bool) -> None:
        self.max_jobs = max_jobs
        self.max_bytes = max_bytes
        self.is_on = is_on
        self.clear()

    def clear(self) -> None:
        """Forget everything up to now."""
        self._bytes = 0
        self._notes: dict[str, _Notes] = {}
        self._others: deque[Request] = deque(maxlen=OTHER_REQUESTS)

    def submitted(self, job: Job) -> None:
        notes = self._notes[job.id] = _Notes(job, has_values=self.is_on)
        self._count(notes, POST_BYTES + (job.size if self.is_on else 0))

    def posted(self, kind: Literal["stream", "done", "late"], job_id: str, post: Post) -> None:
        """Note a post; without its value while recording is off, or if the job is too large."""
        if notes := self._notes.get(job_id):
            self._count(notes, POST_BYTES + (post.size if self.is_on else 0))
            if not self.is_on or notes.size > self.max_bytes:
                post = dataclasses.replace(post, value=None)
            getattr(notes, kind).append(post)

    def stopped(self, job_id: str, at_s: float) -> None:
        if notes := self._notes.get(job_id):
            notes.stops.append(at_s)

    def requested(self, request: Request, job_ids: Iterable[str]) -> None:
        """Note a worker's request with the jobs it is about; a large job keeps no bodies."""
        known = [job_id for job_id in job_ids if job_id in self._notes]
        if not known:
            self._others.append(request)
        for job_id in known:
            if (notes := self._notes.get(job_id)) is None:
                continue  # the one before it needed its room
            self._count(notes, POST_BYTES + len(request.body))
            is_large = notes.size > self.max_bytes
            notes.requests.append(dataclasses.replace(request, body=b"") if is_large else request)

    def record(self, job_id: str) -> Record:
        """Return what is known about a job. Raises `KeyError` if that is nothing."""
        notes = self._notes[job_id]
        lists = ("states", "stream", "done", "late", "stops", "requests")
        return Record(job_id, notes.input, *(tuple(getattr(notes, name)) for name in lists))

    def records(self) -> Iterator[Record]:
        """Return all that is known, in the order of submission."""
        return map(self.record, self._notes)

    def other_requests(self) -> list[Request]:
        """Return the latest requests that belong to no job."""
        return list(self._others)

    def _count(self, notes: _Notes, size: int) -> None:
        notes.size += size
        self._bytes += size
        while len(self._notes) > self.max_jobs or (
            self._bytes > self.max_bytes and len(self._notes) > 1
        ):
            oldest = self._notes.pop(next(iter(self._notes)))
            self._bytes -= oldest.size


def without_secrets(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return headers without those that authorize."""
    return tuple(item for item in headers.items() if item[0].lower() not in SECRET_HEADERS)
