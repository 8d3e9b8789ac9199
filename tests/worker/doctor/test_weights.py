"""Sizes come from the heads of files, of a folder and of the hub alike; nothing else is read."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import hub_stand_in
from hub_stand_in import Hub
from worker.doctor import weights
from worker.errors import StartError

pytestmark = pytest.mark.timeout(60)


def safetensors(**tensors: tuple[str, list[int], int]) -> bytes:
    """Return a file of zeros: name=(dtype, shape, bytes)."""
    head, at = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + bytes(at)


FIRST = safetensors(a=("BF16", [1000, 1000], 2_000_000), b=("F8_E4M3", [500, 1000], 500_000))
SECOND = safetensors(c=("BF16", [1000, 1500], 3_000_000))
NAMES = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = json.dumps({"weight_map": {"a": NAMES[0], "b": NAMES[0], "c": NAMES[1]}})
FILES = {
    NAMES[0]: FIRST,
    NAMES[1]: SECOND,
    "model.safetensors.index.json": INDEX.encode(),
    "model.safetensors": FIRST + SECOND,  # the same once more, which the index leaves out
    "pytorch_model.bin": bytes(9_000_000),
    "config.json": b"{}",
}
EXPECTED = weights.Weights(
    2,
    len(FIRST) + len(SECOND),
    len(SECOND),
    {"BF16": 5_000_000, "F8_E4M3": 500_000},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_stand_in.serve() as served:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", served.url)
        monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", served.url)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            served.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        yield served


def test_a_folder(folder: Path) -> None:
    """Of two formats one counts, of the better one what the index names, each type by its bytes."""
    assert EXPECTED == weights.read(str(folder), None, str(folder))


def test_the_hub_sends_heads_alone(hub: Hub, folder: Path) -> None:
    """The hub gives the same answer, and of each file at most its first 100 kB."""
    hub.add("org/model", FILES)

    assert EXPECTED == weights.read("org/model", None, str(folder))
    ranges = [hub.fetched(name) for name in NAMES]
    assert [["bytes=0-100000"]] * 2 == ranges
    assert not hub.fetched("pytorch_model.bin")


@pytest.mark.parametrize(
    ("parameters", "by_dtype", "least"),
    [
        ({"BF16": 2_500_000, "F8_E4M3": 500_000}, {"BF16": 5_000_000, "F8_E4M3": 500_000}, 5.5e6),
        ({"F32": 1_000_000, "BOOL": 8}, {"F32": 4_000_000, "BOOL": 8}, 2_000_008),
        ({"I32": 9_000_000}, {"I32": 36_000_000}, len(FIRST) + len(SECOND)),
        (None, {}, 0),
    ],
)
def test_the_hubs_own_sum(
    hub: Hub,
    folder: Path,
    parameters: dict[str, int] | None,
    by_dtype: dict[str, int],
    least: float,
) -> None:
    """Without the heads the hub's count is taken, of which the files' size is the most."""
    hub.add("org/model", FILES, parameters=parameters)
    found = weights.read("org/model", None, str(folder), heads=False)

    assert found
    assert (by_dtype, least) == (found.by_dtype, found.least)
    assert not hub.fetched(NAMES[0])


@pytest.mark.parametrize(
    ("name", "revision", "words"),
    [
        ("org/gated", None, "is gated: accept its terms"),
        ("org/mispelt", None, "is not on"),
        ("org/model", "v9", "has no revision 'v9'"),
    ],
)
def test_what_the_hub_refuses(
    hub: Hub, folder: Path, name: str, revision: str | None, words: str
) -> None:
    """Gated, missing, a wrong revision: the sentence that a start would say."""
    hub.add("org/model", FILES)
    hub.add("org/gated", FILES, gated=True)

    with pytest.raises(StartError, match=words):
        weights.read(name, revision, str(folder))


def test_a_gguf_file(tmp_path: Path) -> None:
    """A format without such heads has its size."""
    file = tmp_path / "model-Q4_K_M.gguf"
    file.write_bytes(bytes(1000))

    assert weights.Weights(1, 1000, 1000) == weights.read(str(file), None, str(file))
