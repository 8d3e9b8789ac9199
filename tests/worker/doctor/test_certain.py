"""A start ends before its weights are fetched where it is certain to fail, and never else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kinds import write
from known import AWQ, LLAMA_8B

import hub_stand_in
import models
from command import answered, errors, worker
from hub_stand_in import Hub
from local_endpoint.process import free_port

pytestmark = pytest.mark.timeout(600)

LAYERS = {"num_hidden_layers": 2}  # nothing here counts them, and a plan of two is fast
CAN_START = {
    "one that fits": {},
    "too large, but by less than a fifth": {"gb": 28},
    "of 32 bits, which are loaded as 16": {"gb": 50, "dtype": "F32"},
    "quantised while it is loaded": {"gb": 50, "quantization": "fp8"},
    "half of it stays with the host": {"gb": 50, "cpu_offload_gb": 25},
    "without its images": {"gb": 50, "limit_mm_per_prompt": {"image": 0}},
    "changed by HF_OVERRIDES": {"gb": 50, "hf_overrides": LAYERS},
    "of broken files": {"gb": 50, "head": b"version https://git-lfs"},
    "the same once more in a folder": {"gb": 15, "below": 40},
    "over two GPUs": {"gb": 50, "tensor_parallel_size": 2},
    "in another format": {"gb": 50, "load_format": "dummy"},
}
CANNOT = {
    "too large": {"gb": 50},
    "too large in AWQ": {"gb": 50, "quantization": "awq", "config": {"quantization_config": AWQ}},
    "heads that three cannot share": {"tensor_parallel_size": 3, "gpus": 3},
    "more GPUs than there are": {"tensor_parallel_size": 4},
}
SCRIPT = """
import json, sys
from pathlib import Path
from worker.doctor.cards import read
from worker.engine import card
def cards(row):
    one = read("L4")[1]
    card.stand_in(one.name, one.memory, one.capability, row.pop("gpus", 2))
cards({})
from worker.doctor import certain, estimate
from worker.engine import command_line, planner
from worker.errors import StartError
for row in json.loads(sys.argv[1]):
    cards(row)
    is_planned = row.pop("is_planned")
    args = command_line.namespace({"skip_tokenizer_init": True, "max_model_len": 1024, **row})
    said = ["", ""]
    for at, judge in enumerate((lambda: certain.refuse(args, Path(args.model)),
                                lambda: is_planned and planner.plan(args))):
        try:
            judge()
        except StartError as error:
            said[at] = str(error)
    print("said", json.dumps(said), flush=True)
"""


def _model(folder: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Write a model whose weights are so many GB, all of them holes, and return its arguments."""
    row = dict(row)
    write(folder, LLAMA_8B | LAYERS | row.pop("config", {}))
    size, dtype = row.pop("gb", 10) * 10**9, row.pop("dtype", "BF16")
    text = json.dumps({"w": {"dtype": dtype, "shape": [], "data_offsets": [0, size]}}).encode()
    head = row.pop("head", len(text).to_bytes(8, "little") + text)
    (folder / "below").mkdir()
    for name, its in (("", size), ("below/", row.pop("below", 0) * 10**9)):
        with (folder / f"{name}model.safetensors").open("wb") as file:
            file.write(head)
            file.truncate(len(head) + its)
    return {"model": str(folder), "is_planned": "tensor_parallel_size" in row, **row}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the start says of each on two L4, and what the doctor does."""
    cases = CAN_START | CANNOT
    base = tmp_path_factory.mktemp("certain")
    rows = [_model(base / str(at), row) for at, row in enumerate(cases.values())]
    return dict(zip(cases, answered(rows, "said", "-c", SCRIPT), strict=True))


@pytest.mark.parametrize("case", CAN_START)
def test_what_may_succeed_is_left_to_vllm(said: dict[str, list[str]], case: str) -> None:
    """A doubt stops nothing."""
    assert "" == said[case][0]


@pytest.mark.parametrize("case", ["too large", "too large in AWQ"])
def test_weights_beyond_the_gpu(said: dict[str, list[str]], case: str) -> None:
    """50 GB on a card of 24 GB are refused, with the variables that help."""
    assert said[case][0].startswith(
        "The weights alone take 46.6 GiB on each GPU, more than the 20.7 GiB that vLLM may use"
    )
    assert "TENSOR_PARALLEL_SIZE" in said[case][0]
    assert "DOCTOR=0" in said[case][0]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("heads that three cannot share", "(32) must be divisible by tensor parallel size (3)."),
        ("more GPUs than there are", "available GPUs (2) in this node. TENSOR_PARALLEL_SIZE must"),
    ],
)
def test_parallelism(said: dict[str, list[str]], case: str, words: str) -> None:
    """What cannot be shared is refused with the doctor's sentence, which is vLLM's."""
    start, doctor = said[case]

    assert doctor == start
    assert words in start


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with hub_stand_in.serve() as served:
        served.add_folder("org/tiny", models.path("tiny"))
        yield served


@pytest.mark.parametrize(
    ("switch", "fetched"), [("1", 0), pytest.param("0", 1, marks=pytest.mark.slow)]
)
def test_a_start_fetches_no_weights(hub: Hub, tmp_path: Path, switch: str, fetched: int) -> None:
    """Heads that cannot be shared end a worker before its weights come; with DOCTOR=0 later."""
    hub.requests.clear()
    done = worker(
        "--serve",
        PORT=str(free_port()),
        MODEL_NAME="org/tiny",
        TENSOR_PARALLEL_SIZE="3",
        HF_ENDPOINT=hub.url,
        HF_HOME=str(tmp_path),
        DOCTOR=switch,
        VLLM_CPU_KVCACHE_SPACE="1",
    )
    sentences = errors(done)

    assert 1 == done.returncode
    assert 1 == len(sentences), done.stderr
    assert "must be divisible by tensor parallel size (3)" in sentences[0]
    assert fetched == len(hub.fetched("/model.safetensors"))
