"""Where a model's files are: its name becomes a folder on disk, where one holds it already."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from worker.errors import SettingsError

RUNPOD_CACHE = Path("/runpod-volume/huggingface-cache/hub")


def caches(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the hub caches to look into, the nearest first.

    They are the one that huggingface_hub itself uses and RunPod's own, which the platform fills
    before the worker starts when the endpoint names a cached model.
    """
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    hub = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    own = Path(hub).expanduser()
    return (own, RUNPOD_CACHE) if own != RUNPOD_CACHE else (own,)


def resolve(name: str, revision: str | None, caches: Iterable[Path]) -> str:
    """Return the folder that holds a model, or its name where only the hub has it.

    A name of the form `org/name` is looked up in each cache; RunPod's writes folder names in lower
    case. Only a snapshot with a configuration and weights counts: half a download does not.
    Raises SettingsError for a path to nothing.
    """
    if Path(name).exists():
        return name
    if name.startswith(("/", "./", "../", "~")):
        raise SettingsError(f"MODEL_NAME={name!r} is a path, and there is nothing")
    folder = f"models--{name.replace('/', '--')}".lower()
    for cache in caches:
        for repository in sorted(cache.glob("models--*")):
            if repository.name.lower() == folder:
                snapshot = _snapshot(repository, revision or "main")
                if snapshot is not None:
                    return str(snapshot)
    return name


def _snapshot(repository: Path, revision: str) -> Path | None:
    ref = repository / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = repository / "snapshots" / commit
    complete = (snapshot / "config.json").exists() and _has_weights(snapshot)
    return snapshot if complete else None


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
