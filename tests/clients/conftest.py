"""Programs that use real clients, each run once a session against the real chat model."""

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from served import DOOR_KEY, Door, Served

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".cache" / "clients-venv" / "bin" / "python"
NODE_MODULES = HERE / "node_modules"
PROGRAM_S = 180.0
PROMPT = "What is the Moon?"
Said = Callable[[str], dict[str, Any]]  # a program to what it printed


# They stop an answer on its way, and a tiny model's is over too soon.
STOPPING = ("openai_node.mjs", "runpod_client.py", "runpod_sdk.mjs")


@pytest.fixture(scope="session")
def served_to(tiny: Served, smollm2: Served) -> Callable[[str], Served]:
    """Give the worker that a program is run against."""
    return lambda program: smollm2 if program in STOPPING else tiny


@pytest.fixture(scope="session")
def answer(tiny: Served, smollm2: Served) -> Callable[[str], str]:
    """What a model says to PROMPT when no client is in between."""

    @functools.cache
    def answer(model: str) -> str:
        messages = [{"role": "user", "content": PROMPT}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 30}
        record = (tiny if model == "tiny" else smollm2).run(
            {"openai_route": "/v1/chat/completions", "openai_input": body}
        )
        return record.done[-1].value["output"][0]["choices"][0]["message"]["content"]

    return answer


@pytest.fixture(scope="session")
def said(served_to: Callable[[str], Served], tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Run a program of programs/ against the endpoint, and give the object it printed.

    Beside what it printed stand the `model` that it asked and the `prompt`.
    """
    return _saying(lambda program, home: environ(served_to(program), home), tmp_path_factory)


@pytest.fixture(scope="session")
def of_the_door(door: Door, tiny: Served, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Run a program against a worker's HTTP door."""
    own = {"BASE_URL": f"{door.url}/v1", "API_KEY": DOOR_KEY, "MODEL": "tiny"}
    return _saying(lambda _, home: environ(tiny, home) | own, tmp_path_factory)


@pytest.fixture(params=["said", pytest.param("of_the_door", marks=pytest.mark.slow)])
def at_each_door(request: pytest.FixtureRequest, said: Said, of_the_door: Said) -> Said:
    return said if request.param == "said" else of_the_door


def _saying(
    environ: Callable[[str, Path], dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Said:
    @functools.cache
    def run(command: str, program: str) -> tuple[str, subprocess.CompletedProcess[str]]:
        its = environ(program, tmp_path_factory.mktemp("home"))
        return its["MODEL"], subprocess.run(
            [command, HERE / "programs" / program],
            env=its,
            capture_output=True,
            encoding="utf-8",
            timeout=PROGRAM_S,
            check=False,
        )

    def said(program: str) -> dict[str, Any]:
        model, ended = run(node() if program.endswith(".mjs") else python(), program)
        assert 0 == ended.returncode, ended.stderr
        # RunPod's Node client prints lines of its own; the last one is the program's.
        return {"model": model, "prompt": PROMPT} | json.loads(ended.stdout.splitlines()[-1])

    return said


def environ(served: Served, home: Path) -> dict[str, str]:
    """Give a program where it finds the endpoint, and nothing of ours beside."""
    host, _, endpoint_id = served.endpoint.url.rpartition("/")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "BASE_URL": served.endpoint.openai_url,
        "RUNPOD_ENDPOINT_BASE_URL": host,
        "ENDPOINT_ID": endpoint_id,
        "API_KEY": served.endpoint.api_key,
        "MODEL": served.client.models.list().data[0].id,
        "PROMPT": PROMPT,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the internet for prices
    }


def python() -> str:
    if not PYTHON.exists():
        _absent("the Python clients are not installed: tests/clients/setup.sh does it")
    return str(PYTHON)


def node() -> str:
    command = shutil.which("node")
    if command is None:
        _absent("there is no Node here, on which this client runs")
    if not NODE_MODULES.exists():
        _absent("the Node clients are not installed: tests/clients/setup.sh does it")
    return str(command)


def _absent(sentence: str) -> None:
    """Skip the test; in CI, where nothing may be absent, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)
