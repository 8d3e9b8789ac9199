"""Adapters that a model cannot have are found from the heads of their files, wherever they are."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from test_weights import safetensors

import hub_stand_in
import models
from command import answered

pytestmark = pytest.mark.timeout(600)

LAYER = "base_model.model.model.layers.0.self_attn"
LORA = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
SCRIPT = """
import json, sys
from worker.doctor.cards import read
from worker.engine import card
wanted = read("L4")
card.stand_in(wanted[1].name, wanted[1].memory, wanted[1].capability, 1)
from worker.doctor.examine import examine
from worker.errors import WorkerError
for row in json.loads(sys.argv[1]):
    try:
        report = examine(row, {}, wanted)
        said = {"disk": report.host.disk, "at_once": report.host.read_at_once}
    except WorkerError as error:
        said = str(error)
    print("said", json.dumps(said), flush=True)
"""


def _adapter(
    *, layer: str = f"{LAYER}.q_proj", width: int = 256, rank: int = 4, **config: Any
) -> dict[str, bytes]:
    size = rank * width * 4
    tensors = {
        f"{layer}.lora_A.weight": ("F32", [rank, width], size),
        f"{layer}.lora_B.weight": ("F32", [width, rank], size),
    }
    its = LORA | {"r": rank} | config
    return {
        "adapter_config.json": json.dumps(its).encode(),
        "adapter_model.safetensors": safetensors(**tensors),
    }


RIGHT = _adapter(rank=16)
# What is wrong, and what its sentence says.
WRONG: Mapping[str, tuple[dict[str, bytes], str]] = {
    "of a wider model": (_adapter(width=512), "q_proj are 512 wide, and the model's 256"),
    "of another family": (
        _adapter(layer=f"{LAYER}.query_key"),
        "it changes model.layers.0.self_attn.query_key, and vLLM takes down_proj, ",
    ),
    "of too high a rank": (_adapter(rank=32), "LoRA rank 32 is greater than MAX_LORA_RANK 16"),
    "of another method": (_adapter(peft_type="IA3"), 'its peft_type is "IA3" and not LORA'),
    "that vLLM does not have": (_adapter(use_dora=True), "vLLM does not yet support DoRA"),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the doctor says of the tiny model with each, the wrong ones from the hub."""
    base = tmp_path_factory.mktemp("adapters")
    local = base / "right"
    local.mkdir()
    for file, data in RIGHT.items():
        (local / file).write_bytes(data)
    places = {"right": str(local), "right, of the hub": "org/right"}
    with hub_stand_in.serve() as hub, pytest.MonkeyPatch.context() as patch:
        hub.add("org/right", RIGHT)
        for at, (name, (files, _)) in enumerate(WRONG.items()):
            hub.add(f"org/wrong-{at}", files)
            places[name] = f"org/wrong-{at}"
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HOME", str(base / "home"))
        rows = [
            {"MODEL_NAME": str(models.path("tiny")), "LORA_MODULES": json.dumps([adapter])}
            for adapter in ({"name": "mine", "path": place} for place in places.values())
        ]
        yield {
            **dict(zip(places, answered(rows, "said", "-c", SCRIPT), strict=True)),
            "fetched": hub.fetched("adapter_model.safetensors"),
        }


@pytest.mark.parametrize("name", ["right", "right, of the hub"])
def test_one_that_fits(said: dict[str, Any], name: str) -> None:
    """It is judged sound, and the disk holds it beside the model."""
    model = (models.path("tiny") / "model.safetensors").stat().st_size
    adapter = len(RIGHT["adapter_model.safetensors"])

    assert {"disk": model + adapter, "at_once": model} == said[name]


@pytest.mark.parametrize("name", WRONG)
def test_one_that_does_not(said: dict[str, Any], name: str) -> None:
    """The sentence names the variable, the adapter, and what of it does not fit."""
    begins = "LORA_MODULES: adapter 'mine' cannot be loaded beside this model: "

    assert str(said[name]).startswith(begins)
    assert WRONG[name][1] in said[name]


def test_heads_alone_are_fetched(said: dict[str, Any]) -> None:
    """Of each adapter of the hub the first bytes say all of this."""
    assert ["bytes=0-100000"] * (1 + len(WRONG)) == said["fetched"]
