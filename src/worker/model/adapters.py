"""Adapters that are fetched while the worker runs, into a folder of this process's own.

It is no cache that workers share: what is deleted there is missed by nobody else.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from worker.errors import StartError
from worker.model import download, files, locate
from worker.storage.bucket import Bucket

_BUCKETS = "buckets"


def find(
    name: str,
    revision: str | None,
    *,
    caches: Iterable[Path],
    own: Path,
    token: str | None,
    bucket: Callable[[], Bucket],
) -> tuple[Path, bool]:
    """Return the folder of an adapter's version, and whether it lies in `own`.

    A path is itself; a repository is looked for in the caches, and fetched into `own` where none
    has it, as is a folder of the bucket. Raises StartError with the end of a sentence, or
    RequestError with one.
    """
    if name.startswith("s3://"):
        if revision:
            raise StartError(f"{name} has no revision {revision!r}: nothing in a bucket has one")
        return _of_a_bucket(name, bucket(), own), True
    if os.path.isabs(name):
        if revision or not Path(name).is_dir():
            raise StartError(f"{name}{f'@{revision}' if revision else ''} is not on this machine")
        return Path(name), False
    if not files.REPOSITORY.fullmatch(name):
        raise StartError(f"{name} is no repository such as org/name")
    found = locate.resolve(name, revision, caches, "adapter")
    if found != name:
        return Path(found), False
    get = partial(download.download, name, revision, cache=own, kind="adapter", token=token)
    return get(say=lambda _: None), True


def _of_a_bucket(name: str, bucket: Bucket, own: Path) -> Path:
    """Copy a folder of a bucket into one that is named after the versions of its files."""
    versions = bucket.below(f"{name}/", "model")
    there = [address.removeprefix(f"{name}/") for address in versions]
    wanted = files.choose(file for file in there if file and "/" not in file)
    if not wanted:
        raise StartError(f"{name} is not in its bucket")
    folder = own / _BUCKETS / hashlib.sha256(str(versions).encode()).hexdigest()
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=own) as whole:
            made = Path(whole) / "adapter"
            made.mkdir()
            for file in wanted:
                with (made / file).open("wb") as copy:
                    bucket.read(f"{name}/{file}", copy, "model")
            if bucket.below(f"{name}/", "model") != versions:
                raise StartError(f"{name} was changed while it was fetched")
            made.rename(folder)
    except OSError as error:
        raise StartError(f"{name} cannot be stored in {own}: {error.strerror}") from None
    return folder


def remove(snapshot: Path) -> None:
    """Delete what was fetched: of a hub cache what no other snapshot shares with it."""
    if snapshot.parent.name == _BUCKETS:
        shutil.rmtree(snapshot)
        return
    from huggingface_hub import scan_cache_dir

    scan_cache_dir(snapshot.parents[2]).delete_revisions(snapshot.name).execute()
