"""The examples of docs/clients.md, each run as it stands on a job queue and at the HTTP door."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from served import DOOR_KEY, Door, Served

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
# Those marked `py` need a model that the tests have not.
FIRST, *EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
TITLES = [example.splitlines()[-1] for example in EXAMPLES]
pytestmark = pytest.mark.timeout(300)


def run(example: str, base_url: str, api_key: str) -> str:
    """Run an example after the page's first, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", f"{FIRST}\n{example}"],
        env=os.environ | {"BASE_URL": base_url, "RUNPOD_API_KEY": api_key},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=TITLES)
def test_at_the_queue(tiny: Served, example: str) -> None:
    """Each example ends well; a mistake is the 500 that the page says."""
    said = run(example, tiny.endpoint.openai_url, tiny.endpoint.api_key)

    assert said.startswith("500\n404 ") is ("nope" in example)


@pytest.mark.parametrize("example", EXAMPLES, ids=TITLES)
def test_at_the_door(door: Door, example: str) -> None:
    """Each example ends well; a mistake has its own status."""
    said = run(example, f"{door.url}/v1", DOOR_KEY)

    assert said.startswith("404\n404 ") is ("nope" in example)
