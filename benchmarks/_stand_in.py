"""RunPod as one worker sees it, cheap enough to share the worker's cores while it is measured.

It answers at once or after a round trip, half of it on each way. What comes back is kept as bytes,
and read when a run is over. The local endpoint can do much more, and costs more.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from aiohttp import web

from local_endpoint.usage import output_tokens

SDK_CACHE = Path(__file__).parents[1] / ".cache" / "sdk"
PROGRESS = b'{"status": "IN_PROGRESS"'
HOLD_S = 20.0  # of a poll without an answer
START_S, RUN_S, LEAVE_S = 240.0, 120.0, 10.0  # time limits of a worker


@dataclass
class Stream:
    """When one stream was asked for, when each of its posts arrived, in seconds, and the posts."""

    asked_s: float = field(default_factory=time.monotonic)
    posts_s: list[float] = field(default_factory=list)
    posts: list[bytes] = field(default_factory=list)

    def add(self, post: bytes) -> None:
        self.posts_s.append(time.monotonic())
        self.posts.append(post)


class Platform:
    """Hands out jobs to one worker, and notes when their posts arrive."""

    def __init__(self) -> None:
        self.user_agent = ""
        self.pid = 0  # of the worker
        self.log = Path()  # of the worker
        self.is_asked = asyncio.Event()  # a poll for jobs is open
        self._half_trip_s = 0.0
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._ids = map("job-{}".format, itertools.count())
        self._streams: dict[str, Stream] = {}
        self._ended: dict[str, asyncio.Future[bytes]] = {}

    async def run(
        self, job_input: Any, streams: int, tokens: int, round_trip_ms: float
    ) -> list[Stream]:
        """Push so many jobs at once, and wait for their ends.

        Raises RuntimeError for a stream which has not so many tokens.
        """
        ended = await self.each([job_input] * streams, round_trip_ms)
        for stream, end in ended:
            outputs = [json.loads(post)["output"] for post in stream.posts]
            if output_tokens(outputs) != tokens:
                raise RuntimeError(f"a stream is not whole: {end[-500:]!r}")
        return [stream for stream, _ in ended]

    async def each(self, inputs: list[Any], round_trip_ms: float) -> list[tuple[Stream, bytes]]:
        """Push all of these at once, and return of each its posts, and how it ended."""
        self._half_trip_s = round_trip_ms / 2000
        for job_input, job_id in zip(inputs, self._ids, strict=False):
            self._streams[job_id] = Stream()
            self._ended[job_id] = asyncio.get_running_loop().create_future()
            self._queue.put_nowait({"id": job_id, "input": job_input})
        async with asyncio.timeout(RUN_S):
            ends = await asyncio.gather(*self._ended.values())
        ended = list(zip(self._streams.values(), ends, strict=True))
        self._streams.clear()
        self._ended.clear()
        return ended

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer one call of the SDK."""
        body = await request.read()
        if self._half_trip_s:
            await asyncio.sleep(self._half_trip_s)
        response = await self._handle(request, body)
        if self._half_trip_s:
            await asyncio.sleep(self._half_trip_s)
        return response

    async def _handle(self, request: web.BaseRequest, body: bytes) -> web.Response:
        call, _worker, *job = request.path.split("/")[1:]
        if call == "job-stream":
            self._streams[job[0]].add(body)
        elif call == "job-done":
            if not body.startswith(PROGRESS):
                self._ended[job[0]].set_result(body)
        elif call == "job-stop":
            await asyncio.sleep(HOLD_S)
            return web.Response(status=204)
        elif call in ("job-take", "job-take-batch"):
            return await self._take(request)
        return web.Response()

    async def _take(self, request: web.BaseRequest) -> web.Response:
        self.user_agent = request.headers["User-Agent"]
        self.is_asked.set()
        try:
            async with asyncio.timeout(HOLD_S):
                jobs = [await self._queue.get()]
        except TimeoutError:
            return web.Response(status=204)
        finally:
            self.is_asked.clear()
        most = int(request.query.get("batch_size", "0"))  # 0: one job, not in a list
        while len(jobs) < most and not self._queue.empty():
            jobs.append(self._queue.get_nowait())
        return web.json_response(jobs if most else jobs[0])


def keep_time() -> bool:
    """Let this process, and no child of it, run as soon as it can; say whether that is allowed.

    Else a busy machine may let it wait for half a second, and each post seems to come late.
    """
    try:
        as_real_time = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, as_real_time, os.sched_param(1))
    except PermissionError:
        return False
    return True


@contextlib.asynccontextmanager
async def serving(
    environ: Mapping[str, str], sdk: str, program: str = "-m worker"
) -> AsyncIterator[Platform]:
    """Start a worker on this version of the SDK, and wait until it takes jobs.

    Raises RuntimeError with the end of its log when it dies, is late, or has another SDK.
    """
    stand_in = Platform()
    runner = web.ServerRunner(web.Server(stand_in.answer, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0])
    with tempfile.TemporaryDirectory() as home:
        stand_in.log = log = Path(home, "worker.log")
        worker = await asyncio.create_subprocess_shell(
            f"exec {sys.executable} {program} >{log} 2>&1",
            env=os.environ
            | _environ(url)
            | {"PYTHONPATH": sdk_path(sdk), "TMPDIR": home}
            | environ,
            cwd=home,
            preexec_fn=os.setpgrp,  # a session would be an autogroup
        )
        stand_in.pid = worker.pid
        asked = asyncio.create_task(stand_in.is_asked.wait())
        died = asyncio.create_task(worker.wait())
        try:
            await asyncio.wait((asked, died), timeout=START_S, return_when="FIRST_COMPLETED")
            if f"SDK/{sdk} " not in stand_in.user_agent:
                end = log.read_bytes()[-4000:].decode(errors="replace")  # noqa: ASYNC240
                raise RuntimeError(f"no worker with SDK {sdk}:\n{end}")
            yield stand_in
        finally:
            asked.cancel()
            with contextlib.suppress(ProcessLookupError):
                worker.terminate()
            await runner.cleanup()  # which ends the polls that the worker waits for
            await asyncio.wait((died,), timeout=LEAVE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            await died


def _environ(url: str) -> dict[str, str]:
    return {
        "RUNPOD_WEBHOOK_GET_JOB": f"{url}/job-take/$ID?gpu=NONE",
        "RUNPOD_WEBHOOK_POST_OUTPUT": f"{url}/job-done/$RUNPOD_POD_ID/$ID?gpu=NONE",
        "RUNPOD_WEBHOOK_POST_STREAM": f"{url}/job-stream/$RUNPOD_POD_ID/$ID?gpu=NONE",
        "RUNPOD_WEBHOOK_PING": f"{url}/ping/$RUNPOD_POD_ID?gpu=NONE",
        "RUNPOD_AI_API_KEY": "key",
        "RUNPOD_POD_ID": "worker-1",
        "RUNPOD_ENDPOINT_ID": "bench",
        "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
        "RUNPOD_SKIP_GPU_CHECK": "true",
        "NO_PROXY": "127.0.0.1",
    }


def sdk_path(version: str) -> str:
    """Return what to put before the installed packages, for this version of RunPod's SDK.

    It is fetched where it is neither installed nor kept from an earlier time. Raises
    CalledProcessError where pip does not get it.
    """
    if version == metadata.version("runpod"):
        return ""
    folder = SDK_CACHE / version
    if not folder.exists():
        SDK_CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SDK_CACHE) as scratch:
            pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target"]
            subprocess.run([*pip, f"{scratch}/sdk", f"runpod=={version}"], check=True)
            os.rename(f"{scratch}/sdk", folder)
    return str(folder)
