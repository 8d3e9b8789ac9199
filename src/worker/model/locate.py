"""Where a model's files are: its name becomes a folder on disk, which is fetched where none is.

a folder ─ what the image was built with ─ the hub's cache, on the volume where there is one ─
RunPod's cached models ─ the hub
"""

import argparse
import copy
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from worker.errors import SettingsError
from worker.model import download, files

HOME = "huggingface-cache"  # below BASE_PATH, as RunPod has it on the network volume
RUNPOD_CACHE = Path("/runpod-volume") / HOME / "hub"
_NAMED_BY: Mapping[files.Kind, str] = {
    "model": "MODEL_NAME",
    "draft": "SPECULATIVE_CONFIG",
    "tokenizer": "TOKENIZER_NAME",
    "adapter": "LORA_MODULES",
}


def caches(environ: Mapping[str, str], baked: Mapping[str, str] = {}) -> tuple[Path, ...]:
    """Return the hub caches to look into, the nearest first.

    They are the image's, where a model was baked in; the one that huggingface_hub itself uses; the
    one below BASE_PATH, which is not the hub's own where it cannot be written; and RunPod's, which
    the platform fills before the worker starts when the endpoint names a cached model.
    """
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    own = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    bases = [baked.get("BASE_PATH"), environ.get("BASE_PATH")]
    image, base = (Path(base.strip()) / HOME / "hub" if base else None for base in bases)
    found = (image, Path(own).expanduser(), base, RUNPOD_CACHE)
    return tuple(dict.fromkeys(path for path in found if path))


def locate(args: argparse.Namespace, caches: Iterable[Path]) -> argparse.Namespace:
    """Return vLLM's arguments with a folder for every name that a cache holds the files of."""
    caches = tuple(caches)
    return _each(args, lambda name, revision, kind: resolve(name, revision, caches, kind))


def fetch(
    args: argparse.Namespace,
    environ: Mapping[str, str],
    say: download.Say,
    *,
    weights: bool = True,
    before: Callable[[Path], None] | None = None,
) -> argparse.Namespace:
    """Return vLLM's arguments with a folder for every name, downloading what is still a name.

    What this worker cannot read the files of is left to vLLM: other stores than the hub, and the
    load formats that have their own. Without `weights` a configuration can be judged, and no GGUF
    file. `before` is called with the model's folder, before its weights are fetched where they are
    not there. Raises StartError with one sentence.
    """
    read = files.formats(args.model, args.load_format)
    if environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true") or not read:
        return args

    def one(name: str, revision: str | None, kind: files.Kind) -> str:
        if before and kind == "model" and Path(name).is_dir():
            before(Path(name))
        if Path(name).exists() or not (
            files.REPOSITORY.fullmatch(name) or (weights and files.GGUF.fullmatch(name))
        ):
            return name
        snapshot = download.download(
            name,
            revision,
            cache=args.download_dir,
            kind=kind,
            load_format=args.load_format,
            ignore=args.ignore_patterns,
            code_revision=args.code_revision if kind == "model" else None,
            weights=weights,
            before=before,
            token=args.hf_token if isinstance(args.hf_token, str) else None,
            say=say,
        )
        return str(_gguf(name, snapshot) or snapshot)

    return _each(args, one)


def named(args: argparse.Namespace) -> tuple[tuple[str, str | None, files.Kind], ...]:
    """Return what vLLM's arguments name of models: name or folder, revision, and what it is."""
    found: list[tuple[str, str | None, files.Kind]] = []

    def one(*named: Any) -> str:
        found.append(named)
        return str(named[0])

    _each(args, one)
    return tuple(found)


def _each(
    args: argparse.Namespace, find: Callable[[str, str | None, files.Kind], str]
) -> argparse.Namespace:
    args = argparse.Namespace(**vars(args))
    its = files.tokenizer_of(args.model, args.revision, args.tokenizer, args.tokenizer_revision)
    if its:
        name, args.tokenizer_revision = its
        args.tokenizer = find(name, args.tokenizer_revision, "tokenizer")
    args.model = find(args.model, args.revision, "model")
    adapters = copy.deepcopy(args.lora_modules)
    for adapter in adapters or ():
        adapter.path = find(adapter.path, None, "adapter")
    args.lora_modules = adapters
    draft = args.speculative_config or {}
    if "/" in str(draft.get("model") or ""):  # else it is the name of a method, or of a class
        found = find(draft["model"], draft.get("revision"), "draft")
        args.speculative_config = {**draft, "model": found}
    if "/" in (args.spec_model or ""):
        args.spec_model = find(args.spec_model, draft.get("revision"), "draft")
    return args


def resolve(
    name: str, revision: str | None, caches: Iterable[Path], kind: files.Kind = "model"
) -> str:
    """Return the folder that holds a model, or its name where only the hub has it.

    A name of the form `org/name` is looked up in each cache; RunPod's writes folder names in lower
    case. Only a snapshot with a configuration and weights counts: half a download does not.
    Raises SettingsError for a path to nothing.
    """
    if Path(name).exists():
        return name
    if name.startswith(("/", "./", "../", "~")):
        if Path(name).expanduser().exists():
            return str(Path(name).expanduser())
        raise SettingsError(f"{_NAMED_BY[kind]}={name!r} is a path, and there is nothing")
    gguf = files.GGUF.fullmatch(name)
    repo = gguf["repository"] if gguf else name
    folder = f"models--{repo.replace('/', '--')}".lower()
    for cache in caches:
        for repository in sorted(cache.glob("models--*")):
            if repository.name.lower() != folder:
                continue
            whole = {
                str(path)
                for snapshot in _snapshots(repository, revision or "main")
                if (path := _gguf(name, snapshot) if gguf else snapshot)
                and (gguf or _COMPLETE[kind](snapshot))
            }
            if len(whole) == 1:
                return whole.pop()
    return name


def _snapshots(repository: Path, revision: str) -> Iterable[Path]:
    """Return where a revision may be: behind its ref, or under a commit that begins like it.

    A cache that was copied may have lost its refs; then what it holds is the main branch.
    """
    snapshots = repository / "snapshots"
    ref = repository / "refs" / revision
    if ref.is_file():
        return [snapshots / ref.read_text().strip()]
    if revision == "main" and not any(repository.glob("refs/*")):
        return snapshots.glob("*")
    return snapshots.glob(f"{revision}*") if re.fullmatch("[0-9a-f]{3,40}", revision) else ()


def _gguf(name: str, snapshot: Path) -> Path | None:
    if not files.GGUF.fullmatch(name):
        return None
    found = (path for pattern in files.formats(name) or () for path in snapshot.glob(pattern))
    return min((path for path in found if path.exists()), key=str, default=None)


def _has_any(snapshot: Path, *patterns: str) -> bool:
    return any(path.exists() for pattern in patterns for path in snapshot.glob(pattern))


_TOKENIZER = ("tokenizer*", "*.model", "*.tiktoken", "vocab*", "tekken.json", "*tokenization*.py")


def _is_whole_model(snapshot: Path) -> bool:
    return _has_any(snapshot, "config.json", "params.json") and _has_weights(snapshot)


_COMPLETE: Mapping[files.Kind, Callable[[Path], bool]] = {
    "model": _is_whole_model,
    "draft": _is_whole_model,
    "tokenizer": lambda snapshot: _has_any(snapshot, *_TOKENIZER),
    "adapter": lambda snapshot: (
        _has_any(snapshot, "adapter_config.json") and _has_weights(snapshot)
    ),
}


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _has_weights(snapshot: Path) -> bool:
    """Say whether the weights are whole, in the first format of these that vLLM will find."""
    for suffix in (".safetensors", ".bin", ".pt", ".gguf"):
        # These are links into blobs/, dangling where a download broke off or a blob was removed.
        files = set(snapshot.glob(f"*{suffix}"))
        if not files:
            continue
        for index in snapshot.glob(f"*{suffix}.index.json"):
            try:
                shards = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values()
            except (OSError, msgspec.MsgspecError):
                return False
            files.update(snapshot / shard for shard in shards)
        return all(file.exists() for file in files)
    return False
