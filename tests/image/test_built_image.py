"""The image, built for real on a stand-in for vLLM's, and run: `make image-test`."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import containers
import pytest
from containers import Pushed, Served

import hub_stand_in
import models
from hub_stand_in import TOKEN

# A model's folder and every variable of a small engine.
VOLUME = "/somewhere"
ENVIRON = {
    "DTYPE": "float32",
    "ENFORCE_EAGER": "true",
    "MAX_MODEL_LEN": "512",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
USERS = ("root", "1000:1000", "12345:0")
MAX_ADDED_MB = 100
NAME = "org/Tiny"

pytestmark = [
    pytest.mark.image,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.environ.get("CI") != "true"
        and (os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "debootstrap", "ip")))),
        reason="needs root, and Debian's buildah, debootstrap and iproute2: `make image-test`",
    ),
]


@pytest.fixture(scope="module")
def plain() -> str:
    image = "localhost/worker:plain"
    containers.build(image, {}, {})
    return image


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """An image with a gated model inside, and what its build printed."""
    image = "localhost/worker:baked"
    secret = tmp_path_factory.mktemp("secret") / "token"
    secret.write_text(TOKEN)
    with hub_stand_in.serve() as hub:
        hub.add_folder(NAME, models.path("tiny"), gated=True)
        arguments = {"MODEL_NAME": NAME, "HF_ENDPOINT": hub.url}
        yield image, containers.build(image, arguments, {"HF_TOKEN": secret})


@pytest.fixture(scope="module")
def pushed(baked: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Pushed:
    return containers.push(baked[0], tmp_path_factory.mktemp("pushed"))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The tiny model where every user can read it."""
    folder = containers.CACHE / "tiny"
    shutil.copytree(models.path("tiny"), folder, dirs_exist_ok=True)
    for file in folder.iterdir():
        file.chmod(0o644)
    yield folder
    shutil.rmtree(folder)


def ask(served: Served, model: str) -> str:
    """Ask for a chat answer, whole and streamed, with the official client."""
    question = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 20,
        "temperature": 0,
    }
    whole = served.client.chat.completions.create(**question)
    stream = served.client.chat.completions.create(**question, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]

    assert whole.choices[0].message.content == "".join(pieces)
    return "".join(pieces)


@pytest.mark.parametrize("user", USERS)
def test_the_image_answers(plain: str, folder: Path, user: str) -> None:
    """The image's own entry point serves a mounted model, whoever the user is."""
    environ = {**ENVIRON, "MODEL_NAME": VOLUME}
    with containers.serve(plain, environ, user, f"{folder}:{VOLUME}:ro") as served:
        assert [VOLUME] == [model.id for model in served.client.models.list()]
        assert ask(served, VOLUME)
        assert "Traceback" not in served.log()


def test_a_wrong_value_ends_it(plain: str) -> None:
    """Without a model the container ends with one sentence."""
    with pytest.raises(RuntimeError, match="No model: set MODEL_NAME"):  # noqa: SIM117
        with containers.serve(plain, ENVIRON, "root"):
            pass


def test_what_the_image_is(plain: str) -> None:
    """The worker is process 1, in exec form, in place of vLLM's own; the defaults are ENV."""
    config = containers.config(plain)

    assert ["python3", "-m", "worker"] == config["Entrypoint"]
    assert not config.get("Cmd")
    assert "RUNPOD_LOG_LEVEL=INFO" in config["Env"]
    assert "Apache-2.0" == config["Labels"]["org.opencontainers.image.licenses"]


def test_the_endpoint_in_it(plain: str) -> None:
    """`python` is there, and starts the local endpoint, with all that it imports."""
    container = containers.buildah("from", "--pull=false", plain)
    try:
        said = containers.buildah(
            *("run", "--isolation=chroot", container, "--"),
            *("python", "-m", "worker", "--local", "--help"),
        )
    finally:
        containers.buildah("rm", container)

    assert "load_balancer" in said


@pytest.mark.parametrize("user", USERS[:2])
def test_a_baked_model_answers_without_a_network(baked: tuple[str, str], user: str) -> None:
    """Under the name that was given, with no variable, no network and no cache."""
    with containers.no_network(), containers.serve(baked[0], ENVIRON, user) as served:
        assert [NAME] == [model.id for model in served.client.models.list()]
        assert ask(served, NAME)
        assert "Traceback" not in served.log()


def test_the_secret_is_nowhere(baked: tuple[str, str], pushed: Pushed) -> None:
    """The token is in no layer, not in the history, and was not printed."""
    image, printed = baked

    assert TOKEN not in printed
    assert TOKEN not in pushed.config
    assert [] == [layer.file.name for layer in pushed.layers if layer.contains(TOKEN.encode())]
    assert TOKEN not in json.dumps(containers.config(image))


def test_quantised_while_building() -> None:
    """With QUANTIZE the image holds the smaller weights only, and they answer."""
    image = "localhost/worker:int8"
    with hub_stand_in.serve() as hub:
        hub.add_folder(NAME, models.path("tiny"))
        arguments = {"MODEL_NAME": NAME, "HF_ENDPOINT": hub.url, "QUANTIZE": "int8"}
        containers.build(image, arguments, {})
    half = ENVIRON | {"DTYPE": "bfloat16"}  # what vLLM's kernel of int8 takes on a CPU
    try:
        with containers.no_network(), containers.serve(image, half, "root") as served:
            assert "quantization=compressed-tensors" in served.log()
            assert ask(served, NAME)
    except RuntimeError as death:
        if "SIGILL" not in str(death) and "exit code: None" not in str(death):
            raise
        pytest.skip("this processor lacks instructions of vLLM's kernel of int8")


def test_a_gated_model_needs_its_secret() -> None:
    """Without the token the build ends with the hub's sentence, and no image."""
    with hub_stand_in.serve() as hub:
        hub.add_folder(NAME, models.path("tiny"), gated=True)
        arguments = {"MODEL_NAME": NAME, "HF_ENDPOINT": hub.url}
        with pytest.raises(RuntimeError, match="is gated: accept its terms"):
            containers.build("localhost/worker:none", arguments, {})


def test_the_sizes(pushed: Pushed) -> None:
    """Beyond vLLM's image and the model, our layers are small."""
    base, *added = pushed.layers
    weights_mb = (models.path("tiny") / "model.safetensors").stat().st_size / 1e6
    (model,) = (layer for layer in added if layer.contains(b"models/huggingface-cache/hub/"))
    ours = [layer.size_mb for layer in added if layer != model]
    print(
        f"\nMB: base {base.size_mb:.1f}, weights {weights_mb:.1f}, model {model.size_mb:.1f}, ours"
    )
    print(f"{sum(ours):.1f}: {', '.join(f'{size:.3f}' for size in ours)}")

    assert sum(ours) < MAX_ADDED_MB
    assert model.size_mb < weights_mb + 5
