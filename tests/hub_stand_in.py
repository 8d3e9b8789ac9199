"""A hub on this machine: as much of the Hugging Face Hub's HTTP API as huggingface_hub needs.

It is a real server with one behaviour per failure: a gated repository, a revision that is not
there, a connection that breaks half-way.
"""

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN = "hf_thetokenthatmayreadeverything"


@dataclass
class Repository:
    """One commit of a model repository, with `files` by path, and the `revisions` that name it."""

    files: Mapping[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    gated: bool = False
    breaks: dict[str, int] = field(default_factory=dict)
    """After how many bytes the first transfer of a file breaks off."""
    slow_s: float = 0.0
    """How long each piece of a megabyte takes."""
    parameters: Mapping[str, int] | None = None
    """How many parameters of each type the hub has counted in its safetensors."""

    @cached_property
    def sha(self) -> str:
        digest = hashlib.sha1()
        for path, data in sorted(self.files.items()):
            digest.update(path.encode())
            digest.update(data)
        return digest.hexdigest()

    def has(self, revision: str) -> bool:
        """Say whether this is a revision: a branch, a tag, or a commit by its first digits."""
        return revision in self.revisions or (len(revision) >= 3 and self.sha.startswith(revision))


@dataclass
class Hub:
    url: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Every request: method, path, and the range of bytes it asked for."""

    def add(self, name: str, files: Mapping[str, bytes | str], **more: object) -> Repository:
        """Add a repository; `org/name@v2` adds another commit to `org/name`, its revision v2."""
        if "@" in name:
            more["revisions"] = (name.partition("@")[2],)
        data = {path: v.encode() if isinstance(v, str) else v for path, v in files.items()}
        self.repositories[name] = Repository(data, **more)  # type: ignore[arg-type]
        return self.repositories[name]

    def add_folder(self, name: str, folder: Path, **more: object) -> Repository:
        paths = [path for path in folder.rglob("*") if path.is_file()]
        files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        return self.add(name, files, **more)

    def fetched(self, file: str) -> list[str]:
        """Return the ranges in which a file's content was asked for."""
        return [r for method, path, r in self.requests if method == "GET" and path.endswith(file)]


@contextlib.contextmanager
def serve() -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.hub = Hub(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.hub  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path, self.headers.get("Range", "")))
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?(?:/.*)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name, revision = (api[1], api[3]) if api else (file[1], file[2]) if file else ("", None)
        commits = [one for key, one in hub.repositories.items() if key.partition("@")[0] == name]
        repository = next(
            (one for one in commits if one.has(revision or "main")), (commits or [None])[0]
        )
        if repository is None:
            # As the hub does: who may not know whether it exists is told to log in.
            return self._refuse(401, "RepoNotFound", "Repository not found")
        if repository.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            known = 403 if self.headers.get("Authorization") else 401
            if not api or api[2] == "tree":
                return self._refuse(known, "GatedRepo", f"Access to model {name} is restricted")
        if not repository.has(revision or "main"):
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if api and api[2] == "tree":
            return self._json([_entry(path, data) for path, data in repository.files.items()])
        if api:
            return self._json(_info(name, repository))
        if file and file[3] not in repository.files:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        return self._send(repository, file[3] if file else "")

    def _send(self, repository: Repository, file: str) -> None:
        data = repository.files[file]
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        end = min(int(asked[2]) + 1, len(data)) if asked and asked[2] else len(data)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", repository.sha)
        self.end_headers()
        if self.command == "HEAD":
            return
        if file in repository.breaks:
            end = repository.breaks.pop(file)
            self.close_connection = True
        for at in range(start, end, 1_000_000):
            self.wfile.write(data[at : min(at + 1_000_000, end)])
            time.sleep(repository.slow_s)

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _entry(path: str, data: bytes) -> dict[str, object]:
    return {
        "type": "file",
        "path": path,
        "size": len(data),
        "oid": hashlib.sha1(data).hexdigest(),
    }


def _info(name: str, repository: Repository) -> dict[str, object]:
    return {
        "_id": "0",
        "id": name,
        "modelId": name,
        "sha": repository.sha,
        "private": False,
        "gated": "manual" if repository.gated else False,
        "siblings": [
            {"rfilename": path, "size": len(data)} for path, data in repository.files.items()
        ],
        **({"safetensors": _counted(repository.parameters)} if repository.parameters else {}),
    }


def _counted(parameters: Mapping[str, int]) -> dict[str, object]:
    return {"parameters": parameters, "total": sum(parameters.values())}
