"""WARM=1: what a baked model's start compiles is compiled while the image is built."""

import re

import pytest

import models
from builds import Build
from hub_stand_in import Hub

pytestmark = pytest.mark.timeout(600)
CPU = {"DTYPE": "float32", "VLLM_CPU_KVCACHE_SPACE": "1", "MAX_MODEL_LEN": "512"}


@pytest.mark.slow
def test_what_the_start_compiles_is_kept(build: Build, hub: Hub) -> None:
    """The first start of the build compiles, and a second takes what the first has left."""
    hub.add_folder("Org/Tiny", models.path("tiny"))
    build.bake(MODEL_NAME="Org/Tiny")
    own = CPU | {"HOME": str(build.root), "HF_HUB_OFFLINE": "1"}
    first = build.run("warm.py", **own)
    compiled = build.root / "etc/worker-vllm/compile-cache/vllm/torch_compile_cache"
    (kept,) = (compiled / "torch_aot_compile").iterdir()
    second = build.run("warm.py", **own)

    assert 0 == first.returncode, first.stdout[-3000:] + first.stderr[-3000:]
    assert re.search(r"Compiled: [1-9]\d* files", first.stdout)
    assert "Compiling model again" not in first.stdout
    # On a CPU vLLM 0.32 finds it, cannot load this part of it, and says so.
    assert re.search(rf"(Directly load|load failure).*{kept.name}", second.stdout + second.stderr)


def test_there_is_nothing_to_compile_for(build: Build) -> None:
    told = build.run("warm.py")

    assert 1 == told.returncode
    assert "none is baked in: set MODEL_NAME" in told.stdout
