"""The doctor's page: the verdict first, within 80 columns, and a way out where there is one."""

from typing import Any

import pytest
from kinds import write
from known import LLAMA_8B

from command import answered

pytestmark = pytest.mark.timeout(600)

LARGE = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}
MODELS: dict[str, dict[str, Any]] = {
    "every card": LLAMA_8B,
    "too large for one": LLAMA_8B | LARGE | {"num_hidden_layers": 80},
    # It asks for an operator's overload while it is built.
    "only on its card": {
        "model_type": "gemma3n_text",
        "architectures": ["Gemma3nForCausalLM"],
        "dtype": "bfloat16",
    },
}
SCRIPT = """
import json, sys
from worker.doctor.cards import read
from worker.engine import card
wanted = read("L4")
card.stand_in(wanted[1].name, wanted[1].memory, wanted[1].capability, 1)
from rich.console import Console
from worker.doctor import page
from worker.doctor.examine import examine
for row in json.loads(sys.argv[1]):
    report = examine(row, {}, wanted if "GPU" in row else None)
    console = Console(width=80)
    with console.capture() as drawn:
        page.show(report, console)
    json_too = json.loads(page.as_json(report))
    print("said", json.dumps([report.exit_code, drawn.get(), json_too]), flush=True)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The exit code, the page and the JSON of each."""
    base = tmp_path_factory.mktemp("pages")
    rows = [
        {"MODEL_NAME": write(base / name.replace(" ", "-"), config), "SERVED_MODEL_NAME": "mine"}
        | ({} if name == "every card" else {"GPU": "L4"})
        for name, config in MODELS.items()
    ]
    return dict(zip(MODELS, answered(rows, "said", "-c", SCRIPT), strict=True))


def test_every_card(said: dict[str, list[Any]]) -> None:
    """How many cards hold it and which is the smallest; each has its row, and none is cut."""
    code, page, report = said["every card"]
    lines = page.splitlines()

    assert 0 == code == report["exit_code"]
    assert lines[0] == "Fits: mine on 11 of 21 cards, one alone; the smallest is A40."
    assert 21 == len(report["cards"])
    assert all(
        any(line.split("  ")[0] == f" {card['card']}" for line in lines) for card in report["cards"]
    )
    assert "…" not in page
    assert 80 >= max(map(len, lines))


def test_several_cards_are_the_way_out(said: dict[str, list[Any]]) -> None:
    """Where no card alone holds a model, some that share it are tried, and fit."""
    code, page, report = said["too large for one"]

    assert 1 == code
    assert page.startswith("Does not fit: mine on L4, 131,072 tokens of context.")
    assert ["GPU=2xH200 with TENSOR_PARALLEL_SIZE=2"] == [one["change"] for one in report["try"]]
    assert "fits" == report["try"][0]["answer"]


def test_what_cannot_be_told(said: dict[str, list[Any]]) -> None:
    """A model that only builds on its card has the code 2, and the reason."""
    code, page, report = said["only on its card"]

    assert 2 == code == report["exit_code"]
    assert page.startswith("Cannot tell: vLLM cannot build the model without its card (")
    assert [] == report["cards"]
