"""What the public side says about jobs and workers, key by key."""

from collections import Counter
from typing import Any

from local_endpoint.jobs import Job, Jobs, Status


def status_view(job: Job) -> dict[str, Any]:
    """Give the object of `/status`, `/runsync` and webhooks."""
    view: dict[str, Any] = {}
    if job.taken_s is not None:
        view["delayTime"] = _ms(job.taken_s - job.submitted_s)
    if job.taken_s is not None and job.ended_s is not None:
        view["executionTime"] = _ms(job.ended_s - job.taken_s)
    if job.error is not None:
        view["error"] = job.error
    view["id"] = job.id
    if job.has_output:
        view["output"] = job.output
    view["status"] = job.status
    if job.worker_id is not None:
        view["workerId"] = job.worker_id
    return view


def brief_view(job: Job) -> dict[str, Any]:
    """Give the object of `/run`, `/cancel` and `/retry`."""
    return {"id": job.id, "status": job.status}


def stream_view(job: Job, chunks: list[Any]) -> dict[str, Any]:
    """Give the object of `/stream`; its array is always there, since clients iterate it blindly."""
    view = {"status": job.status, "stream": [{"output": chunk} for chunk in chunks]}
    if job.status is Status.FAILED and job.error is not None:
        view["error"] = job.error
    return view


def health_view(jobs: Jobs) -> dict[str, Any]:
    """Give the object of `/health`, with all the counters that any client asks for."""
    states = Counter(worker.state for worker in jobs.workers.values())
    return {
        "jobs": {
            "completed": jobs.completed,
            "failed": jobs.failed,
            "inProgress": jobs.in_progress,
            "inQueue": jobs.in_queue,
            "retried": jobs.retried,
        },
        "workers": {
            "idle": states["idle"],
            "initializing": states["initializing"],
            "ready": states["idle"],
            "running": states["running"],
            "throttled": 0,
            "unhealthy": states["unhealthy"],
        },
    }


def _ms(duration_s: float) -> int:
    return round(duration_s * 1000)
