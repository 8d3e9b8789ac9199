"""docker-bake.hcl and the Dockerfile, parsed; `docker buildx bake --print` is the workflow's."""

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def blocks(kind: str) -> dict[str, dict[str, Any]]:
    parsed = hcl2.loads((ROOT / "docker-bake.hcl").read_text())
    return {name.strip('"'): body for block in parsed.get(kind, ()) for name, body in block.items()}


def plain(value: Any) -> Any:
    """Take the quotes off, and put the variables' defaults in."""
    if isinstance(value, dict):
        return {key.strip('"'): plain(one) for key, one in value.items() if key != "__is_block__"}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, str):
        return value
    defaults = {name: body["default"].strip('"') for name, body in blocks("variable").items()}
    return re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], value.strip('"'))


TARGETS = {name: plain(body) for name, body in blocks("target").items()}
GROUPS = {name: plain(body)["targets"] for name, body in blocks("group").items()}
VERSION = plain("${VERSION}")


def test_the_base_images() -> None:
    """Each target stands on one of vLLM's official images, and no two on the same."""
    bases = [TARGETS[name]["args"]["BASE_IMAGE"] for name in GROUPS["publish"]]
    vllm = plain("${VLLM_VERSION}")

    assert [
        f"vllm/vllm-openai:v{vllm}",
        f"vllm/vllm-openai:v{vllm}-cu129",
        f"vllm/vllm-openai-cpu:v{vllm}",
    ] == bases


def test_the_tags() -> None:
    """Every tag but `latest` begins with the version, and no two targets have one in common."""
    tags = [tag for target in TARGETS.values() for tag in target.get("tags", ())]

    assert len(tags) == len(set(tags))
    assert {f"worker-vllm:{VERSION}", "worker-vllm:latest"} < set(tags)
    assert all(tag.partition(":")[2].startswith((VERSION, "latest")) for tag in tags)


def test_inheritance_and_groups_lead_somewhere() -> None:
    """Every name of a target is a target."""
    named = [name for target in TARGETS.values() for name in target.get("inherits", ())]
    named += [name for group in GROUPS.values() for name in group]

    assert set() == set(named) - TARGETS.keys()


def test_the_secret_is_no_argument() -> None:
    """The token is a secret of the build, in the bake file and in the Dockerfile."""
    assert ["id=HF_TOKEN,env=HF_TOKEN"] == TARGETS["baked"]["secret"]
    assert "HF_TOKEN" not in TARGETS["baked"]["args"]
    assert [] == re.findall(r"^(?:ARG|ENV).*HF_TOKEN.*$", DOCKERFILE, re.MULTILINE)


COPIED = [
    source
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
    for source in line.split()[:-1]
]


@pytest.mark.parametrize("source", sorted(set(COPIED)))
def test_what_is_copied_is_there(source: str) -> None:
    """Everything that the Dockerfile copies exists, and .dockerignore lets it through."""
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"]

    assert (ROOT / source).exists()
    assert any(fnmatch(source, pattern) or source.startswith(pattern) for pattern in let_in)


def test_nothing_untested_is_pushed() -> None:
    """The workflow that pushes images waits for all of CI, run on the same commit."""
    folder = ROOT / ".github/workflows"
    jobs = yaml.safe_load((folder / "publish.yml").read_text())["jobs"]
    pushing = {name for name, job in jobs.items() if "--push" in str(job) or "packages" in str(job)}

    assert pushing
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    assert {"test"} == {jobs[name]["needs"] for name in pushing}
