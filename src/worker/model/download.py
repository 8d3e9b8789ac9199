"""Fetching what a model needs of a hub repository; shared with the image's build.

Beside Python it needs huggingface_hub alone, so a build stage without vLLM and torch can run it.
"""

import errno
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Literal

from worker.errors import StartError
from worker.model.files import (
    FORMATS,
    GGUF,
    ROOT_INDEXES,
    Kind,
    check_weights,
    code_elsewhere,
    formats,
    is_weight,
    of_kind,
    only_indexed,
)
from worker.sentences import hide

Say = Callable[[str], None]
PROGRESS_S = 10.0


def download(
    name: str,
    revision: str | None = None,
    *,
    cache: str | Path | None = None,
    kind: Kind = "model",
    load_format: str = "auto",
    ignore: list[str] | None = None,
    code_revision: str | None = None,
    weights: bool = True,
    token: str | Literal[False] | None = None,
    before: Callable[[Path], None] | None = None,
    say: Say = print,
) -> Path:
    """Fetch what is needed of a repository into a hub cache, and return its snapshot.

    What is there already is not fetched again, a broken transfer goes on where it broke, and
    workers that share the cache wait for one another: these are huggingface_hub's doing.
    `name` may end in the quantisation of a GGUF file (`org/name:Q4_K_M`); `code_revision` is that
    of the other repositories whose Python code this one uses. Without `weights` all the rest is
    fetched, which is small, and enough to judge a configuration: `before` may do so, in the
    snapshot without weights, by raising.
    Raises StartError with one sentence.
    """
    from huggingface_hub import HfApi, constants

    gguf = GGUF.fullmatch(name)
    repository = gguf["repository"] if gguf else name
    where = Path(cache or constants.HF_HUB_CACHE).expanduser()
    started_s = time.monotonic()
    with translated(repository, revision, where):
        api = HfApi(token=token)
        info = listing(repository, revision, token)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        patterns = formats(name, load_format) or FORMATS["auto"]
        files = of_kind(kind, sizes, patterns)
        if ignore:
            files = [file for file in files if not any(fnmatch(file, p) for p in ignore)]

        def fetch(wanted: list[str]) -> Path:
            return Path(
                api.snapshot_download(
                    repository,
                    revision=revision,
                    cache_dir=where,
                    allow_patterns=[re.sub(r"([*?[])", r"[\1]", file) for file in wanted],
                    tqdm_class=_silent(),
                )
            )

        if kind in ("model", "draft"):
            for index in [file for file in files if file in ROOT_INDEXES]:
                files = only_indexed(files, index, fetch([index]) / index)
            check_weights(repository, files, sizes, is_gguf=bool(gguf))
        beside = [file for file in files if not is_weight(file)]
        if not weights:
            files = beside
        folder = where / f"models--{repository.replace('/', '--')}"
        missing = sum(
            sizes[file] for file in files if not (folder / f"snapshots/{info.sha}/{file}").exists()
        )
        _check_space(repository, where, missing)
        if before and kind == "model":
            before(fetch(beside))
        say(f"{repository}: {len(files)} files, {shown_size(missing)} to fetch into {where}")
        with _progress(repository, folder / "blobs", missing, say):
            snapshot = fetch(files)
        say(f"{repository}: complete after {time.monotonic() - started_s:.0f} s")
    for other in sorted(code_elsewhere(snapshot) - {repository}) if kind != "code" else ():
        download(other, code_revision, cache=where, kind="code", token=token, say=say)
    return snapshot


def listing(repository: str, revision: str | None, token: str | Literal[False] | None) -> Any:
    """Return what the hub says of a repository and its files; each is asked about once."""
    from huggingface_hub import constants

    return _listing(constants.ENDPOINT, repository, revision, token)


@cache
def _listing(_: str, repository: str, revision: str | None, token: Any) -> Any:
    from huggingface_hub import HfApi

    return HfApi(token=token).repo_info(repository, revision=revision, files_metadata=True)


def _check_space(name: str, where: Path, missing: int) -> None:
    there = next(path for path in (where, *where.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if missing > free:
        raise StartError(
            f"{name} needs {shown_size(missing)} more, and {where} has {shown_size(free)} free: "
            "make room there, or set BASE_PATH to a folder that has it"
        )


@contextmanager
def translated(name: str, revision: str | None, where: Path) -> Iterator[None]:
    """Turn whatever goes wrong into one sentence that says what to do."""
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    try:
        yield
    except StartError:
        raise
    except errors.GatedRepoError:
        why = f"is gated: accept its terms at {hub}/{name}, and give HF_TOKEN a token that may read"
    except errors.RepositoryNotFoundError:
        why = f"is not on {hub}, or is private and HF_TOKEN may not read it"
    except errors.RevisionNotFoundError:
        why = f"has no revision {revision!r}"
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        if constants.HF_HUB_OFFLINE:
            why = "is not on this machine, and HF_HUB_OFFLINE forbids to fetch it"
        else:
            why = f"cannot be fetched from {hub}: {_reason(error)}"
    except Exception as error:
        why = _disk(error, where) or f"cannot be fetched from {hub}: {_reason(error)}"
    else:
        return
    raise StartError(hide(f"{name} {why}")) from None


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _disk(error: BaseException, where: Path) -> str | None:
    """Say what is wrong with the disk, if that is what is wrong."""
    code = error.errno if isinstance(error, OSError) else None
    text = str(error)  # the Xet client's errors carry no number
    if code in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in text:
        return f"does not fit into {where}: the disk is full. Make room there, or set BASE_PATH"
    if code in (errno.EROFS, errno.EACCES, errno.EPERM) or os.strerror(errno.EROFS) in text:
        return f"cannot be stored in {where}, which cannot be written. BASE_PATH names another"
    return None


@contextmanager
def _progress(name: str, blobs: Path, missing: int, say: Say) -> Iterator[None]:
    """Say every few seconds how much is there, in lines, which a build's log can hold."""
    done, before = threading.Event(), _stored(blobs)

    def watch() -> None:
        last = 0
        while not done.wait(PROGRESS_S):
            now = min(_stored(blobs) - before, missing)
            rate = max(now - last, 0) / PROGRESS_S
            say(f"{name}: {shown_size(now)} of {shown_size(missing)}, {shown_size(rate)}/s")
            last = now

    watching = threading.Thread(target=watch, name="download progress", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()


def _stored(blobs: Path) -> int:
    total = 0
    for blob in blobs.glob("*"):
        with suppress(OSError):  # a part of a download is renamed at its end
            total += blob.stat().st_size
    return total


def _silent() -> Any:
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):  # type: ignore[misc]
        """A bar that draws nothing: bars redraw one line, and a log has no such thing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    return Silent


def shown_size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
