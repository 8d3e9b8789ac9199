"""Jobs that have ended, and how many of them are kept."""

from collections import OrderedDict
from collections.abc import Iterator

from local_endpoint.job import Job


class Finished:
    """Jobs in the order of their end, with the sum of their bytes."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._bytes = 0

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def add(self, job: Job, most: int, most_bytes: int) -> None:
        """Keep one more job; the oldest go while there are too many, or too many bytes."""
        self._jobs[job.id] = job
        self._bytes += job.weight
        while len(self._jobs) > most or (self._bytes > most_bytes and len(self._jobs) > 1):
            _, oldest = self._jobs.popitem(last=False)
            self._bytes -= oldest.weight

    def remove(self, job: Job) -> None:
        if self._jobs.pop(job.id, None) is not None:
            self._bytes -= job.weight

    def set_chunk_bytes(self, job: Job, size: int) -> None:
        """Change how many bytes of a job wait to be read, whether it has ended or not."""
        if job.id in self._jobs:
            self._bytes += size - job.run.chunk_bytes
        job.run.chunk_bytes = size
