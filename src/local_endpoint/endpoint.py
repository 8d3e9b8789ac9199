"""One endpoint: its name, keys and knobs, and the state that its sides share."""

import asyncio
import contextlib
import os
import site
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from local_endpoint.faults import Faults
from local_endpoint.jobs import Jobs
from local_endpoint.knobs import Knobs
from local_endpoint.load_balancer import LoadBalancer
from local_endpoint.recording import Recording
from local_endpoint.supervisor import Supervisor
from local_endpoint.waiting import Waiters
from local_endpoint.webhooks import Webhooks

TICK_S = 0.1

Type = Literal["queue", "load_balancer"]


class Endpoint:
    """The state of one endpoint. Lives on one event loop; `faults` may be used from any thread.

    `url` is known once it listens.
    """

    def __init__(
        self,
        knobs: Knobs,
        *,
        endpoint_id: str,
        api_key: str,
        worker_key: str,
        is_recording: bool = True,
        endpoint_type: Type = "queue",
    ) -> None:
        self.id = endpoint_id
        self.type = endpoint_type
        self.api_key = api_key
        self.worker_key = worker_key
        self.knobs = knobs
        self.origin = ""
        self.waiters = Waiters()
        self.faults = Faults()
        self.started_s = time.monotonic()
        self.recording = Recording(knobs.record_jobs, knobs.record_bytes, is_on=is_recording)
        self.webhooks = Webhooks(knobs.webhook_retry_s)
        self.supervisor: Supervisor | None = None  # of the workers that are started here
        self.jobs = Jobs(
            knobs,
            time.monotonic,
            wake=self.waiters.wake,
            on_submit=self.recording.submitted,
            on_end=self.webhooks.send,
        )
        self.balancer: LoadBalancer | None = None
        if endpoint_type == "load_balancer":
            self.balancer = LoadBalancer(self.jobs, self.waiters, self.recording)
        self.set_knobs(knobs)

    @property
    def url(self) -> str:
        return self.origin if self.balancer else f"{self.origin}/v2/{self.id}"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1" if self.balancer else f"{self.url}/openai/v1"

    def set_knobs(self, knobs: Knobs) -> None:
        """Behave differently from now on; a request that already waits does so as before."""
        if self.balancer:  # the platform has no other for it
            knobs = knobs.replace({"scaler": "REQUEST_COUNT"})
        self.knobs = self.jobs.knobs = knobs
        self.recording.max_jobs, self.recording.max_bytes = knobs.record_jobs, knobs.record_bytes
        self.webhooks.retry_s = knobs.webhook_retry_s

    def worker_environ(self, worker_id: str, home: Path | str) -> dict[str, str]:
        """Return the variables that make a worker serve this endpoint.

        `home` becomes its HOME, since a profile in `~/.runpod` would win over the key given
        here; the caller's caches (models, compiled kernels, packages) stay reachable.
        """
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        no_proxy = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
        hosts = ",".join(filter(None, [no_proxy, "127.0.0.1", "localhost"]))
        return {
            **(self.balancer.environ(worker_id) if self.balancer else self._webhooks()),
            "RUNPOD_AI_API_KEY": self.worker_key,
            "RUNPOD_POD_ID": worker_id,
            "RUNPOD_ENDPOINT_ID": self.id,
            "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
            "RUNPOD_SKIP_GPU_CHECK": "true",
            "RUNPOD_LOG_LEVEL": os.environ.get("RUNPOD_LOG_LEVEL", "INFO"),
            "HOME": str(home),
            "XDG_CACHE_HOME": str(caches),
            "HF_HOME": os.environ.get("HF_HOME") or str(caches / "huggingface"),
            "PYTHONUSERBASE": site.getuserbase(),
            "NO_PROXY": hosts,
            "no_proxy": hosts,
        }

    def _webhooks(self) -> dict[str, str]:
        """Return where RunPod's SDK gets its jobs, and posts what comes of them.

        $ID is the worker in the first, and the job in the second and third; the SDK sees to it.
        """
        return {
            "RUNPOD_WEBHOOK_GET_JOB": f"{self.url}/job-take/$ID?gpu=LOCAL",
            "RUNPOD_WEBHOOK_POST_OUTPUT": f"{self.url}/job-done/$RUNPOD_POD_ID/$ID?gpu=LOCAL",
            "RUNPOD_WEBHOOK_POST_STREAM": f"{self.url}/job-stream/$RUNPOD_POD_ID/$ID?gpu=LOCAL",
            "RUNPOD_WEBHOOK_PING": f"{self.url}/ping/$RUNPOD_POD_ID?gpu=LOCAL",
            "RUNPOD_PING_INTERVAL": "1000",
        }

    @contextlib.asynccontextmanager
    async def working(
        self,
        command: Sequence[str],
        directory: Path,
        show: Callable[[str], None] = lambda _phase: None,
        **options: Any,
    ) -> AsyncIterator[Supervisor]:
        """Run workers, with the options of `Supervisor`: inside the block the minimum is ready.

        After the block all are gone. Raises `WorkerError` if one does not start.
        """
        supervisor = Supervisor(self.jobs, self.worker_environ, command, directory, **options)
        self.supervisor = supervisor
        try:
            await supervisor.start(show)
            yield supervisor
        finally:
            self.close()  # a worker ends only when its polls are answered
            await supervisor.stop()

    async def keep_time(self) -> None:
        """Do what is due, forever."""
        while True:
            await asyncio.sleep(TICK_S)
            self.jobs.tick()

    def close(self) -> None:
        """Answer all long polls, and hold none from now on."""
        self.waiters.close()
