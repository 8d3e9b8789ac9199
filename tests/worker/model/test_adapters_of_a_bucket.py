"""Adapters of a bucket: which files are copied, where they lie, and what is said without them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import s3_server
from worker.errors import RequestError, StartError
from worker.model import adapters
from worker.storage.bucket import Bucket, Keys

pytestmark = pytest.mark.timeout(60)

Find = Callable[[str], tuple[Path, bool]]


@pytest.fixture
def find(tmp_path: Path, s3: str) -> Find:
    keys = Keys(s3, "a", "b", home="home/adapters", is_bound=True, may_be_private=True)

    def find(name: str) -> tuple[Path, bool]:
        name, _, revision = name.partition("@")
        caches: list[Path] = []
        return adapters.find(
            name,
            revision or None,
            caches=caches,
            own=tmp_path,
            token=None,
            bucket=lambda: Bucket(keys),
        )

    return find


def put(s3: str, name: str, files: dict[str, bytes]) -> None:
    for file, content in files.items():
        s3_server.client_of(s3).put_object(
            Bucket="home", Key=f"adapters/{name}/{file}", Body=content
        )


def test_files_of_an_adapter(find: Find, tmp_path: Path, s3: str) -> None:
    """What the engine reads is copied, once, and its removal leaves nothing."""
    weights = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x" * 20_000_000}
    rest = {"": b"", "adapter_model.bin": b"x", "README.md": b"x", "deep/a.json": b"x"}
    put(s3, "one", weights | rest)
    put(s3, "one-more", {"other.json": b"x"})
    folder, is_ours = find("s3://home/adapters/one")
    before = (folder / "adapter_config.json").stat().st_ino
    again, _ = find("s3://home/adapters/one")

    assert weights == {file.name: file.read_bytes() for file in folder.iterdir()}
    assert is_ours
    assert (folder, before) == (again, (again / "adapter_config.json").stat().st_ino)
    adapters.remove(folder)
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()]


def test_new_weights_lie_elsewhere(find: Find, s3: str) -> None:
    """vLLM keeps what it has computed by name and path: other weights have another path."""
    put(s3, "two", {"adapter_config.json": b"{}", "adapter_model.safetensors": b"old"})
    old, _ = find("s3://home/adapters/two")
    put(s3, "two", {"adapter_model.safetensors": b"new"})
    new, _ = find("s3://home/adapters/two")

    assert old != new
    assert b"old" == (old / "adapter_model.safetensors").read_bytes()
    assert b"new" == (new / "adapter_model.safetensors").read_bytes()


def test_a_change_while_it_is_fetched(
    find: Find, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of two versions are never one adapter."""
    put(s3, "three", {"adapter_config.json": b"{}", "adapter_model.safetensors": b"old"})
    read = Bucket.read

    def changed(bucket: Bucket, address: str, *rest: Any) -> bool:
        found = read(bucket, address, *rest)
        put(s3, "three", {"adapter_model.safetensors": b"new"})
        return found

    monkeypatch.setattr(Bucket, "read", changed)
    with pytest.raises(StartError, match="was changed while it was fetched"):
        find("s3://home/adapters/three")

    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("s3://home/adapters/missing", "is not in its bucket"),
        ("s3://home/adapters/one@v1", "no revision 'v1'"),
        ("s3://home/elsewhere/one", "does not lie in s3://home/adapters/"),
        ("s3://callers/one", "does not lie in s3://home/adapters/"),
        ("s3://home/adapters/../one", "is no object's address"),
        ("s3://home/adapters//one", "is no object's address"),
    ],
)
def test_what_is_not_there(find: Find, name: str, words: str) -> None:
    """What is not in the worker's part of its bucket gets its sentence."""
    with pytest.raises((StartError, RequestError), match=words):
        find(name)
