"""A model's name becomes a folder: real folders, laid out as huggingface_hub lays them out."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from worker.errors import SettingsError
from worker.model.files import Kind
from worker.model.locate import RUNPOD_CACHE, caches, fetch, locate, resolve

NAME = "Org/Tiny-Model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
CONFIG = {"config.json": "{}"}
WHOLE = {**CONFIG, "model.safetensors": "weights"}


def index(*shards: str) -> str:
    return json.dumps({"weight_map": {f"layer.{i}": shard for i, shard in enumerate(shards)}})


def make(
    cache: Path,
    files: dict[str, str],
    *,
    folder: str = "models--Org--Tiny-Model",
    commit: str = COMMIT,
    refs: Iterable[str] = ("main",),
    dangling: Iterable[str] = (),
) -> Path:
    """Write a repository as the hub does: refs/, blobs/, and links to them in snapshots/."""
    repository = cache / folder
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    (repository / "blobs").mkdir(exist_ok=True)
    for name, text in files.items():
        blob = repository / "blobs" / f"{commit[:4]}-{name.replace('/', '-')}"
        blob.write_text(text)
        (snapshot / name).symlink_to(blob)
    for name in dangling:
        (snapshot / name).symlink_to(repository / "blobs" / "gone")
    for ref in refs:
        path = repository / "refs" / ref
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)
    return snapshot


@pytest.mark.parametrize(
    "folder", ["models--Org--Tiny-Model", "models--org--tiny-model", "models--ORG--tiny-MODEL"]
)
@pytest.mark.parametrize("name", [NAME, NAME.lower()])
def test_found_whatever_the_case(tmp_path: Path, folder: str, name: str) -> None:
    """A model is found under its name, whether the cache kept its capitals or not."""
    snapshot = make(tmp_path, WHOLE, folder=folder)

    assert str(snapshot) == resolve(name, None, [tmp_path])


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(WHOLE, id="one file"),
        pytest.param({**CONFIG, "pytorch_model.bin": "weights"}, id="only .bin"),
        pytest.param({**CONFIG, "model.gguf": "weights"}, id="only .gguf"),
        pytest.param(
            {**CONFIG, "model.safetensors.index.json": index(*SHARDS)} | dict.fromkeys(SHARDS, "w"),
            id="shards",
        ),
        pytest.param({**CONFIG, **dict.fromkeys(SHARDS, "w")}, id="shards without an index"),
        pytest.param(
            {**WHOLE, "pytorch_model.bin.index.json": index("pytorch_model-00001-of-00001.bin")},
            id="the index of a second format that was left out",
        ),
        pytest.param({**WHOLE, "modules.index.json": "[]"}, id="an index of something else"),
    ],
)
def test_whole_snapshots(tmp_path: Path, files: dict[str, str]) -> None:
    """A snapshot counts when its configuration is there and one format's weights are whole."""
    snapshot = make(tmp_path, files)

    assert str(snapshot) == resolve(NAME, None, [tmp_path])


@pytest.mark.parametrize(
    ("files", "dangling"),
    [
        pytest.param({}, (), id="empty"),
        pytest.param(CONFIG, (), id="no weights"),
        pytest.param({"model.safetensors": "w"}, (), id="no configuration"),
        pytest.param(CONFIG, ("model.safetensors",), id="dangling weights"),
        pytest.param({"model.safetensors": "w"}, ("config.json",), id="dangling configuration"),
        pytest.param(
            {**CONFIG, "training_args.bin": "x"}, ("model.safetensors",), id="dangling, and a .bin"
        ),
        pytest.param(
            {**CONFIG, "model.safetensors.index.json": index(*SHARDS), SHARDS[0]: "w"},
            (),
            id="a shard is missing",
        ),
        pytest.param(
            {**CONFIG, "model.safetensors.index.json": index(*SHARDS), SHARDS[0]: "w"},
            SHARDS[1:],
            id="a shard is dangling",
        ),
        pytest.param(
            {**CONFIG, SHARDS[0]: "w"}, ("model.safetensors.index.json",), id="dangling index"
        ),
        pytest.param(
            {**CONFIG, SHARDS[0]: "w", "model.safetensors.index.json": '{"weight'},
            (),
            id="half an index",
        ),
        pytest.param(
            {**CONFIG, SHARDS[0]: "w", "model.safetensors.index.json": "{}"},
            (),
            id="an index without a map",
        ),
    ],
)
def test_half_a_download(tmp_path: Path, files: dict[str, str], dangling: tuple[str, ...]) -> None:
    """Half a download does not count: the name is kept, so that vLLM completes or refuses it."""
    make(tmp_path, files, dangling=dangling)

    assert resolve(NAME, None, [tmp_path]) == NAME


@pytest.mark.parametrize("revision", ["v2", "refs/pr/1", "feature/x", "f" * 40])
def test_revision(tmp_path: Path, revision: str) -> None:
    """A revision is a branch, a tag, a pull request or a commit, and never the main branch."""
    make(tmp_path, WHOLE)
    refs = () if revision == "f" * 40 else (revision,)
    other = make(tmp_path, WHOLE, commit="f" * 40, refs=refs)

    assert str(other) == resolve(NAME, revision, [tmp_path])


@pytest.mark.parametrize("revision", [None, "main"])
def test_a_cache_without_refs(tmp_path: Path, revision: str | None) -> None:
    """A cache that was copied without its refs holds the main branch, where only one is whole."""
    snapshot = make(tmp_path, WHOLE, refs=())
    make(tmp_path, CONFIG, commit="d" * 40, refs=())

    assert str(snapshot) == resolve(NAME, revision, [tmp_path])

    make(tmp_path, WHOLE, commit="e" * 40, refs=())

    assert NAME == resolve(NAME, revision, [tmp_path])


def test_a_cache_of_another_revision(tmp_path: Path) -> None:
    """A cache that holds a tag alone does not hold the main branch."""
    make(tmp_path, WHOLE, refs=["v2"])

    assert NAME == resolve(NAME, None, [tmp_path])


def test_a_short_commit(tmp_path: Path) -> None:
    """A commit may be named by its first digits, as the hub takes it, where only one is meant."""
    make(tmp_path, WHOLE)
    other = make(tmp_path, WHOLE, commit="012f" + "0" * 36, refs=())

    assert str(other) == resolve(NAME, "012f", [tmp_path])
    assert NAME == resolve(NAME, "012", [tmp_path])


@pytest.mark.parametrize("revision", ["v3", "0123457", "*", "e" * 40])
def test_unknown_revision(tmp_path: Path, revision: str) -> None:
    """A revision that the cache does not hold is left to the hub, not answered with another."""
    make(tmp_path, WHOLE)

    assert resolve(NAME, revision, [tmp_path]) == NAME


def test_ref_with_a_line_end(tmp_path: Path) -> None:
    """A ref that some tool ended with a newline names the same commit."""
    snapshot = make(tmp_path, WHOLE)
    (tmp_path / "models--Org--Tiny-Model" / "refs" / "main").write_text(f"{COMMIT}\n")

    assert str(snapshot) == resolve(NAME, None, [tmp_path])


def test_nearest_cache_first(tmp_path: Path) -> None:
    """Caches are asked in order, and one with half a download gives way to the next."""
    near, far = tmp_path / "near", tmp_path / "far"
    make(near, CONFIG)
    whole = make(far, WHOLE, folder="models--org--tiny-model")
    missing = tmp_path / "missing"

    assert str(whole) == resolve(NAME, None, [missing, near, far])


def test_other_models_are_not_taken(tmp_path: Path) -> None:
    """Only the whole name counts: neither a part of it nor a data set of that name."""
    make(tmp_path, WHOLE, folder="models--Org--Tiny-Model-2")
    make(tmp_path, WHOLE, folder="datasets--Org--Tiny-Model")

    assert resolve(NAME, None, [tmp_path]) == NAME


def test_a_folder_is_itself(tmp_path: Path) -> None:
    """A path that exists is the model, whatever is in it: vLLM judges it."""
    assert str(tmp_path) == resolve(str(tmp_path), "v2", [tmp_path / "cache"])


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HF_HOME": "/data/hf"},
        {"HF_HOME": "~/hf"},
        {"HF_HUB_CACHE": "/data/hub", "HF_HOME": "/data/hf"},
        {"HF_HUB_CACHE": "~/hub"},
        {"HUGGINGFACE_HUB_CACHE": "/data/old"},
        {"XDG_CACHE_HOME": "/data/xdg"},
    ],
)
def test_own_cache_is_the_hubs(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    """The first cache is the one that huggingface_hub itself uses in this environment."""
    monkeypatch.setenv("HOME", "/home/someone")
    hub = subprocess.run(
        [sys.executable, "-c", "from huggingface_hub import constants as c; print(c.HF_HUB_CACHE)"],
        env={"HOME": "/home/someone", "PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout.strip()

    assert (Path(hub), RUNPOD_CACHE) == caches(environ)


def test_empty_variables_are_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable, as a build's unset argument leaves it, changes nothing."""
    monkeypatch.setenv("HOME", "/home/someone")

    assert caches({}) == caches({"HF_HOME": "", "HF_HUB_CACHE": "", "XDG_CACHE_HOME": ""})


def test_runpods_cache_once() -> None:
    """Where the hub's cache is RunPod's own, it is asked once."""
    assert (RUNPOD_CACHE,) == caches({"HF_HUB_CACHE": str(RUNPOD_CACHE)})


def test_the_image_comes_first() -> None:
    """A baked model is taken from the image, whatever else is mounted; BASE_PATH is asked too."""
    baked = {"BASE_PATH": "/models"}
    environ = {"BASE_PATH": "/data", "HF_HUB_CACHE": "/elsewhere"}
    found = [str(cache) for cache in caches(environ, baked)]

    assert ["/models/huggingface-cache/hub", "/elsewhere", "/data/huggingface-cache/hub"] == (
        found[:3]
    )


@pytest.mark.parametrize(
    ("kind", "files", "complete"),
    [
        ("tokenizer", {"tokenizer.json": "{}"}, True),
        ("tokenizer", {"spiece.model": "sp"}, True),
        ("tokenizer", {"qwen.tiktoken": "t"}, True),
        ("tokenizer", {"tekken.json": "{}"}, True),
        ("tokenizer", CONFIG, False),
        ("adapter", {"adapter_config.json": "{}", "adapter_model.safetensors": "w"}, True),
        ("adapter", {"adapter_config.json": "{}", "adapter_model.bin": "w"}, True),
        ("adapter", {"adapter_config.json": "{}"}, False),
        ("adapter", {"adapter_model.safetensors": "w"}, False),
        ("model", {"params.json": "{}", "consolidated.safetensors": "w"}, True),
    ],
)
def test_what_each_kind_needs(
    tmp_path: Path, kind: Kind, files: dict[str, str], complete: bool
) -> None:
    """A tokenizer needs no weights, an adapter needs both of its files, Mistral's has its own."""
    snapshot = make(tmp_path, files)

    assert (str(snapshot) if complete else NAME) == resolve(NAME, None, [tmp_path], kind)


def test_gguf(tmp_path: Path) -> None:
    """`org/name:Q4_K_M` is the file of that quantisation, and no other one."""
    snapshot = make(tmp_path, {"m-Q8_0.gguf": "w", "m-Q4_K_M.gguf": "w"})

    assert str(snapshot / "m-Q4_K_M.gguf") == resolve(f"{NAME}:Q4_K_M", None, [tmp_path])
    assert f"{NAME}:Q2_K" == resolve(f"{NAME}:Q2_K", None, [tmp_path])


@pytest.mark.parametrize(
    ("kind", "variable"),
    [
        ("model", "MODEL_NAME"),
        ("draft", "SPECULATIVE_CONFIG"),
        ("tokenizer", "TOKENIZER_NAME"),
        ("adapter", "LORA_MODULES"),
    ],
)
def test_a_path_to_nothing(kind: Kind, variable: str) -> None:
    """A path that is not there names the setting that gave it."""
    with pytest.raises(SettingsError, match=f"{variable}='/none' is a path, and there is nothing"):
        resolve("/none", None, [], kind)


def arguments(**values: object) -> argparse.Namespace:
    names = ("revision", "tokenizer", "tokenizer_revision", "lora_modules", "download_dir")
    names += ("code_revision", "speculative_config", "spec_model")
    others = {"load_format": "auto", "ignore_patterns": [], "hf_token": None}
    return argparse.Namespace(**{**dict.fromkeys(names), **others, **values})


def test_every_name_becomes_a_folder(tmp_path: Path) -> None:
    """Model, tokenizer and adapters are found in the caches; what was given stays as it was."""
    model = make(tmp_path, WHOLE)
    tokenizer = make(tmp_path, {"tokenizer.json": "{}"}, folder="models--org--t", refs=["v1"])
    files = {"adapter_config.json": "{}", "adapter_model.safetensors": "w"}
    adapter = make(tmp_path, files, folder="models--org--a")
    given = arguments(
        model=NAME,
        tokenizer="org/t",
        tokenizer_revision="v1",
        lora_modules=[argparse.Namespace(name="a", path="org/a")],
    )
    found = locate(given, [tmp_path])

    assert (str(model), str(tokenizer)) == (found.model, found.tokenizer)
    assert [str(adapter)] == [adapter.path for adapter in found.lora_modules]
    assert (NAME, "org/a") == (given.model, given.lora_modules[0].path)


@pytest.mark.parametrize(
    ("given", "commit"),
    [
        ({"tokenizer_revision": "v2"}, "2"),
        ({"tokenizer_revision": "v2", "revision": "v1"}, "2"),
        ({"tokenizer": NAME, "tokenizer_revision": "v2"}, "2"),
        ({"tokenizer": NAME, "revision": "v1"}, "1"),
        ({"tokenizer": NAME}, "0"),
        ({"tokenizer": "org/t", "revision": "v1"}, "9"),
        ({"revision": "v1"}, None),
    ],
)
def test_each_half_of_a_tokenizers_name_has_its_default(
    tmp_path: Path, given: dict[str, str], commit: str | None
) -> None:
    """A revision alone is one of the model's repository; its own name means its own revision."""
    files = {**WHOLE, "tokenizer.json": "{}"}
    for ref, digit in (("main", "0"), ("v1", "1"), ("v2", "2")):
        make(tmp_path, files, commit=digit * 40, refs=[ref])
    make(tmp_path, {"tokenizer.json": "{}"}, folder="models--org--t", commit="9" * 40)
    found = locate(arguments(model=NAME, **given), [tmp_path])
    tokenizer = found.tokenizer and Path(found.tokenizer).name

    assert (commit and commit * 40) == tokenizer
    assert Path(found.model).name == ("1" if "revision" in given else "0") * 40


def test_a_tokenizer_that_no_cache_has(tmp_path: Path) -> None:
    """What was only half found keeps its pair, for the hub to be asked."""
    make(tmp_path, WHOLE, refs=["v1"])
    for given in ({"tokenizer_revision": "v2"}, {"tokenizer": NAME, "revision": "v1"}):
        found = locate(arguments(model=NAME, **given), [tmp_path / "none"])

        assert (found.tokenizer, found.tokenizer_revision) == (
            NAME,
            given.get("tokenizer_revision", "v1"),
        )


@pytest.mark.parametrize(("revision", "commit"), [(None, "0"), ("v1", "1")])
def test_a_draft_model_is_found_too(tmp_path: Path, revision: str | None, commit: str) -> None:
    """The model that speculates has a name and a revision of its own; a method's is left alone."""
    for ref, digit in (("main", "0"), ("v1", "1")):
        make(tmp_path, WHOLE, commit=digit * 40, refs=[ref])
    config = {"model": NAME, "revision": revision, "num_speculative_tokens": 2}
    given = arguments(model="org/big", speculative_config=config)
    found = locate(given, [tmp_path])

    assert Path(found.speculative_config["model"]).name == commit * 40
    assert NAME == given.speculative_config["model"]
    assert str(tmp_path) in locate(arguments(model="a/b", spec_model=NAME), [tmp_path]).spec_model
    for method in ("ngram", "suffix", "my_module.MyProposer"):
        config = {"model": method}

        assert (
            config
            == locate(
                arguments(model="org/big", speculative_config=config), [tmp_path]
            ).speculative_config
        )


@pytest.mark.parametrize(
    ("model", "load_format", "environ"),
    [
        ("s3://bucket/model", "auto", {}),
        (NAME, "tensorizer", {}),
        (NAME, "dummy", {}),
        (NAME, "auto", {"VLLM_USE_MODELSCOPE": "True"}),
    ],
)
def test_what_is_left_to_vllm(model: str, load_format: str, environ: dict[str, str]) -> None:
    """Other stores than the hub, and formats that load in their own way, are vLLM's to fetch."""
    args = arguments(model=model, load_format=load_format)

    assert model == fetch(args, environ, print).model
