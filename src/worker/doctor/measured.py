"""What a start measured is kept for the doctor, who trusts it more than his estimate.

A measurement counts for the same model, card, version of vLLM and options, and for nothing else.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from worker.configuration.environ import base_path
from worker.doctor import cards
from worker.engine import command_line
from worker.errors import SettingsError
from worker.model import files

FOLDER = "compile-cache/measured"  # below BASE_PATH, beside the compiled kernels
# What decides nothing of memory, and differs from one deployment to the next.
_NO_MATTER = {"served_model_name", "hf_token", "download_dir", "chat_template"}
_NO_MATTER |= {"tool_call_parser", "enable_auto_tool_choice", "reasoning_parser"}
_NO_MATTER_OF_VLLM = ("LOG", "CACHE_ROOT", "KEY", "PORT", "USAGE", "TARGET_DEVICE")


def keep(file: Path | None, figures: Mapping[str, Any]) -> str:
    """Write the figures into the file of `place`, if there is one; return them as one line."""
    line = json.dumps(figures)
    if file:
        part = file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # full, or not to be written: the log has the line
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(line)
            part.replace(file)
    return line


def find(file: Path | None) -> dict[str, Any]:
    """Return the figures that a start has kept there; nothing where none has."""
    return files.json_object(file) if file else {}


def place(environ: Mapping[str, str], args: argparse.Namespace, card: str) -> Path | None:
    """Return the file for what is measured with these variables on this card; None: no volume.

    `environ` is the environment as the user gave it; `args` are vLLM's arguments with the model's
    name, before vLLM has worked on them.
    """
    base = base_path(environ)
    known = command_line.options()
    options = {
        name: str(value)
        for name, value in sorted(vars(args).items())
        if name in known
        and value != known[name].default
        and not known[name].server
        and name not in _NO_MATTER
    }
    variables = {
        name: environ[name]
        for name in sorted(environ.keys() & command_line.environment())
        if name.startswith("VLLM_") and not any(part in name for part in _NO_MATTER_OF_VLLM)
    }
    key = json.dumps([_named(card), command_line.version(), options, variables])
    return base and base / FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _named(card: str) -> str:
    """Return a card by the doctor's name for it, whatever the driver calls it."""
    with suppress(SettingsError):
        return cards.read(card)[1].name
    return card
