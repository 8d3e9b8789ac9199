"""Adapters that are loaded when a request first names them, from a local hub and bucket.

Only adapters are asked: beside them the base model has wrong text on a CPU.
"""

import concurrent.futures
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hub_stand_in
import models
import s3_server
from hub_stand_in import Hub
from local_endpoint import Record, Status
from served import Served, serve, text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ADAPTERS, SLOTS, JOBS = 30, 4, 64
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@dataclass(frozen=True)
class Adapted:
    served: Served
    hub: Hub
    on_disk: Path

    def ask(self, model: str) -> Record:
        return self.served.run({"prompt": "Hello", "model": model, "sampling_params": GREEDY})

    def error(self, model: str) -> dict[str, Any]:
        record = self.ask(model)
        assert Status.FAILED == record.status
        return dict(json.loads(record.done[-1].value["error"])["error"])


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    with hub_stand_in.serve() as hub, s3_server.serve() as s3:
        for number in range(ADAPTERS):
            hub.add_folder(f"org/a{number}", made(tmp_path_factory, number))
        hub.add_folder("org/again", made(tmp_path_factory, 100))
        hub.add_folder("org/again@v2", made(tmp_path_factory, 101))
        hub.add_folder("other/a", made(tmp_path_factory, 102))
        hub.add_folder("org/no-lora", made(tmp_path_factory, 103, peft_type="IA3"))
        hub.add_folder("org/rank", made(tmp_path_factory, 104, r=64))
        hub.add("org/empty", {"README.md": "x"})
        for number in range(2 * SLOTS):
            hub.add_folder(f"org/shape{number}", misshapen(tmp_path_factory, 200 + number))
        on_disk = made(tmp_path_factory, 105)
        for name, seed in (("one", 106), ("two", 107)):
            for file in made(tmp_path_factory, seed).iterdir():
                s3_server.client_of(s3).upload_file(file, "home", f"adapters/{name}/{file.name}")
        environ = {
            "MODEL_NAME": str(models.path("tiny")),
            "SERVED_MODEL_NAME": "tiny",
            "HF_ENDPOINT": hub.url,
            "LORA_ALLOWED": f"org/*, {on_disk.parent}/*, s3://home/*",
            "BUCKET_ENDPOINT_URL": s3,
            "BUCKET_ACCESS_KEY_ID": "a",
            "BUCKET_SECRET_ACCESS_KEY": "b",
            "BUCKET_NAME": "home/adapters",
            "MAX_LORAS": str(SLOTS),
            "MAX_CPU_LORAS": str(2 * SLOTS),
            "MAX_CONCURRENCY": str(JOBS),
        }
        with serve(environ) as served:
            yield Adapted(served, hub, on_disk)
            kept = fetched_folders()
    assert kept
    assert [] == fetched_folders()


def fetched_folders() -> list[Path]:
    """Return what workers have fetched and not removed."""
    return [*Path(tempfile.gettempdir()).glob("worker-vllm-*/models--org--a0")]


def made(folders: pytest.TempPathFactory, seed: int, **config: Any) -> Path:
    folder = folders.mktemp("adapters") / f"seed{seed}"
    folder.mkdir()
    models.lora(folder, seed=seed, scale=3.0)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def misshapen(folders: pytest.TempPathFactory, seed: int) -> Path:
    """Make an adapter for a model with smaller layers."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = made(folders, seed)
    path = folder / "adapter_model.safetensors"
    weights = load_file(path)
    save_file({name: torch.ones(4, 4) for name in weights}, path)
    return folder


def served_names(adapted: Adapted) -> dict[str, str]:
    return {one.id: one.root for one in adapted.served.client.models.list().data}


def test_thirty_adapters_through_four_slots(adapted: Adapted) -> None:
    """64 jobs at once for 30 adapters have each its adapter's own text, and load each once."""
    names = [f"org/a{number % ADAPTERS}" for number in range(JOBS)]
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        together = list(pool.map(adapted.ask, names))
    alone = {name: text(adapted.ask(name)) for name in dict.fromkeys(names)}

    assert [alone[name] for name in names] == [text(record) for record in together]
    assert len(set(alone.values())) > ADAPTERS / 2
    files = adapted.hub.fetched("adapter_model.safetensors")
    assert ADAPTERS == len(files)
    assert ADAPTERS == len(re.findall(r'The adapter "org/a\d+" is loaded', adapted.served.log()))
    assert set(names) <= served_names(adapted).keys()


def test_a_version(adapted: Adapted) -> None:
    """A revision behind the name is another adapter, in a folder of its own, on every path."""
    texts = [text(adapted.ask(name)) for name in ("org/again", "org/again@v2", "org/again")]
    chat = adapted.served.client.completions.create(
        model="org/again@v2", prompt="Hello", temperature=0, max_tokens=8, extra_body=GREEDY
    )
    roots = served_names(adapted)

    assert texts[0] == texts[2] != texts[1] == chat.choices[0].text
    assert roots["org/again"] != roots["org/again@v2"]


def test_a_folder(adapted: Adapted) -> None:
    """A folder that a pattern allows needs no hub."""
    folder = adapted.on_disk.parent

    assert text(adapted.ask(str(adapted.on_disk)))
    assert 404 == adapted.error(f"{folder}/seed9")["code"]
    assert 404 == adapted.error(f"{folder}/../{folder.name}/seed105")["code"]


def test_a_bucket(adapted: Adapted) -> None:
    """A folder of the worker's bucket that a pattern allows is an adapter, by its address."""
    texts = [text(adapted.ask(f"s3://home/adapters/{name}")) for name in ("one", "two", "one")]

    assert texts[0] == texts[2] != texts[1]
    assert "s3://home/adapters/one" in served_names(adapted)


@pytest.mark.parametrize(
    ("model", "code", "words"),
    [
        ("other/a", 404, "does not exist"),
        ("org/missing", 404, "is not on"),
        ("org/again@v9", 404, "no revision 'v9'"),
        ("s3://home/adapters/missing", 404, "is not in its bucket"),
        ("s3://home/elsewhere", 403, "does not lie in s3://home/adapters/"),
        ("s3://callers/one", 404, "does not exist"),
        ("org/empty", 400, "adapter_config.json"),
        ("org/no-lora", 400, '"IA3"'),
        ("org/rank", 400, "rank"),
        ("org/shape0", 400, "cannot be loaded beside this model"),
    ],
)
def test_what_cannot_be_loaded(adapted: Adapted, model: str, code: int, words: str) -> None:
    """An adapter that is not allowed, not there or does not fit gets its sentence."""
    error = adapted.error(model)

    assert (code, "model") == (error["code"], error["param"])
    assert words in error["message"]
    assert model not in served_names(adapted)


def test_what_does_not_fit_harms_nobody(adapted: Adapted) -> None:
    """More adapters of a wrong shape than there are slots leave the others as they were."""
    before = text(adapted.ask("org/a0"))
    wrong = [f"org/shape{number}" for number in range(2 * SLOTS)]
    names = [name for pair in zip(wrong, ["org/a0"] * len(wrong), strict=True) for name in pair]
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        records = dict(enumerate(pool.map(adapted.ask, names)))

    assert {Status.FAILED} == {records[at].status for at in range(0, len(names), 2)}
    assert {before} == {text(records[at]) for at in range(1, len(names), 2)}
