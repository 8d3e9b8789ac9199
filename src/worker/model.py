"""Where a model's files are: its name becomes a folder on disk, where one holds it already."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

RUNPOD_CACHE = Path("/runpod-volume/huggingface-cache/hub")


def caches(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the hub caches to look into, the nearest first.

    They are the one that huggingface_hub itself uses and RunPod's own, which the platform fills
    before the worker starts when the endpoint names a cached model.
    """
    home = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    own = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    return (own, RUNPOD_CACHE) if own != RUNPOD_CACHE else (own,)


def resolve(name: str, revision: str | None, caches: Iterable[Path]) -> str:
    """Return the folder that holds a model, or its name where only the hub has it.

    A name of the form `org/name` is looked up in each cache; RunPod's writes folder names in lower
    case. Only a snapshot with a configuration and weights counts: half a download does not.
    """
    if Path(name).exists():
        return name
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
    complete = (snapshot / "config.json").exists() and all(
        (snapshot / shard).exists()  # a link into blobs/, dangling where the download broke off
        for index in snapshot.glob("*.index.json")
        for shard in set(json.loads(index.read_text())["weight_map"].values())
    )
    weights = any(
        file.suffix in (".safetensors", ".bin", ".pt", ".gguf") and file.exists()
        for file in snapshot.glob("*")
    )
    return snapshot if complete and weights else None
