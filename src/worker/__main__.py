"""The command line: `python -m worker`.

vLLM reads the environment when it is imported, so nothing heavy is imported before `main` has put
the environment in order.
"""

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from worker.configuration.environ import BAKED, process_environ, speaks_http
from worker.errors import StartError
from worker.lifetime import begin_fork_server
from worker.logs import to_stderr, write_json
from worker.processor.reports import Folder
from worker.sentences import hide, hide_in_logs
from worker.start.ending import fail, leave, versions
from worker.start.progress import Startup

# What a container has of a GPU: NVIDIA's, the same below Windows, and AMD's.
DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
HAS_GPU = any(Path(device).exists() for device in DEVICES)

# Here, because the engine's processes import this file before vLLM, as the worker does. On a CPU
# each would say, three times, that Triton is absent, which only GPUs need.
hide_in_logs()
write_json(os.environ.get("LOG_FORMAT", ""))
if not HAS_GPU:
    for name in ("triton_utils.importing", "platforms.cpu", "config.vllm"):
        logging.getLogger(f"vllm.{name}").addFilter(
            lambda record: "Triton" not in record.getMessage()
        )

USAGE = (
    "python -m worker [--serve | --local | --check | --doctor [--json] | --help | --version]; "
    "everything else is an environment variable."
)


def main() -> int:
    """Run `python -m worker`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m worker", add_help=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--doctor", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--local", action="store_true")
    options, others = parser.parse_known_args()
    if options.local:  # the endpoint starts the worker; other options are its own
        python, its = sys.executable, [word for word in sys.argv[1:] if word != "--local"]
        os.execv(python, [python, "-m", "local_endpoint", *its, "--", python, "-m", "worker"])
    if options.version:
        print(versions())
        return 0
    unknown = [word for word in others if not word.startswith("--rp_")]  # those are the SDK's
    if unknown:
        print(hide(f"error: {unknown[0]!r} is no option. {USAGE}"), file=sys.stderr)
        return 1
    is_serving = not (options.help or options.check or options.doctor)
    try:
        if options.serve:
            os.environ["WORKER_MODE"] = "load_balancer"
        environ = dict(os.environ)
        baked = json.loads(BAKED.read_text()) if BAKED.exists() else {}
        for name, value in process_environ(environ, baked).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if options.doctor:
            from worker.doctor import command

            return command.run(environ, baked, is_json=options.json)
        if not is_serving and not HAS_GPU:
            # Else vLLM built for a GPU knows no device, and its parser fails.
            os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
        start, ports = Startup(), None
        if is_serving:
            to_stderr()
            # Until the SDK takes it over; a process with the id 1 would ignore the signal.
            signal.signal(signal.SIGTERM, lambda *_: leave(128 + signal.SIGTERM))
            if speaks_http(environ):
                from worker.start.web import Ports

                ports = Ports(environ)
            else:
                _refuse_no_endpoint(environ, others)
            start.phase("importing vLLM")
            folder = Folder()
            if "VLLM_WORKER_MULTIPROC_METHOD" not in os.environ:
                begin_fork_server("worker.engine.preloaded", folder.path)
        from worker.configuration.settings import help_text
        from worker.start import serve

        if options.help:
            print(f"{USAGE}\n\n{help_text()}")
        elif options.check:
            serve.check(environ, baked)
        else:
            serve.run(environ, baked, start, folder, ports)
    except (Exception, SystemExit) as error:
        fail(error)
    return 0


def _refuse_no_endpoint(environ: Mapping[str, str], words: list[str]) -> None:
    if "--rp_serve_api" in words or environ.get("RUNPOD_REALTIME_PORT", "0") != "0":
        raise StartError(
            "The SDK's own servers (--rp_serve_api, RUNPOD_REALTIME_PORT) cannot run this worker: "
            "`python -m local_endpoint -- python -m worker` is an endpoint on your own machine."
        )
    if "RUNPOD_WEBHOOK_GET_JOB" not in environ:
        raise StartError(
            "There is no endpoint to take jobs from: RUNPOD_WEBHOOK_GET_JOB is not set. On RunPod "
            "it is set for you. Elsewhere `python -m worker --serve` answers HTTP requests on "
            "PORT, and `python -m worker --local` is an endpoint with a page on this machine."
        )


if __name__ == "__main__":
    sys.exit(main())
