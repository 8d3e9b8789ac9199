"""`python -m local_endpoint`, as a process, as one uses it."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import requests
from workers import ECHO, HTTP, QUICK

from local_endpoint.__main__ import main
from local_endpoint.progress import Progress
from waiting import wait_until

KEY = {"Authorization": "Bearer local-api-key"}


class CommandLine:
    """A run of the command; what it says is collected while it lives."""

    def __init__(self, *arguments: str, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "local_endpoint", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            env={**os.environ, "TMPDIR": str(directory)},
        )
        self.said = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            while data := os.read(output.fileno(), 65536):
                self.said += data.decode()

    def wait_for(self, pattern: str, timeout_s: float = 45) -> re.Match[str]:
        found = wait_until(
            lambda: re.search(pattern, self.said, re.DOTALL), timeout_s, lambda: self.said
        )
        assert found is not None
        return found

    def url(self) -> str:
        return self.wait_for(r"base_url +(http://\S+)/openai/v1")[1]

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait(self, timeout_s: float = 30) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def close(self) -> None:
        left = self.descendants() if self.process.poll() is None else []
        self.process.kill()
        for process in left:
            process.kill()
        self.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., CommandLine]]:
    runs: list[CommandLine] = []

    def start(*arguments: str) -> CommandLine:
        runs.append(CommandLine(*arguments, directory=tmp_path))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [
        process
        for process in processes
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


def test_hello(start) -> None:
    """The command starts a worker, shows where the endpoint is, and streams a first answer.

    Ctrl-C ends the worker and its children, even while a job runs.
    """
    run = start("--port", "0", "--hello", "hello big world", "--", *ECHO)
    run.wait_for("echo: hello big world")
    run.wait_for("Ctrl-C")
    assert "starting worker" in run.said
    assert "api_key   local-api-key" in run.said
    (curl,) = re.findall(r"  (curl .*?)\n\n", run.said, re.DOTALL)
    told = subprocess.run(shlex.split(curl.replace("\\\n", "")), capture_output=True, timeout=10)
    assert b"data: [DONE]" in told.stdout
    job = {"input": {"yields": list(range(1000)), "pause_s": 1}}
    requests.post(f"{run.url()}/run", json=job, headers=KEY, timeout=10)
    wait_until(lambda: health(run.url())["jobs"]["inProgress"])
    processes = run.descendants()
    assert len(processes) >= 2  # the worker and its heartbeat
    run.process.send_signal(signal.SIGINT)

    assert run.wait() == 0
    assert alive(processes) == []


def health(url: str) -> dict:
    return requests.get(f"{url}/health", headers=KEY, timeout=10).json()


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="a kernel without autogroups")
def test_the_worker_gives_way_to_other_sessions(start) -> None:
    """Whoever reads a stream in another terminal has the CPU before a worker that wants it all."""
    run = start("--port", "0", "--", *ECHO)
    run.wait_for("Ctrl-C")
    (worker, *_) = run.descendants()

    assert Path(f"/proc/{worker.pid}/autogroup").read_text().strip().endswith("nice 10")
    assert not Path("/proc/self/autogroup").read_text().strip().endswith("nice 10")


def test_stubborn_worker(start) -> None:
    """SIGTERM does what Ctrl-C does; what ignores it is killed soon after, with its children."""
    script = f"trap '' TERM; sleep 1000 & {shlex.join(QUICK)} stubborn"
    run = start("--port", "0", "--", "sh", "-c", script)
    run.url()
    processes = run.descendants()
    assert "sleep" in [process.name() for process in processes]
    run.process.send_signal(signal.SIGTERM)

    assert run.wait() == 0
    assert alive(processes) == []


def test_load_balancer(start) -> None:
    """A load-balancing endpoint shows its base URL; SIGTERM ends it, also while requests run."""
    run = start("--type", "load_balancer", "--port", "0", "--workers", "2", "--", *HTTP)
    url = run.wait_for(r"base_url +(http://\S+)/v1\n")[1]
    run.wait_for("Ctrl-C")
    options = {"headers": KEY, "timeout": 60, "stream": True}
    with requests.get(f"{url}/events", **options) as events:
        assert next(events.iter_content(None)).startswith(b"data: ")
        processes = run.descendants()
        assert len(processes) == 2
        run.process.send_signal(signal.SIGTERM)

        assert run.wait() == 0
    assert alive(processes) == []


def test_second_signal(start) -> None:
    """A second Ctrl-C kills at once."""
    script = f"trap '' TERM; sleep 1000 & {shlex.join(QUICK)} stubborn"
    run = start("--port", "0", "--", "sh", "-c", script)
    run.url()
    processes = run.descendants()
    run.process.send_signal(signal.SIGINT)
    run.wait_for("stopping")
    run.process.send_signal(signal.SIGINT)

    assert run.wait() == 1
    wait_until(lambda: not alive(processes))


def test_killed_endpoint(start) -> None:
    """A worker does not outlive an endpoint that is killed."""
    run = start("--port", "0", "--", *QUICK)
    run.url()
    processes = run.descendants()
    run.process.kill()
    run.wait()

    assert processes
    wait_until(lambda: not alive(processes))


def test_busy_port(start) -> None:
    """A port in use gives one sentence that names it and the flag to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = start("--port", str(port), "--", *ECHO)

        assert run.wait() == 1
        assert run.said == f"port {port} is in use: choose another with --port\n"


def test_worker_that_ends_early(start, tmp_path: Path) -> None:
    """If a worker ends before it is ready, its code and the end of its log are shown."""
    seen = tmp_path / "seen"
    script = "import os, time\nprint('phase: loading weights', flush=True)\n"
    script += f"while not os.path.exists({str(seen)!r}): time.sleep(0.01)\n"
    script += "for n in range(50): print('line', n)\nraise SystemExit(3)"
    run = start("--port", "0", "--", sys.executable, "-c", script)
    run.wait_for("loading weights")
    seen.touch()

    assert run.wait() == 1
    assert re.search(r"^starting worker: loading weights \d+ s$", run.said, re.MULTILINE)
    assert "the worker ended with exit code 3 before it was ready" in run.said
    assert run.said.endswith("\n".join(f"  line {n}" for n in range(30, 50)) + "\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--", "/no/such/command"], "cannot start /no/such/command: No such file or directory\n"),
        (["--knob", "rtt=5"], "--knob: 'rtt' is not a knob; did you mean rtt_ms="),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1:0: "),
    ],
)
def test_wrong(capsys, arguments: list[str], sentence: str) -> None:
    """What is wrong on the command line is said in a sentence, with exit code 1."""
    assert main(["--port", "0", *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_dead_worker_is_replaced(start) -> None:
    """A worker that dies is reported, and another takes its place and its job."""
    run = start("--port", "0", "--", *QUICK)
    url = run.url()
    job = {"input": {"seconds": 0.5}}
    job_id = requests.post(f"{url}/run", json=job, headers=KEY, timeout=10).json()["id"]
    wait_until(lambda: health(url)["jobs"]["inProgress"])
    run.descendants()[0].kill()
    run.wait_for(r"worker local-1 was killed by SIGKILL .* restarting it")
    run.wait_for("worker local-2 is ready")
    answer = requests.get(f"{url}/status-sync/{job_id}", headers=KEY, timeout=20).json()

    assert (answer["status"], answer["workerId"]) == ("COMPLETED", "local-2")


def test_scaling(start) -> None:
    """With a range of workers they start with the jobs, stop when idle, and all is reported."""
    knob = ["--knob", "idle_timeout_s=0.2"]
    run = start("--port", "0", "--max-workers", "2", *knob, "--", *QUICK)
    url = run.url()
    assert "ready; a worker starts when a job comes" in run.said
    state = requests.get(f"{url.removesuffix('v2/local')}control/state", timeout=10).json()
    assert (state["recording"], state["workers"]) == (False, [])
    assert [state["scaling"][key] for key in ("min", "max")] == [0, 2]
    message = {"input": {}}
    answer = requests.post(f"{url}/runsync", json=message, headers=KEY, timeout=20).json()
    assert answer["output"] == "local-1"

    run.wait_for(
        "worker local-1 starts, since jobs wait.*local-1 is ready.*"
        "local-1 is idle; stopping it.*local-1 has stopped"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workers", "2", "--max-workers", "3"], "--workers is a fixed number"),
        (["--workers", "0"], "there must be at least 1 worker"),
        (["--min-workers", "3", "--max-workers", "1"], "--min-workers at most --max-workers"),
        (["--type", "load_balancer"], "give their COMMAND after --"),
    ],
)
def test_wrong_usage(capsys, arguments: list[str], sentence: str) -> None:
    """Options that contradict each other, or lack another one, are usage errors."""
    with pytest.raises(SystemExit, match="2"):
        main(["--port", "0", *arguments])
    assert sentence in capsys.readouterr().err


def test_without_command(start, tmp_path: Path) -> None:
    """Without a command the environment is printed with which a worker elsewhere can serve."""
    run = start("--port", "0")
    run.wait_for("Ctrl-C stops")
    exports = "\n".join(line for line in run.said.splitlines() if line.startswith("export "))
    script = f"{exports}\nexport HOME={tmp_path}\nexec {shlex.join(QUICK)}"
    with subprocess.Popen(["sh", "-c", script], process_group=0) as worker:
        try:
            message = {"input": {}}
            answer = requests.post(f"{run.url()}/runsync", json=message, headers=KEY, timeout=20)
        finally:
            os.killpg(worker.pid, signal.SIGKILL)

    assert answer.json()["output"] == "worker-1"


@pytest.mark.parametrize(
    ("is_tty", "expected"),
    [
        (True, "|\r\x1b[Kstarting worker 0 s|\r\x1b[Kstarting worker: loading 0 s|\r\x1b[K"),
        (False, "|starting worker 0 s\n|starting worker: loading 0 s\n"),
    ],
)
def test_progress(is_tty: bool, expected: str) -> None:
    """Progress is redrawn in place on a terminal, and elsewhere a line for each phase."""
    written: list[str] = []
    with Progress(lambda text: written.append("|" + text), is_tty=is_tty) as progress:
        for phase in ("", "", "loading", "loading"):
            progress.phase(phase)

    assert "".join(written) == expected
