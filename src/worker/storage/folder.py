"""A folder of the volume that jobs may read and write in; no link leads out of it.

Each part of a path is opened in the one before it, and a link is never followed.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from worker.errors import RequestError
from worker.sentences import shown

_PART = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def failed(error: OSError, name: Any, param: str) -> RequestError:
    """Say why a file could not be read or written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RequestError(
            f"There is no room left where {shown(name)} is written. What is done so far is kept: "
            "make room and send the batch again, and it goes on.",
            code=507,
            param=param,
        )
    reasons = {
        errno.ENOENT: "does not exist",
        errno.ELOOP: "is a link, or lies behind one",
        errno.ENOTDIR: "is a link, or lies behind one or in what is no folder",
        errno.EACCES: "may not be read or written by this worker",
        errno.EROFS: "is on a volume that cannot be written",
        errno.EISDIR: "is a folder",
    }
    reason = reasons.get(error.errno or 0, f"cannot be used: {error.strerror}")
    return RequestError(f"{param}: {shown(name)} {reason}.", param=param)


class Folder:
    """A folder. Everything here blocks: call it off the event loop."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    @property
    def exists(self) -> bool:
        """Whether files may be made in it."""
        return self._path.is_dir() or self._path.parent.is_dir()

    def url(self, name: str) -> str:
        """Return where a file of it is."""
        return (self._path.absolute() / name).as_uri()

    def read(self, name: str, param: str) -> BinaryIO:
        """Open a file for reading. Raises RequestError."""
        return self._opened(name, param, os.O_RDONLY, make=False)

    def create(self, name: str, param: str) -> BinaryIO:
        """Make a file that is not there, and the folders on its way. Raises RequestError."""
        return self._opened(name, param, os.O_RDWR | os.O_CREAT | os.O_EXCL, make=True)

    def write(self, name: str, param: str) -> BinaryIO:
        """Open a file to read and write, made where it is not there. Raises RequestError."""
        return self._opened(name, param, os.O_RDWR | os.O_CREAT, make=True)

    def has(self, name: str, param: str) -> bool:
        """Say whether there is such a file, or anything else of that name. Raises RequestError."""
        try:
            parent, last = self._parent(name, param, make=False)
        except FileNotFoundError:
            return False
        try:
            os.stat(last, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        finally:
            os.close(parent)
        return True

    def replace(self, name: str, by: str, param: str) -> None:
        """Give one file the name of another of the same folder."""
        parent, last = self._parent(name, param, make=False)
        try:
            other = by.rpartition("/")[2]
            os.replace(other, last, src_dir_fd=parent, dst_dir_fd=parent)
            os.fsync(parent)
        finally:
            os.close(parent)

    def remove(self, name: str, param: str) -> None:
        """Remove a file, if it is there."""
        parent, last = self._parent(name, param, make=False)
        try:
            os.unlink(last, dir_fd=parent)
        except FileNotFoundError:
            pass
        finally:
            os.close(parent)

    def _opened(self, name: str, param: str, flags: int, *, make: bool) -> BinaryIO:
        try:
            parent, last = self._parent(name, param, make=make)
            try:
                # A pipe would be waited for.
                safe = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
                descriptor = os.open(last, flags | safe, 0o644, dir_fd=parent)
            finally:
                os.close(parent)
        except OSError as error:
            raise failed(error, name, param) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise RequestError(f"{param}: {shown(name)} is not a file.", param=param)
        return os.fdopen(descriptor, "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "r+b")

    def _parent(self, name: str, param: str, *, make: bool) -> tuple[int, str]:
        """Return the descriptor of the folder that a file lies in, and the file's own name."""
        parts = self._parts(name, param)
        try:
            if make:
                self._path.mkdir(exist_ok=True)
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise RequestError(
                f"{param}: this worker has no folder {self._path} for files of jobs. Attach a "
                "network volume to the endpoint, or set BATCH_FOLDER.",
                param=param,
            ) from None
        for part in parts[:-1]:
            try:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                inner = os.open(part, _PART, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        return folder, parts[-1]

    def _parts(self, name: str, param: str) -> list[str]:
        """Return the parts of a path that is relative to the folder, or begins with its own."""
        inside = name.removeprefix(f"{self._path}/")
        parts = inside.split("/")
        if not all(part and part.isprintable() and part not in (".", "..") for part in parts):
            raise RequestError(
                f"{param}: {shown(name)} is not a path below {self._path}, such as "
                '"results/today.jsonl" (BATCH_FOLDER).',
                param=param,
            )
        return parts
