"""From the settings to a worker that takes jobs: model, engine, handler, RunPod's SDK."""

import argparse
import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from typing import NoReturn

import runpod.serverless
import uvloop

from worker.configuration.settings import Settings
from worker.engine import probe, server
from worker.handler import Worker
from worker.model import locate
from worker.start.ending import leave
from worker.start.progress import Startup


def _settings(
    environ: Mapping[str, str], baked: Mapping[str, str]
) -> tuple[Settings, argparse.Namespace]:
    """Return the settings and vLLM's arguments with what is on disk found there."""
    settings = Settings.from_env(environ, baked)
    print(settings.report(), flush=True)
    return settings, locate.locate(settings.args, locate.caches(os.environ, baked))


def check(environ: Mapping[str, str], baked: Mapping[str, str]) -> None:
    """Judge the configuration. Raises SettingsError or StartError."""
    _, args = _settings(environ, baked)
    probe.check(args)
    print("The configuration is sound.")


def run(environ: Mapping[str, str], baked: Mapping[str, str], start: Startup) -> NoReturn:
    """Start a worker and answer jobs until the platform ends it. Raises StartError.

    `environ` is the environment as the user gave it, `baked` what the image was built with.
    """
    logging.basicConfig(level=logging.INFO, format="worker: %(message)s")
    start.phase("reading the configuration")
    settings, args = _settings(environ, baked)
    with contextlib.ExitStack() as stack:
        with start.watched(settings.startup_timeout_s, lambda: leave(1)):
            start.phase("fetching the model")
            args = locate.fetch(args, environ, say=lambda line: print(line, flush=True))
            start.phase("loading the model")
            ready = stack.enter_context(server.running(args, settings.served_model_names[0]))
            worker = Worker(settings, ready)
            watch = ready.submit(worker.watch())
            start.phase("warming up")
            asyncio.run(worker.warm_up())
        start.phase("ready")
        print(start.report(), flush=True)
        # The SDK calls asyncio.run, which takes its loop from the policy.
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

        runpod.serverless.start(
            {
                "handler": worker.handle,
                "return_aggregate_stream": True,
                "concurrency_modifier": lambda _: settings.max_concurrency,
            }
        )
        watch.cancel()
    leave(0)
