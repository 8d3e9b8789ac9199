"""A baked model is proven to need no network, and is then served without one."""

import json
import os
import subprocess
import sys

import pytest

import models
from builds import Build
from hub_stand_in import Hub

pytestmark = pytest.mark.timeout(300)

NAME = "Org/Tiny-Model"
CONFIGURATION = """
from transformers import LlamaConfig

class OurConfig(LlamaConfig):
    model_type = "ours"
"""
# `python -m worker`, with another place for the file that the build wrote.
WORKER = """
import sys
from pathlib import Path
import worker.__main__ as program
program.BAKED = Path(sys.argv.pop(1))
sys.exit(program.main())
"""


def check(build: Build, **environ: str) -> subprocess.Popen[str]:
    """Run the worker's `--check` as in the image: with what is baked, and no network."""
    baked = json.loads((build.root / "etc/worker-vllm/baked.json").read_text())
    baked["BASE_PATH"] = str(build.root / baked["BASE_PATH"].lstrip("/"))
    here = build.root / "here.json"
    here.write_text(json.dumps(baked))
    closed = dict.fromkeys(("http_proxy", "https_proxy", "HF_ENDPOINT"), "http://127.0.0.1:9")
    cpu = {"DTYPE": "float32", "VLLM_CPU_KVCACHE_SPACE": "1", "HOME": str(build.root)}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, here, "--check"],
        env={"PATH": os.environ["PATH"]} | closed | cpu | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_a_baked_model_needs_no_network(build: Build, hub: Hub) -> None:
    """With the hub off it is verified, and the worker finds it under its name and no other."""
    hub.add_folder(NAME, models.path("tiny"))
    build.bake(MODEL_NAME=NAME)
    checking = check(build, MODEL_NAME=NAME)
    verified = build.run("verify.py")
    said, _ = checking.communicate(timeout=250)

    assert f"{NAME} is whole, and needs no network." == verified.stdout.splitlines()[-1]
    assert 0 == verified.returncode
    assert "The configuration is sound." == said.splitlines()[-1]
    assert f"MODEL_NAME  {NAME}" in said
    assert 0 == checking.returncode


def test_nothing_baked(build: Build) -> None:
    """An image without a model passes at once."""
    assert 0 == build.run("verify.py").returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("model.safetensors", "or only a part of it is"),
        ("tokenizer.json", "would start offline"),
    ],
)
def test_half_a_model(build: Build, hub: Hub, missing: str, sentence: str) -> None:
    """A model that would need the network fails the build with one sentence."""
    hub.add_folder(NAME, models.path("tiny"))
    build.bake(MODEL_NAME=NAME)
    (build.snapshot(NAME) / missing).unlink()
    done = build.run("verify.py")

    assert 1 == done.returncode
    assert sentence.replace("would", f"{NAME} would not") in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_code_of_its_own(build: Build, hub: Hub) -> None:
    """Custom code, of the repository or of another, is baked; TRUST_REMOTE_CODE lets it run."""
    folder = models.path("tiny")
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    config = json.loads(files["config.json"])
    config |= {"model_type": "ours", "auto_map": {"AutoConfig": "Org/code--ours.OurConfig"}}
    hub.add("Org/code", {"ours.py": CONFIGURATION})
    hub.add(NAME, files | {"config.json": json.dumps(config)})
    assert 0 == build.bake(MODEL_NAME=NAME).returncode
    trusting = check(build, TRUST_REMOTE_CODE="1")
    refused = build.run("verify.py")
    verified = build.run("verify.py", TRUST_REMOTE_CODE="1")
    said, _ = trusting.communicate(timeout=250)

    assert 1 == refused.returncode
    assert "trust_remote_code" in refused.stdout
    assert 0 == verified.returncode, verified.stdout
    assert "configuration: ours" in verified.stdout
    assert "The configuration is sound." == said.splitlines()[-1]
