"""The command line: `python -m local_endpoint [options] [-- COMMAND …]`."""

import argparse
import asyncio
import contextlib
import errno
import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path

from local_endpoint.app import listening
from local_endpoint.endpoint import Endpoint, Type
from local_endpoint.knobs import Knobs
from local_endpoint.process import WorkerError
from local_endpoint.progress import Progress

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY_ADDRESS = ("0.0.0.0", "::")
DESCRIPTION = """\
Run a RunPod serverless endpoint on this machine.

With a COMMAND, which runs a worker made with the RunPod SDK, workers are started, watched, and
ended with this program; one that prints `phase: some words` has them shown while it starts.
Without a COMMAND, the environment for a worker elsewhere is printed.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the endpoint until Ctrl-C or SIGTERM, and return the exit code."""
    options = _options(arguments)
    try:
        options.knobs = Knobs.parse(options.knob)
    except ValueError as error:
        return _complain(f"--knob: {error}")
    return asyncio.run(_run(options))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    own = list(arguments)
    command: list[str] = []
    if "--" in own:
        command = own[own.index("--") + 1 :]
        own = own[: own.index("--")]
    parser = argparse.ArgumentParser(
        prog="python -m local_endpoint",
        usage="%(prog)s [options] [-- COMMAND …]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 is a free one (%(default)s)")
    parser.add_argument(
        "--type", choices=typing.get_args(Type), default="queue", help="its kind (%(default)s)"
    )
    parser.add_argument("--id", default="local", help="the endpoint's id (%(default)s)")
    parser.add_argument("--workers", type=int, help="how many to keep running (1)")
    parser.add_argument("--min-workers", type=int, help="the least when scaling (0)")
    parser.add_argument("--max-workers", type=int, help="the most when scaling")
    parser.add_argument(
        "--cwd-per-worker", action="store_true", help="each worker in a directory of its own"
    )
    parser.add_argument(
        "--record", action="store_true", help="record values and requests; see /control/recording"
    )
    parser.add_argument(
        "--hello", metavar="PROMPT", help="once ready, ask this and show the answer"
    )
    parser.add_argument("--api-key", help="key of the customers (a fixed one on loopback)")
    parser.add_argument("--worker-key", help="key of the workers (a fixed one on loopback)")
    parser.add_argument(
        "--knob",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a detail of the platform, such as rtt_ms=50; all are at /control/knobs",
    )
    options = parser.parse_args(own)
    is_scaling = options.min_workers is not None or options.max_workers is not None
    if is_scaling and options.workers is not None:
        parser.error("--workers is a fixed number: give it, or --min-workers and --max-workers")
    fixed = 1 if options.workers is None else options.workers
    least = (options.min_workers or 0) if is_scaling else fixed
    most = max(least, 1) if options.max_workers is None and is_scaling else options.max_workers
    options.min_workers, options.max_workers = least, fixed if most is None else most
    if not 0 <= least <= options.max_workers or not options.max_workers:
        parser.error("there must be at least 1 worker, and --min-workers at most --max-workers")
    if options.type == "load_balancer" and not command:
        parser.error("a load-balancing endpoint starts its workers: give their COMMAND after --")
    options.command = command
    return options


async def _run(options: argparse.Namespace) -> int:
    is_local = options.host in LOOPBACK
    endpoint = Endpoint(
        options.knobs,
        endpoint_id=options.id,
        api_key=options.api_key or _key("local-api-key", is_fixed=is_local),
        worker_key=options.worker_key or _key("local-worker-key", is_fixed=is_local),
        is_recording=options.record,
        endpoint_type=options.type,
    )
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(listening(endpoint, options.host, options.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return _complain(f"port {options.port} is in use: choose another with --port")
            return _complain(f"cannot listen on {options.host}:{options.port}: {error.strerror}")
        if not is_local:
            _say(f"listening on {options.host}: other machines can reach this endpoint")
        return await _until_stopped(endpoint, options)


async def _until_stopped(endpoint: Endpoint, options: argparse.Namespace) -> int:
    work = asyncio.create_task(_work(endpoint, options))

    def on_signal() -> None:
        if work.cancelling():  # the second time
            if endpoint.supervisor:
                endpoint.supervisor.kill()
            os._exit(1)
        _say("\nstopping")
        work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
    try:
        await work
    except asyncio.CancelledError:
        return 0
    except WorkerError as error:
        return _complain(str(error))
    return 0


async def _work(endpoint: Endpoint, options: argparse.Namespace) -> None:
    """Run the workers, if there are any, and show how to use the endpoint, until cancelled."""
    async with contextlib.AsyncExitStack() as stack:
        if options.command:
            directory = stack.enter_context(_directory(endpoint))
            with Progress(_write, is_tty=sys.stdout.isatty()) as progress:
                workers = endpoint.working(
                    options.command,
                    directory,
                    min_workers=options.min_workers,
                    max_workers=options.max_workers,
                    own_cwd=options.cwd_per_worker,
                    say=_say,
                    show=progress.phase,
                )
                supervisor = await stack.enter_async_context(workers)
            if supervisor.logs():
                _say(f"ready; worker log: {', '.join(map(str, supervisor.logs()))}")
            else:
                _say("ready; a worker starts when a job comes")
        _say(_directions(endpoint))
        if not options.command:
            _say(_environment(endpoint, options.host))
        if options.hello:
            await _hello(endpoint, options.hello)
        _say("Ctrl-C stops everything." if options.command else "Ctrl-C stops.")
        await asyncio.Event().wait()


@contextlib.contextmanager
def _directory(endpoint: Endpoint) -> Iterator[Path]:
    """Make a folder for the workers' homes and logs; it is kept if one of them failed."""
    directory = Path(tempfile.mkdtemp(prefix="local-endpoint-"))
    try:
        yield directory
    finally:
        if not (endpoint.supervisor and endpoint.supervisor.has_failures):
            shutil.rmtree(directory, ignore_errors=True)


async def _hello(endpoint: Endpoint, prompt: str) -> None:
    """Ask the first model a question through the official client, and show its answer growing."""
    try:
        import openai
    except ImportError:
        _say("--hello needs the package openai")
        return
    async with openai.AsyncOpenAI(
        base_url=endpoint.openai_url,
        api_key=endpoint.api_key,
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),  # no proxy to this machine
    ) as client:
        try:
            model = (await client.models.list()).data[0].id
            _say(f"{prompt}\n")
            _write(f"{model}: ")
            stream = await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": prompt}], stream=True
            )
            async for chunk in stream:
                if chunk.choices:
                    _write(chunk.choices[0].delta.content or "")
            _write("\n\n")
        except (openai.OpenAIError, IndexError, TypeError) as error:
            _say(f"\nno answer: {error}")


def _directions(endpoint: Endpoint) -> str:
    return f"""
  page      {endpoint.origin}/
  base_url  {endpoint.openai_url}
  api_key   {endpoint.api_key}

  curl -N {endpoint.openai_url}/chat/completions \\
    -H 'Authorization: Bearer {endpoint.api_key}' -H 'Content-Type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "Hello!"}}], "stream": true}}'
"""


def _environment(endpoint: Endpoint, host: str) -> str:
    environ = endpoint.worker_environ("worker-1", Path("/tmp/worker-1"))
    if host in ANY_ADDRESS:
        address = endpoint.origin.removeprefix("http://").rpartition(":")[0]
        environ = {
            k: v.replace(f"//{address}:", f"//{socket.gethostname()}:") for k, v in environ.items()
        }
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in environ.items()
        if name.startswith("RUNPOD_")
    ]
    return "\n".join(
        ["A worker needs this, with a RUNPOD_POD_ID and a HOME of its own:", "", *lines, ""]
    )


def _key(fixed: str, *, is_fixed: bool) -> str:
    return fixed if is_fixed else secrets.token_urlsafe(24)


def _say(text: str) -> None:
    _write(f"{text}\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _complain(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
