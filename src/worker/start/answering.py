"""What answers a request: a call of its dialect, with what all calls share."""

import argparse
import functools
import logging
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from worker.bulk.call import BatchCall, Bulk
from worker.configuration.settings import Settings
from worker.configuration.variables import Own
from worker.dialects.call import Dialect, DialectCall
from worker.dialects.huggingface import HuggingFace
from worker.dialects.ollama import Ollama
from worker.engine.adapters import Adapters, Store
from worker.engine.places import Places
from worker.engine.server import Engine
from worker.facts import Facts
from worker.generation.turns import Turns
from worker.model import adapters, locate
from worker.native.call import NativeCall
from worker.openai.call import RouteCall
from worker.openai.older_names import PLACEHOLDERS, OlderNames
from worker.openai.routes import Routes
from worker.processor import reports
from worker.request import BatchRequest, NativeRequest, Request, RouteRequest
from worker.start import sdk
from worker.storage.bucket import Keys
from worker.storage.folder import Folder
from worker.storage.stores import Stores

log = logging.getLogger("worker")


def calls(
    settings: Settings, engine: Engine, facts: Facts, stores: Stores
) -> Callable[[Request], Any]:
    """Return what makes the call that answers a request."""
    own = settings.own
    turns = Turns(own.max_chains, own.max_costly_chains)
    routes = Routes(engine.app, own.extra_routes)
    named = {*settings.served_model_names, *(one.name for one in settings.args.lora_modules or ())}
    older = OlderNames(own.strict_openai, own.old_reply_names, PLACEHOLDERS - named)
    for warning in routes.warnings:
        log.warning(warning)

    others: dict[str, Dialect] = {
        "huggingface": HuggingFace(),
        "ollama": Ollama(_abilities(settings.args, engine, facts)),
    }

    def own_dialect(request: Request, *, raw: bool = own.raw_openai_output) -> Any:
        if isinstance(request, NativeRequest):
            return NativeCall(request, engine, facts, turns)
        assert isinstance(request, RouteRequest)  # a batch asks for its lines one by one
        return RouteCall(
            request,
            engine,
            routes,
            facts,
            turns,
            older,
            model=settings.served_model_names[0],
            raw=raw,
            errors_as_output=own.openai_errors_as_output,
        )

    def dialect(request: Request) -> Any:
        if isinstance(request, BatchRequest):
            return BatchCall(request, bulk)
        if isinstance(request, RouteRequest) and request.dialect in others:
            within = functools.partial(own_dialect, raw=False)
            raw, other = own.raw_openai_output, others[request.dialect]
            return DialectCall(request, other, within, own, raw=raw)
        return own_dialect(request)

    bulk = Bulk(
        dialect,
        Places(engine.client),
        stores,
        own,
        reserved=own.batch_reserved_slots,
        max_line_bytes=own.max_line_mb * 1_000_000,
        max_result_bytes=own.max_result_mb * 1_000_000,
        tell=sdk.tell_progress,
    )
    return dialect


def _abilities(args: argparse.Namespace, engine: Engine, facts: Facts) -> list[str]:
    """Return what the model can do, in Ollama's words."""
    there = {
        "completion": engine.generates,
        "embedding": not engine.generates,
        "tools": args.enable_auto_tool_choice,
        "thinking": facts.parses_reasoning,
        "vision": engine.client.model_config.is_multimodal_model,
    }
    return [name for name, can in there.items() if can]


def adapters_on_demand(
    settings: Settings,
    engine: Engine,
    environ: Mapping[str, str],
    stores: Stores,
    stack: ExitStack,
) -> Adapters:
    """Return what loads adapters that requests name; its files are gone when `stack` ends."""
    own, token = settings.own, settings.args.hf_token
    if not own.lora_allowed:
        return Adapters()
    folder = reports.Folder(Path(tempfile.gettempdir()))
    stack.callback(folder.remove)
    find = functools.partial(
        adapters.find,
        caches=locate.caches(environ),
        own=folder.path,
        token=token if isinstance(token, str) else None,
        bucket=functools.partial(stores.bucket, None, "model"),
    )
    store = Store(find, adapters.remove, own.lora_disk_gb * 1_000_000_000)
    return Adapters(engine.app, engine.client, store, own.lora_allowed)


def places_of_files(own: Own) -> Stores:
    """Return where jobs may have files."""
    named = (own.bucket_endpoint_url, own.bucket_access_key_id, own.bucket_secret_access_key)
    keys = None
    if all(named) and own.bucket_name:
        # The deployer's own server may be anywhere.
        home = own.bucket_name.strip("/")
        keys = Keys(*named, home=home, is_bound=True, may_be_private=True)
    return Stores(Folder(own.batch_folder), keys, own.allow_private_media)
