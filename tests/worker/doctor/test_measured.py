"""What a start measured is kept, and the doctor trusts it for the same model, card and options."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from kinds import write
from known import LLAMA_8B

from command import worker
from worker.configuration.settings import Settings
from worker.doctor import measured
from worker.doctor.cards import GIB
from worker.engine.measured import _measured

pytestmark = pytest.mark.timeout(600)

MODEL = {"MODEL_NAME": "org/model"}


def _place(environ: Mapping[str, str], card: str = "L4") -> Path | None:
    return measured.place(environ, Settings.from_env(environ).args, card)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**MODEL, "BASE_PATH": str(tmp_path), "MAX_MODEL_LEN": "4096"}


def test_what_is_kept_is_found(environ: dict[str, str]) -> None:
    """The driver's name of a card is the doctor's card; a broken file is none."""
    file = _place(environ, "NVIDIA L4")
    line = measured.keep(file, {"weights": 1, "tokens": 2})

    assert file
    assert {"weights": 1, "tokens": 2} == json.loads(line) == measured.find(_place(environ))
    assert [file] == list(file.parent.iterdir())
    file.write_text("{")
    assert {} == measured.find(file)


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"MAX_MODEL_LEN": "4k"}, False),
        ({"MAX_MODEL_LEN": "2048"}, False),
        ({"MODEL_NAME": "org/other"}, False),
        ({"REVISION": "v2"}, False),
        ({"TENSOR_PARALLEL_SIZE": "2"}, False),
        ({"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}, False),
        ({"VLLM_EXTRA_ARGS": "--enforce-eager"}, False),
        ({"SERVED_MODEL_NAME": "mine"}, True),
        ({"HF_TOKEN": "hf_another"}, True),
        ({"TOOL_CALL_PARSER": "hermes"}, True),
        ({"VLLM_LOGGING_LEVEL": "DEBUG"}, True),
        ({"MAX_CONCURRENCY": "7"}, True),
    ],
)
def test_what_counts_as_the_same(
    environ: dict[str, str], change: dict[str, str], is_same: bool
) -> None:
    """Whatever may change the memory makes another measurement; what cannot does not."""
    assert is_same == (_place(environ) == _place(environ | change))


def test_another_card_is_another_measurement(environ: dict[str, str]) -> None:
    """An L40S says nothing of an L4."""
    assert _place(environ) != _place(environ, "L40S")


def test_nothing_is_kept_without_a_volume(tmp_path: Path) -> None:
    """The line is for the log all the same, and a volume that is a file stops nothing."""
    assert '{"weights": 1}' == measured.keep(None, {"weights": 1})
    (tmp_path / "file").touch()
    assert '{"weights": 1}' == measured.keep(tmp_path / "file" / "x" / "y.json", {"weights": 1})


def test_what_a_worker_of_vllm_knows() -> None:
    """Of the activations' peak vLLM keeps the sum with the graphs; what is absent is left out."""
    runner = SimpleNamespace(model_memory_usage=7.0)
    gpu = SimpleNamespace(
        model_runner=runner,
        cudagraph_memory_estimate=2,
        peak_activation_memory=5,
        total_consumed=8,
        available_kv_cache_memory_bytes=11,
    )
    figures = {"weights": 7, "weights_and_beside_torch": 8, "activations": 3, "graphs": 2}

    assert figures | {"cache": 11} == _measured(gpu)
    assert {} == _measured(SimpleNamespace(model_runner=SimpleNamespace()))


@pytest.mark.slow
def test_the_doctor_prefers_it(tmp_path: Path) -> None:
    """His sum is then the measured one, without a range, and he says so."""
    model = write(tmp_path / "model", LLAMA_8B)
    environ = {"MODEL_NAME": model, "BASE_PATH": str(tmp_path), "MAX_MODEL_LEN": "8192"}
    figures = {"weights": 15 * GIB, "cache": 4 * GIB}
    measured.keep(_place(environ, "NVIDIA L4"), figures)
    told = worker("--doctor", **environ, GPU="L4")
    one = json.loads(worker("--doctor", "--json", **environ, GPU="L4").stdout)["cards"][0]
    other = json.loads(worker("--doctor", "--json", **environ, GPU="L40S").stdout)["cards"][0]

    assert (True, False) == (one["measured"], other["measured"])
    assert 15 * GIB == one["weights"]
    assert 4 * GIB // (131072 * 16) * 16 == one["cache"]["worst"]["tokens"]
    assert one["cache"]["worst"] == one["cache"]["best"]
    assert "Measured at a start of this model on such a card" in told.stdout
    assert "4.0 GiB" in told.stdout
