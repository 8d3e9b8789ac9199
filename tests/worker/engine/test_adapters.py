"""Which adapters a request may name, how often they are loaded, and which leave the disk."""

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.utils.counter import AtomicCounter

from worker.engine.adapters import Adapters, Store
from worker.errors import RequestError, StartError


class Engine:
    """An engine that takes every adapter but those named `wrong`, and writes down what it does."""

    errored = False
    model_config = SimpleNamespace(model="/nowhere")

    def __init__(self) -> None:
        self.did: list[tuple[str, Any]] = []

    async def add_lora(self, adapter: Any) -> None:
        await asyncio.sleep(0.01)
        self.did.append(("add", adapter.lora_name))
        if "wrong" in adapter.lora_name:
            raise RuntimeError("Call to add_lora method failed: It is too wide.")

    async def remove_lora(self, number: int) -> None:
        self.did.append(("remove", number))


class Room:
    """Adapters of 100 bytes and more, of which `most_bytes` may stay on the disk."""

    def __init__(self, folder: Path, most_bytes: int, *allowed: str) -> None:
        self.folder, self.engine = folder, Engine()
        self.found: list[tuple[str, str | None]] = []
        self.removed: list[str] = []
        self.models = SimpleNamespace(
            lora_requests={}, lora_id_counter=AtomicCounter(0), is_base_model="base".__eq__
        )
        state = SimpleNamespace(openai_serving_models=self.models)
        store = Store(self.find, lambda path: self.removed.append(path.name), most_bytes)
        self.adapters = Adapters(SimpleNamespace(state=state), self.engine, store, allowed)

    def find(self, name: str, revision: str | None) -> tuple[Path, bool]:
        self.found.append((name, revision))
        if "missing" in name:
            raise StartError(f"{name} is not on the hub")
        path = self.folder / f"{name.replace('/', '-')}-{revision}"
        path.mkdir(exist_ok=True)
        config = {"peft_type": "LORA", "fill": "x" * 70}
        (path / "adapter_config.json").write_text(json.dumps(config))
        return path, True

    async def use(self, name: Any) -> None:
        async with self.adapters.held(name):
            pass


def run(main: Coroutine[Any, Any, Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(limited())


@pytest.mark.parametrize(
    "name",
    [
        *("base", "other/a", "org/../a", "org", "/x/../etc", "/y-lora", "s3://x/y-lora"),
        *(None, 5, ["org/a"]),
    ],
)
def test_what_no_pattern_allows(tmp_path: Path, name: Any) -> None:
    """What is not allowed is not looked for; a path and a bucket only where a pattern is one."""
    room = Room(tmp_path, 1000, "org/*", "base", "/x/*", "*-lora")
    run(room.use(name))

    assert [] == room.found


def test_without_patterns_nothing_is_loaded(tmp_path: Path) -> None:
    """LORA_ALLOWED is empty by default, and then no name is looked for."""
    room = Room(tmp_path, 1000)
    run(room.use("org/a"))

    assert [] == room.found


def test_first_uses_at_once_load_once(tmp_path: Path) -> None:
    """However many ask first, it is loaded once; whoever leaves stops it for nobody."""
    room = Room(tmp_path, 1000, "org/*")

    async def main() -> None:
        tasks = [asyncio.create_task(room.use("org/a@v1")) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await room.use("org/a@v1")

    run(main())

    assert [("org/a", "v1")] == room.found
    assert [("add", "org/a@v1")] == room.engine.did
    assert ["org/a@v1"] == list(room.models.lora_requests)


@pytest.mark.parametrize(
    ("name", "code", "words"), [("org/missing", 404, "not on the hub"), ("org/wrong", 400, "wide")]
)
def test_what_fails_is_told_and_tried_again(
    tmp_path: Path, name: str, code: int, words: str
) -> None:
    """What cannot be loaded is a sentence, leaves nothing in the engine, and may come later."""
    room = Room(tmp_path, 1000, "org/*")
    for _ in range(2):
        with pytest.raises(RequestError, match=words) as refused:
            run(room.use(name))

    assert code == refused.value.code
    assert 2 == len(room.found)
    assert [] == list(room.models.lora_requests)
    if code == 400:
        assert ["add", "remove"] * 2 == [what for what, _ in room.engine.did]


def test_what_was_used_longest_ago_leaves_the_disk(tmp_path: Path) -> None:
    """Beyond LORA_DISK_GB the adapter leaves that nobody has used for longest."""
    room = Room(tmp_path, 250, "org/*")

    async def main() -> None:
        for name in ("org/a", "org/b", "org/a", "org/c"):
            await room.use(name)

    run(main())

    assert ["org-b-None"] == room.removed
    assert ["org/a", "org/c"] == list(room.models.lora_requests)
    assert ("remove", 2) in room.engine.did


def test_what_does_not_fit_counts_on_the_disk(tmp_path: Path) -> None:
    """What was fetched and cannot be loaded leaves the disk as the others do."""
    room = Room(tmp_path, 150, "org/*")

    async def main() -> None:
        for name in ("org/wrong", "org/a"):
            with contextlib.suppress(RequestError):
                await room.use(name)

    run(main())

    assert ["org-wrong-None"] == room.removed


def test_what_is_answering_stays(tmp_path: Path) -> None:
    """An adapter that is answering is not deleted, even if that is too much for the disk."""
    room = Room(tmp_path, 150, "org/*")

    async def main() -> None:
        async with room.adapters.held("org/a"):
            await room.use("org/b")
            await room.use("org/c")
            assert "org/a" in room.models.lora_requests

    run(main())

    assert ["org-b-None"] == room.removed
