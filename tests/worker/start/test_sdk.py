"""RunPod's real SDK on our event loop, in worker processes without an engine.

The installed SDK is tested, and those in the folders of SDK_FOLDERS (as PATH is written), each made
by `pip install --no-deps --target FOLDER runpod==VERSION`.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import requests
from aiohttp import web
from aiohttp.test_utils import TestServer

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint, Record
from waiting import is_alive, wait_until

PROGRAM = Path(__file__).with_name("sdk_worker.py")
FOLDERS = [folder for folder in os.environ.get("SDK_FOLDERS", "").split(os.pathsep) if folder]
TIMEOUT_S = 30.0
SENTENCE = "There is no model called nobody/nothing."
HOLD_S = 60.0  # a worker that waited for the answer of a poll would fail each test of its end

pytestmark = pytest.mark.timeout(90)


def version(folder: str) -> str:
    """Return the version of the SDK in a folder, or of the installed one."""
    if not folder:
        return importlib.metadata.version("runpod")
    (found,) = importlib.metadata.distributions(name="runpod", path=[folder])
    return found.version


@dataclass(frozen=True)
class Running:
    """One worker process: its endpoint, and its log so far."""

    endpoint: LocalEndpoint
    process: subprocess.Popen[bytes]
    log_file: Path

    def log(self) -> str:
        return self.log_file.read_text()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not is_so():
            assert time.monotonic() < deadline_s, self.log()[-4000:]
            time.sleep(0.005)

    def submit(self, number: int = 1, **order: Any) -> list[str]:
        return [self.endpoint.submit(order) for _ in range(number)]

    def records(self, job_ids: list[str]) -> list[Record]:
        return [self.endpoint.wait_for_end(job_id, TIMEOUT_S) for job_id in job_ids]

    def exit_code(self) -> int:
        return self.process.wait(TIMEOUT_S)


Start = Callable[..., contextlib.AbstractContextManager[Running]]


@pytest.fixture(params=["", *FOLDERS], ids=[version(folder) for folder in ["", *FOLDERS]])
def folder(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def is_2(folder: str) -> bool:
    return not version(folder).startswith("1.")


@pytest.fixture
def start(folder: str) -> Start:
    """Start a worker on one of the SDKs, with jobs that wait `before`; see `sdk_worker.py`."""

    @contextlib.contextmanager
    def start(
        kind: str = "plain", before: int = 0, pause_s: float = 1, **environ: str
    ) -> Iterator[Running]:
        with (
            tempfile.TemporaryDirectory() as home,
            local_endpoint.serve(Knobs(take_hold_s=HOLD_S, stop_hold_s=HOLD_S)) as endpoint,
        ):
            for _ in range(before):
                endpoint.submit({"yields": 1, "pause_s": pause_s})
            path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
            log_file = Path(home, "log")
            with log_file.open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, PROGRAM, kind],
                    env=os.environ
                    | endpoint.worker_environ("worker-1", home)
                    | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
                    | environ,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
            try:
                yield Running(endpoint, process, log_file)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(TIMEOUT_S)

    return start


def outputs(record: Record) -> Any:
    return record.done[-1].value.get("output")


def test_jobs_and_the_engine_share_one_loop(start: Start) -> None:
    """Jobs run on the loop made before the SDK started; a task made on it before goes on."""
    with start() as worker:
        (record,) = worker.records(worker.submit(probe=True))

        assert [{"same_loop": True, "uvloop": True}, {"task_runs": True}] == outputs(record)


@pytest.mark.parametrize(("given", "used"), [({}, "off"), ({"RUNPOD_LOG_CAPTURE": "all"}, "all")])
def test_the_log_is_not_captured(start: Start, given: dict[str, str], used: str) -> None:
    """The SDK puts no log into errors that callers see, unless the user asked for it."""
    with start(**given) as worker:
        (record,) = worker.records(worker.submit(variable="RUNPOD_LOG_CAPTURE"))

        assert [used] == outputs(record)


def test_posts_that_are_lost_are_counted(start: Start) -> None:
    """The SDK tries a post three times and goes on without it; the metric knows of it."""
    with start() as worker:
        worker.endpoint.faults.add("job-stream", status=500, times=3)
        worker.records(worker.submit(yields=2))
        worker.process.send_signal(signal.SIGTERM)

        assert 0 == worker.exit_code()
        assert "undelivered: 1.0" in worker.log().splitlines()


def test_an_sdk_with_a_loop_of_its_own_gets_no_job(start: Start) -> None:
    """When the SDK's job loop is not the engine's, the worker ends with a sentence, and no job."""
    with start("own-loop", before=1) as worker:
        code = worker.exit_code()

        assert 1 == code
        assert "runs its jobs on another event loop" in worker.log()
        assert worker.endpoint.records()[0].taken_s is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_delivers_all_streams(
    start: Start, number: signal.Signals, tmp_path: Path
) -> None:
    """A stop with 64 streams delivers every yield, leaves the loop alive, exits 0, leaves nobody.

    It comes twice, as some init programs send it, and the second changes nothing.
    """
    gate = tmp_path / "gate"
    with start(RUNPOD_LOG_LEVEL="DEBUG") as worker:
        jobs = worker.submit(64, yields=20, gate=str(gate))
        worker.wait_for(lambda: all(worker.endpoint.record(job).stream for job in jobs))
        children = psutil.Process(worker.process.pid).children(recursive=True)
        worker.process.send_signal(number)
        worker.wait_for(lambda: "Kill worker" in worker.log())
        worker.process.send_signal(number)
        (late,) = worker.submit(yields=1)
        gate.touch()
        code = worker.exit_code()
        records = worker.records(jobs)

        assert 0 == code, worker.log()[-4000:]
        assert [list(range(20))] * 64 == [outputs(record) for record in records]
        assert [list(range(20))] * 64 == [[p.value for p in r.stream] for r in records]
        assert "after serve: alive\nundelivered: 0.0\nclosed\n" in worker.log()
        assert "never retrieved" not in worker.log()
        assert "was destroyed" not in worker.log()
        assert children, "the heartbeat is a process"
        wait_until(lambda: not any(map(is_alive, children)), timeout_s=2)
        # It waits, or was handed to the poll that the signal just closed: the platform's to notice.
        assert worker.endpoint.record(late).status.value in ("IN_QUEUE", "IN_PROGRESS")
        assert not worker.endpoint.record(late).stream


def ping_of(worker: Running) -> psutil.Process:
    (ping,) = psutil.Process(worker.process.pid).children()
    return ping


def test_a_worker_whose_ping_ended_leaves(start: Start, tmp_path: Path) -> None:
    """It delivers the running job, takes no other, and exits non-zero with a sentence."""
    gate = tmp_path / "gate"
    with start() as worker:
        (running,) = worker.submit(yields=3, gate=str(gate))
        worker.wait_for(lambda: bool(worker.endpoint.record(running).stream))
        ping_of(worker).kill()
        worker.wait_for(lambda: "ping process ended" in worker.log())
        (late,) = worker.submit(yields=1)
        gate.touch()
        code = worker.exit_code()
        (record,) = worker.records([running])

        assert 1 == code
        assert [0, 1, 2] == outputs(record)
        assert "IN_QUEUE" == worker.endpoint.record(late).status.value
        assert worker.log().splitlines()[-1].startswith("error: ")


def test_the_ping_goes_on_until_the_worker_ends(start: Start) -> None:
    """A signal to all of the worker's processes does not end the ping; the worker's death does."""
    with start() as worker:
        worker.endpoint.wait_ready(timeout_s=TIMEOUT_S)
        ping = ping_of(worker)
        for number in (signal.SIGTERM, signal.SIGINT):
            ping.send_signal(number)
        (record,) = worker.records(worker.submit(yields=1))

        assert [0] == outputs(record)
        assert is_alive(ping)

        worker.process.kill()
        wait_until(lambda: not is_alive(ping), timeout_s=2)


def test_an_idle_worker_leaves_at_once(start: Start) -> None:
    """A stop does not wait for the polls that are held, and a job pushed then is not taken."""
    with start() as worker:
        worker.endpoint.wait_ready(timeout_s=TIMEOUT_S)
        worker.process.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        code = worker.exit_code()

        assert 0 == code, worker.log()[-4000:]
        assert HOLD_S / 2 > time.monotonic() - began_s


def test_a_stop_cancels_one_job(start: Start) -> None:
    """A cancelled job's task is cancelled; its neighbour goes on, and its slot is free again."""
    with start(CONCURRENCY="2") as worker:
        stopped, other = worker.submit(2, yields=100, pause_s=0.02)
        worker.wait_for(lambda: bool(worker.endpoint.record(stopped).stream))
        answer = requests.post(
            f"{worker.endpoint.url}/cancel/{stopped}",
            headers={"Authorization": f"Bearer {worker.endpoint.api_key}"},
            timeout=TIMEOUT_S,
        )
        answer.raise_for_status()
        worker.wait_for(lambda: f"job {stopped} stopped" in worker.log())
        next_record, other_record = worker.records([*worker.submit(yields=1), other])

        assert [0] == outputs(next_record)
        assert list(range(100)) == outputs(other_record)
        assert not worker.endpoint.record(stopped).done


def test_a_stop_before_the_first_step() -> None:
    """A job that is stopped in the moment it is taken leaves its slot free."""
    from worker.start import sdk

    async def main() -> dict[str, Any]:
        async def handler(_: Any) -> None:
            await asyncio.Event().wait()

        jobs = sdk.JobLoop({"handler": handler})
        job = {"id": "job-1", "input": {}}
        jobs.jobs_queue.put_nowait(job)
        jobs.jobs_queue.get_nowait()
        jobs.job_progress.add(job)
        task = asyncio.create_task(jobs.handle_job(None, job))
        jobs.jobs_tasks["job-1"] = task
        assert await jobs.stop_job("job-1")
        await asyncio.wait([task], timeout=TIMEOUT_S)
        assert task.cancelled()
        return dict(jobs.jobs_tasks)

    assert {} == asyncio.run(main())


def test_the_second_of_a_burst_does_not_wait(start: Start) -> None:
    """With 60 of 100 slots just filled the next job is asked for at once, and answered."""
    with start(before=60, pause_s=600, RUNPOD_LOG_LEVEL="DEBUG") as worker:
        first = worker.endpoint.records()
        worker.wait_for(lambda: all(worker.endpoint.record(job.job_id).stream for job in first))
        (record,) = worker.records(worker.submit(yields=1))

        assert [0] == outputs(record)
        assert "Queue is full" not in worker.log()


@pytest.mark.parametrize("kind", ["published", "renamed"])
def test_without_the_override_everything_works(start: Start, kind: str) -> None:
    """On an SDK that counts otherwise nothing is changed, one line says so; all is answered."""
    with start(kind, before=60, RUNPOD_LOG_LEVEL="DEBUG") as worker:
        records = worker.records([record.job_id for record in worker.endpoint.records()])
        worker.process.send_signal(signal.SIGTERM)
        code = worker.exit_code()

        assert 0 == code
        assert [[0]] * 60 == [outputs(record) for record in records]
        assert 1 == worker.log().count("counts its jobs in a new way")
        # What the override is for: the SDK sleeps with 40 slots free.
        assert (kind == "published") == ("Queue is full" in worker.log())


def test_a_full_worker_takes_the_next_job_when_a_slot_is_free(start: Start) -> None:
    """40 jobs on 4 slots: never more than 4 are taken at once, and none waits for a second."""
    with start(before=40, pause_s=0.02, CONCURRENCY="4", RUNPOD_LOG_LEVEL="DEBUG") as worker:
        records = worker.records([record.job_id for record in worker.endpoint.records()])
        moves = sorted(
            move for record in records for move in ((record.taken_s, 1), (record.done_s, -1))
        )
        most = held = 0
        for _, step in moves:
            held += step
            most = max(most, held)

        assert "Queue is full. Retrying soon." not in worker.log()
        assert 4 == most


def test_a_failed_start_fails_one_job_of_fifty(start: Start, is_2: bool) -> None:
    """On 2.0 exactly one waiting job is taken, and failed with the sentence; 1.12 takes none."""
    with start("failed", before=50, SENTENCE=SENTENCE) as worker:
        code = worker.exit_code()
        children = [
            process
            for process in psutil.process_iter(["pid"])
            if _is_in_session(process, worker.process.pid)
        ]
        wait_until(lambda: not any(map(is_alive, children)), timeout_s=2)
        records = [record for record in worker.endpoint.records() if record.taken_s is not None]

        assert 1 == code
        assert worker.log().endswith(f"error: {SENTENCE}\n")
        assert (1 if is_2 else 0) == len(records)
        for record in records:
            error = json.loads(record.done[0].value["error"])
            assert "FAILED" == record.status.value
            assert SENTENCE == error["error_message"]
            assert "StartFailed" == error["error_type"]
            assert "logs" not in error
            assert ".py" not in record.done[0].value["error"]


def _is_in_session(process: psutil.Process, session: int) -> bool:
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        return os.getsid(process.pid) == session
    return False


def test_an_idle_workers_first_post(start: Start, folder: str) -> None:
    """Print how long an idle worker needs from a job's push to its first post."""
    with start(RUNPOD_LOG_LEVEL="ERROR") as worker:
        worker.endpoint.wait_ready(timeout_s=TIMEOUT_S)
        times_ms = []
        for _ in range(20):
            (record,) = worker.records(worker.submit(yields=1))
            assert record.first_stream_s is not None
            times_ms.append((record.first_stream_s - record.submitted_s) * 1000)
        times_ms.sort()
        print(f"SDK {version(folder)}: first post after {times_ms[10]:.0f} ms (median of 20),")
        print(f"worst {times_ms[-1]:.0f} ms")


def test_our_start_does_what_the_sdks_does(folder: str) -> None:
    """JobLoop.start replaces the SDK's: what else the SDK does there would be lost in silence."""
    known = {
        "_handle_uncaught_exception",  # only a log line; ours goes up to the caller
        *("sys", "excepthook", "ValueError", "log", "warn"),
        *("signal", "SIGTERM", "SIGINT", "handle_shutdown"),
        *("asyncio", "run"),
    }
    code = (
        "import inspect, runpod.serverless.worker as w; from runpod.serverless.modules import "
        "rp_scale as s; print(*s.JobScaler.start.__code__.co_names); "
        "print('rp_scale.JobScaler(config)' in inspect.getsource(w.run_worker), "
        "'job_scaler.start()' in inspect.getsource(w.run_worker))"
    )
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    names, seams = done.stdout.splitlines()[-2:]

    assert set() == set(names.split()) - known, "JobScaler.start does more than JobLoop.start"
    assert "True True" == seams, "run_worker makes or starts its JobScaler in another way"


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_a_deep_job_does_not_lose_its_batch(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that come with one that nests too deep for Python's parser are taken, and it as well."""
    from runpod.http_client import AsyncClientSession
    from runpod.serverless.modules import rp_job

    from worker import request
    from worker.batching import BatchSizes
    from worker.errors import RequestError
    from worker.start import sdk

    deep = '{"prompt": "\\"]}", "a": ' + '{"b": [' * depth + "]}" * depth + ', "c": 1}'
    batch = f'[{{"id": "1", "input": {{"prompt": "["}}}}, {{"id": "2", "input": {deep}}}]'

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=batch, content_type="application/json")

    async def take() -> Any:
        app = web.Application()
        app.router.add_get("/job-take-batch/w", answer)
        async with TestServer(app) as server, AsyncClientSession() as session:
            monkeypatch.setattr(rp_job, "JOB_GET_URL", str(server.make_url("/job-take/w?gpu=x")))
            session._response_class = sdk.Take
            return await rp_job.get_job(session, 2)

    first, second = asyncio.run(take())

    assert {"id": "1", "input": {"prompt": "["}} == first
    assert ("2", '"]}', 1) == (second["id"], second["input"]["prompt"], second["input"]["c"])
    with pytest.raises(RequestError, match="MAX_INPUT_DEPTH"):
        request.read(second, BatchSizes())


def test_a_platform_that_is_away_is_not_asked_without_a_pause() -> None:
    """The SDK asks again at once, for ever: a lost network would cost a core and fill the log."""
    from worker.start import sdk

    asked = 0

    async def fails(*_: Any) -> None:
        nonlocal asked
        asked += 1
        raise ConnectionRefusedError("nobody is there")

    async def ask() -> None:
        jobs = sdk.JobLoop({"jobs_fetcher": fails, "concurrency_modifier": lambda _: 1})
        asking = asyncio.create_task(jobs.get_jobs(SimpleNamespace()))
        await asyncio.sleep(0.3)
        jobs.kill_worker()
        await asking

    asyncio.run(ask())

    assert 1 <= asked <= 5
