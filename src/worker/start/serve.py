"""From the settings to a worker that takes jobs: model, engine, handler, RunPod's SDK."""

import argparse
import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import uvloop
from starlette.middleware.cors import CORSMiddleware

from worker import metrics, record
from worker.batching import BatchSizes
from worker.call import Call
from worker.configuration.settings import Settings
from worker.doctor import certain
from worker.doctor import measured as kept
from worker.door import Door
from worker.engine import command_line, measured, media, probe, server
from worker.engine.facts import facts_of, model_defaults, room
from worker.engine.server import Engine
from worker.errors import StartError
from worker.facts import Facts
from worker.generation import inherited
from worker.handler import Handler
from worker.logs import say
from worker.model import locate
from worker.processor import reports
from worker.request import Request
from worker.start import answering, ending, sdk
from worker.start.ending import fail, leave
from worker.start.progress import Startup
from worker.storage.stores import Stores

if TYPE_CHECKING:
    from worker.start.web import Ports

log = logging.getLogger("worker")


def check(environ: Mapping[str, str], baked: Mapping[str, str]) -> None:
    """Judge the configuration. Raises SettingsError or StartError."""
    _, args = _settings(environ, baked)
    unjudged = probe.check(locate.fetch(args, environ, say, weights=False))
    print("\n".join(line for line in (unjudged, "The configuration is sound.") if line))


def run(
    environ: Mapping[str, str],
    baked: Mapping[str, str],
    start: Startup,
    folder: reports.Folder,
    ports: "Ports | None",
) -> NoReturn:
    """Start a worker and answer requests until the platform ends it, or say why it failed.

    `environ` is the environment as the user gave it, `baked` what the image was built with,
    `folder` the place of the processes' files, and `ports` is where requests come in; without them
    they are RunPod's jobs.
    """
    tell = None if ports else sdk.fail_one_job
    loop = uvloop.new_event_loop()  # for everything: engine, app, jobs
    asyncio.set_event_loop(loop)
    # Whatever fails ends the process inside the stack, whose end would wait for the engine's.
    with ExitStack() as stack:
        try:
            start.phase("reading the configuration")
            settings, args = _settings(environ, baked)
            place = kept.place(environ, settings.args, measured.card())
            if settings.own.metrics_port:
                metrics.serve(settings.own.metrics_port)
            with start.watched(
                settings.own.startup_timeout_s,
                lambda sentence: fail(StartError(sentence), tell=tell),
            ):
                start.phase("fetching the model")
                judge = partial(certain.refuse, args) if settings.own.doctor else None
                args = locate.fetch(args, environ, say, before=judge)
                if more := probe.idle_gpus(args, probe.gpus()):
                    log.warning(more)
                if not settings.own.allow_private_media:
                    media.use_public_addresses()
                start.phase("loading the model")
                served = settings.served_model_names[0]
                engine = stack.enter_context(
                    server.running(args, served, loop, settings.own, folder)
                )
                stores = answering.places_of_files(settings.own)
                adapters = answering.adapters_on_demand(settings, engine, environ, stores, stack)
                engine = replace(engine, adapters=adapters)
                facts = _facts(settings, engine)
                dialect = answering.calls(settings, engine, facts, stores)
                handler = _handler(settings, dialect, stores)
                door = _door(settings, dialect)
                watch = loop.create_task(ending.watch(engine, door if ports else handler))
                start.phase("warming up")
                loop.run_until_complete(_warm_up(handler, engine, facts))
        except (Exception, SystemExit) as error:
            fail(error, tell=tell)
        start.phase("ready")
        metrics.begin()
        for name, seconds in start.took().items():
            metrics.START.labels(name).set(seconds)
        lag = loop.create_task(metrics.watch_loop())
        say(start.report())
        measuring = loop.create_task(_keep_measured(settings, engine, start, place))
        try:
            if ports:
                ports.serve(
                    CORSMiddleware(door, **_cors(args)),
                    loop,
                    is_over=lambda: engine.is_dead,
                    grace_s=settings.own.shutdown_grace_s,
                )
            else:
                sdk.serve(handler.handle, loop, _concurrency(settings, engine))
        except Exception as error:
            fail(error)
        # Jobs may have failed with the engine after the platform had told the worker to end.
        code = int(engine.is_dead)
        for task in (watch, lag, measuring):
            task.cancel()
    record.flush()
    leave(code)


def _settings(
    environ: Mapping[str, str], baked: Mapping[str, str]
) -> tuple[Settings, argparse.Namespace]:
    """Return the settings and vLLM's arguments with what is on disk found there."""
    settings = Settings.from_env(environ, baked)
    say(settings.report())
    return settings, locate.locate(settings.args, locate.caches(os.environ, baked))


def _facts(settings: Settings, engine: Engine) -> Facts:
    config = engine.client.vllm_config
    own = settings.own
    facts = facts_of(
        config,
        limits=own,
        why_no_chain=engine.why_no_chain,
        merges=own.stream_merge,
        receipts=own.receipts,
    )
    return replace(facts, inherited=inherited.read(model_defaults(config), facts))


async def _keep_measured(
    settings: Settings, engine: Engine, start: Startup, place: Path | None
) -> None:
    """Write what this start has measured into the log, and where the doctor looks for it."""
    try:
        figures = await measured.ask(engine.client)
        phases = {name: round(took, 1) for name, took in start.took().items()}
        its = {"model": settings.model, "card": measured.card(), "vllm": command_line.version()}
        said = {**its, **figures, "phases_s": phases}
        say(f"measured: {await asyncio.to_thread(kept.keep, place, said)}")
    except Exception:  # no reason to end a worker that is ready
        log.warning("What this start measured is not known.", exc_info=True)


def _handler(settings: Settings, dialect: Callable[[Request], Call], stores: Stores) -> Handler:
    own = settings.own
    sizes = BatchSizes(
        own.default_min_batch_size,
        own.default_batch_size,
        own.default_batch_size_growth_factor,
        own.max_batch_delay_ms / 1000,
    )
    most = own.max_result_mb * 1_000_000
    return Handler(dialect, sizes, most, own, own.max_posts_per_second, stores.keep)


def _concurrency(settings: Settings, engine: Engine) -> int:
    wanted = settings.own.max_concurrency
    if isinstance(wanted, int):
        return wanted
    most = room(engine.client.vllm_config)
    say(f"MAX_CONCURRENCY=auto: {most} jobs at once.")
    return most


def _door(settings: Settings, dialect: Callable[[Request], Any]) -> Door:
    own = settings.own
    most = own.max_body_mb * 1_000_000
    return Door(dialect, own, api_key=own.api_key, max_body_bytes=most)


def _cors(args: argparse.Namespace) -> dict[str, Any]:
    """Return vLLM's options of what a web page of another origin may do."""
    return {
        "allow_origins": args.allowed_origins,
        "allow_credentials": args.allow_credentials,
        "allow_methods": args.allowed_methods,
        "allow_headers": args.allowed_headers,
    }


async def _warm_up(handler: Handler, engine: Engine, facts: Facts) -> None:
    """Answer one job of each kind, so that the first customer's is not the first.

    Raises StartError when the engine does not survive it. A kind that this model cannot do, such
    as a conversation without a chat template, is no failure.
    """
    for given in _warm_up_inputs(engine, facts):
        async for batch in handler.handle({"id": "warm-up", "input": given}):
            log.debug("warm-up: %s", batch)
    if engine.is_dead:
        raise StartError(engine.why_it_died("The engine stopped while it was warmed up."))


def _warm_up_inputs(engine: Engine, facts: Facts) -> list[dict[str, Any]]:
    if not engine.generates:
        return [] if "file" in engine.example["openai_input"] else [engine.example]
    short = {"max_tokens": 2}
    if not facts.has_tokenizer:
        return [{"prompt": [1], "sampling_params": short}]
    chat = {"messages": [{"role": "user", "content": "Hello"}], **short}
    text = {"prompt": "Hello", **short}
    return [
        {"prompt": "Hello", "sampling_params": short},
        *(
            {"openai_route": route, "openai_input": body | {"stream": stream}}
            for route, body in (("/v1/chat/completions", chat), ("/v1/completions", text))
            for stream in (False, True)
        ),
    ]
