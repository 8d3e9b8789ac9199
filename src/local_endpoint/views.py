"""The objects with which the public side describes jobs and workers."""

from collections import Counter
from typing import Any

from local_endpoint.job import Job, Status
from local_endpoint.jobs import Jobs


def status_view(job: Job) -> dict[str, Any]:
    """Return the object of `/status`, `/runsync` and webhooks."""
    run = job.run
    view: dict[str, Any] = {}
    if run.taken_s is not None:
        view["delayTime"] = _ms(run.taken_s - job.submitted_s)
    if run.taken_s is not None and run.ended_s is not None:
        view["executionTime"] = _ms(run.ended_s - run.taken_s)
    if run.error is not None:
        view["error"] = run.error
    view["id"] = job.id
    if run.has_output:
        view["output"] = run.output
    view["status"] = job.status
    if run.worker_id is not None:
        view["workerId"] = run.worker_id
    return view


def brief_view(job: Job) -> dict[str, Any]:
    """Return the object of `/run`, `/cancel` and `/retry`."""
    return {"id": job.id, "status": job.status}


def stream_view(job: Job, chunks: list[Any]) -> dict[str, Any]:
    """Return the object of `/stream`; its array is always there, as clients expect it."""
    view = {"status": job.status, "stream": [{"output": chunk} for chunk in chunks]}
    if job.status is Status.FAILED and job.run.error is not None:
        view["error"] = job.run.error
    return view


def health_view(jobs: Jobs) -> dict[str, Any]:
    """Return the object of `/health`, with all the counters that any client asks for."""
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
