"""`python -m worker --doctor` as somebody types it, who has no GPU and no weights."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kinds import write
from known import LLAMA_8B

import hub_stand_in
import models
from command import errors, worker
from hub_stand_in import Hub

pytestmark = pytest.mark.timeout(600)


def at_night(*row: Any) -> Any:
    return pytest.param(*row, marks=pytest.mark.slow)


doctor = partial(worker, "--doctor")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("llama"), LLAMA_8B)


def test_a_card_on_which_it_does_not_fit(llama: str) -> None:
    """The verdict comes first, the code is 1, and what to try is computed: it fits with that."""
    done = doctor(MODEL_NAME=llama, GPU="L4")
    lines = done.stdout.splitlines()

    assert 1 == done.returncode, done.stderr
    assert lines[0].startswith("Does not fit:")
    assert "on L4, 131,072 tokens of context" in lines[0]
    assert "MAX_MODEL_LEN=" in done.stdout
    assert "GPU=A40, a larger card: fits" in done.stdout
    assert "  no chat template: " in done.stdout
    assert "\x1b" not in done.stdout
    assert "vllm" not in done.stderr


@pytest.mark.slow
def test_json_and_the_trials_hold(llama: str) -> None:
    """As JSON for programs; what it says to try is then true."""
    done = doctor("--json", MODEL_NAME=llama, GPU="L4")
    report = json.loads(done.stdout)
    tries = {one["change"]: one for one in report["try"]}
    length = next(change for change in tries if change.startswith("MAX_MODEL_LEN="))
    then = json.loads(
        doctor("--json", MODEL_NAME=llama, GPU="L4", MAX_MODEL_LEN=length.split("=")[1]).stdout
    )

    assert 1 == done.returncode == report["exit_code"]
    assert ("does not fit", "fits") == (report["cards"][0]["answer"], then["cards"][0]["answer"])
    assert tries[length]["cache"] == then["cards"][0]["cache"]


@pytest.mark.slow
def test_every_card(llama: str) -> None:
    """Without GPU each card has its row, and one that is large enough makes the code 0."""
    done = doctor("--json", MODEL_NAME=llama, MAX_MODEL_LEN="8192")
    answers = {card["card"]: card["answer"] for card in json.loads(done.stdout)["cards"]}

    assert 0 == done.returncode
    assert 20 < len(answers)
    assert ("does not fit", "fits") == (answers["RTX A4000"], answers["L40S"])


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"GPU": "L40X"}, "GPU='L40X' is no card that RunPod has"),
        ({"GPU": "4xL4", "TENSOR_PARALLEL_SIZE": "3"}, "(32) must be divisible by tensor parallel"),
        at_night({"GPU": "L4", "TENSOR_PARALLEL_SIZE": "2"}, "at most the number of GPUs"),
        at_night({"GPU": "L4", "MAX_MODEL_LEN": "999999"}, "MAX_MODEL_LEN=999999 must be at most"),
        at_night({"GPU": "L4", "QUANTIZATION": "awq"}, "QUANTIZATION=awq is for a model whose"),
        at_night({"GPU": "L4", "TOOL_CALL_PARSER": "lama"}, "TOOL_CALL_PARSER='lama' must be"),
        at_night(
            {"GPU": "L4", "LORA_MODULES": "ADAPTER", "MAX_LORA_RANK": "1"},
            "has rank 4, more than MAX_LORA_RANK=1",
        ),
    ],
)
def test_a_wrong_configuration(llama: str, environ: dict[str, str], words: str) -> None:
    """Each is one sentence that names the variable and the way out."""
    adapter = json.dumps([{"name": "a", "path": str(models.path("tiny-lora"))}])
    environ = {name: adapter if value == "ADAPTER" else value for name, value in environ.items()}
    done = doctor(MODEL_NAME=llama, **environ)
    sentences = errors(done)

    assert 1 == done.returncode, done.stdout + done.stderr
    assert 1 == len(sentences)
    assert words in sentences[0]
    assert list(environ)[-1] in sentences[0]
    assert "Traceback" not in done.stderr


def test_a_wrong_configuration_as_json() -> None:
    """A program gets the sentence as it gets a report."""
    done = doctor("--json", GPU="L40X")
    report = json.loads(done.stdout)

    assert 1 == done.returncode == report["exit_code"]
    assert report["error"].startswith("GPU='L40X' is no card that RunPod has")


CHANGES = {"temperature": 0.6, "top_k": 20}


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with hub_stand_in.serve() as served:
        tiny = served.add_folder("org/tiny", models.path("tiny")).files
        changes = json.dumps(CHANGES | {"eos_token_id": 1})
        served.add("org/tiny", {**tiny, "generation_config.json": changes})
        yield served


@pytest.mark.slow
def test_a_model_of_the_hub_without_its_weights(hub: Hub, tmp_path: Path) -> None:
    """Of the hub's weights the head alone is fetched, and the sizes are the files'."""
    size = (models.path("tiny") / "model.safetensors").stat().st_size
    done = doctor(
        "--json", MODEL_NAME="org/tiny", GPU="24", HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path)
    )
    report = json.loads(done.stdout)
    files, its = report["weight_files"], report["model_wants"]

    assert 0 == done.returncode, done.stderr
    assert (1, size) == (files["count"], files["stored"])
    assert ["bytes=0-100000"] == hub.fetched("model.safetensors")
    assert (True, {}) == (its["has_template"], its["set"])
    assert CHANGES == its["changes"]
