"""Every process has a parent: real processes, whose parents are killed."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from waiting import is_alive, wait_until

pytestmark = pytest.mark.timeout(60)

PROGRAM = Path(__file__).with_name("family.py")


@pytest.mark.parametrize(
    ("how", "number"), [("spawn", 3), ("fork", 3), ("importing", 2)], ids=["spawn", "fork", "early"]
)
def test_children_and_grandchildren_end_with_a_killed_process(how: str, number: int) -> None:
    """Whoever is killed, its descendants are gone too, also those that do not run vLLM yet."""
    with subprocess.Popen(
        [sys.executable, PROGRAM, how], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        family = [psutil.Process(int(process.stdout.readline())) for _ in range(number)]
        process.kill()
        process.wait(10)
        wait_until(lambda: not any(map(is_alive, family)), timeout_s=2)


def test_a_child_whose_parent_ended_before() -> None:
    """It ends at once: the kernel would never tell it."""
    code = "import os; from worker.lifetime import die_with_parent; die_with_parent(os.getpid())"
    done = subprocess.run([sys.executable, "-c", f"{code}; print('lives')"], capture_output=True)

    assert (1, b"") == (done.returncode, done.stdout)
