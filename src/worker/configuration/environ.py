"""What must change in the environment before vLLM is imported."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker import spelling
from worker.configuration.variables import CONFIG_FILE, EXTRA_ARGS, NETWORK_VOLUME, VARIABLES
from worker.errors import SettingsError
from worker.model.locate import HOME

OWN = {variable.name: variable for variable in VARIABLES}
# Below BASE_PATH. Each is keyed by what it was compiled from and for, so workers may share it.
COMPILE_CACHES = {
    "VLLM_CACHE_ROOT": "compile-cache/vllm",
    "TORCHINDUCTOR_CACHE_DIR": "compile-cache/inductor",
    "TRITON_CACHE_DIR": "compile-cache/triton",
}
BAKED = Path("/etc/worker-vllm/baked.json")  # what the build wrote beside a model
COMPILED = BAKED.parent / "compile-cache"  # what it compiled, with WARM=1
COMPILED_BYTES = 1_000_000_000  # the free space below which they are not begun
# Where any of them is set, something may be asked for that the image does not hold.
_MAY_NAME_A_MODEL = (
    *("MODEL", "REVISION", "MODEL_REVISION", "TOKENIZER", "TOKENIZER_NAME", "TOKENIZER_REVISION"),
    *("LORA_MODULES", "SPECULATIVE_CONFIG", "SPECULATIVE_MODEL", "SPEC_MODEL"),
    *("CODE_REVISION", "HF_CONFIG_PATH"),
    *("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "HF_HOME", "HF_HUB_CACHE", CONFIG_FILE, EXTRA_ARGS),
)


def process_environ(
    environ: Mapping[str, str], baked: Mapping[str, str] = {}
) -> dict[str, str | None]:
    """Return what must change in the process's environment before vLLM is imported.

    None means that the variable goes away. Nothing heavy is imported to know it. With `baked`, and
    nothing asked for beside it, the hub is switched off and the image's cache is the hub's.
    """
    # VLLM_API_KEY would put a password in front of the app that this process calls itself;
    # the next are our names in vLLM's namespace, and vLLM complains about names it does not know.
    # With the last every count would go through a file, for processes that this worker has not.
    ours = (CONFIG_FILE, EXTRA_ARGS, "VLLM_CPU_FRACTION")
    counts = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
    taken = ("VLLM_API_KEY", *ours, *counts)
    changes: dict[str, str | None] = {name: None for name in taken if name in environ}
    # huggingface_hub takes an empty text, as a form sends it, for a value.
    places = ("HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
    changes |= {name: None for name in places if environ.get(name) == ""}
    base = base_path(environ)
    wanted, caches = {}, None
    if base and os.access(existing_parent(base), os.W_OK):
        wanted["HF_HOME"] = base / HOME
        caches = base if has_room(base) else None
    if os.access(COMPILED, os.W_OK):
        caches = COMPILED.parent
    if caches:
        wanted |= {name: caches / folder for name, folder in COMPILE_CACHES.items()}
    changes |= {name: str(path) for name, path in wanted.items() if not environ.get(name)}
    model = environ.get("MODEL_NAME", "").strip() or baked.get("MODEL_NAME")
    others = any(environ.get(name, "").strip() for name in _MAY_NAME_A_MODEL)
    if "MODEL_NAME" in baked and model == baked["MODEL_NAME"] and not others:
        changes["HF_HUB_CACHE"] = f"{baked['BASE_PATH']}/{HOME}/hub"
        if not environ.get("HF_HUB_OFFLINE"):
            changes["HF_HUB_OFFLINE"] = "1"
    if not os.access(environ.get("HOME") or "/", os.W_OK):
        # A user whom the image does not know, as with `--user 1000`: caches need some home, and
        # torch some name.
        changes |= {"HOME": "/tmp", "USER": environ.get("USER") or "worker"}
    if not environ.get("HF_XET_HIGH_PERFORMANCE"):
        changes["HF_XET_HIGH_PERFORMANCE"] = "1"
    if not environ.get("RUNPOD_LOG_LEVEL") and not environ.get("RUNPOD_DEBUG_LEVEL"):
        changes["RUNPOD_LOG_LEVEL"] = "INFO"  # the SDK's own is DEBUG: a line for every post
    if is_no_token(environ):
        changes["HF_TOKEN"] = None
    return changes


def speaks_http(environ: Mapping[str, str]) -> bool:
    """Say whether requests come over HTTP, and not as RunPod's jobs. Raises SettingsError."""
    mode = early(environ, "WORKER_MODE")
    has_jobs = "RUNPOD_WEBHOOK_GET_JOB" in environ
    return bool(mode == "load_balancer" or (mode == "auto" and not has_jobs))


def early(environ: Mapping[str, str], name: str) -> Any:
    """Return one of the worker's own values, before the settings as a whole can be read.

    Raises SettingsError.
    """
    variable, text = OWN[name], environ.get(name, "")
    if spelling.is_unset(text):
        return variable.default
    try:
        return variable.read(text)
    except ValueError as error:
        raise SettingsError(f"{name}={text!r} {error}") from None


def base_path(environ: Mapping[str, str]) -> Path | None:
    """Return where models and compiled kernels are kept: BASE_PATH, or the network volume."""
    base = environ.get("BASE_PATH", "").strip()
    if not spelling.is_unset(base):
        return Path(base)
    return Path(NETWORK_VOLUME) if Path(NETWORK_VOLUME).is_dir() else None


def existing_parent(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def has_room(base: Path) -> bool:
    return shutil.disk_usage(existing_parent(base)).free > COMPILED_BYTES


def is_no_token(environ: Mapping[str, str]) -> bool:
    token = environ.get("HF_TOKEN", "").strip().lower()
    return token in spelling.TRUE | spelling.FALSE | spelling.NOTHING - {""}
