"""Adapters that are fetched while the worker runs, into a folder of this process's own.

It is no cache that workers share: what is deleted there is missed by nobody else.
"""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from worker.errors import StartError
from worker.model import download, locate
from worker.model.files import REPOSITORY


def find(
    name: str, revision: str | None, *, caches: Iterable[Path], own: Path, token: str | None
) -> tuple[Path, bool]:
    """Return the folder of an adapter's version, and whether it lies in `own`.

    A path is itself; a repository is looked for in the caches, and fetched into `own` where none
    has it. Raises StartError with one sentence.
    """
    if os.path.isabs(name):
        if revision or not Path(name).is_dir():
            raise StartError(f"{name}{f'@{revision}' if revision else ''} is not on this machine")
        return Path(name), False
    if not REPOSITORY.fullmatch(name):
        raise StartError(f"{name} is no repository such as org/name")
    found = locate.resolve(name, revision, caches, "adapter")
    if found != name:
        return Path(found), False
    get = partial(download.download, name, revision, cache=own, kind="adapter", token=token)
    return get(say=lambda _: None), True


def remove(snapshot: Path) -> None:
    """Delete a snapshot of a hub cache, and what no other one shares with it."""
    from huggingface_hub import scan_cache_dir

    scan_cache_dir(snapshot.parents[2]).delete_revisions(snapshot.name).execute()
