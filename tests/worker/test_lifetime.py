"""Every process has a parent: real processes, whose parents are killed."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from waiting import is_alive, wait_until

pytestmark = pytest.mark.timeout(60)

PROGRAM = Path(__file__).with_name("family.py")


@pytest.mark.parametrize(
    ("how", "number"),
    [("spawn", 3), ("fork", 3), ("importing", 2), ("forkserver", 4)],
    ids=["spawn", "fork", "early", "fork server"],
)
def test_children_and_grandchildren_end_with_a_killed_process(
    how: str, number: int, tmp_path: Path
) -> None:
    """Whoever is killed, its descendants are gone too, also those that do not run vLLM yet."""
    with subprocess.Popen(
        [sys.executable, PROGRAM, how, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(PROGRAM.parent)},  # the fork server imports it too
    ) as process:
        assert process.stdout is not None
        family = [psutil.Process(int(process.stdout.readline())) for _ in range(number)]
        process.kill()
        process.wait(10)
        wait_until(lambda: not any(map(is_alive, family)), timeout_s=2)


def test_what_a_fork_server_makes_has_the_environment_of_now(tmp_path: Path) -> None:
    """A variable that came or went since the fork server began did so for its children too.

    And it is named: what a child has imported before may be wrong with it.
    """
    code = """
import multiprocessing, os, pathlib, sys
from worker.lifetime import Child, begin_fork_server, changed_since
def show(): print(os.environ.get("BEFORE"), os.environ.get("AFTER"), flush=True)
if __name__ == "__main__":
    os.environ["BEFORE"] = "1"
    begin_fork_server("family", pathlib.Path(sys.argv[1]))
    del os.environ["BEFORE"]
    os.environ["AFTER"] = "2"
    child = multiprocessing.get_context("forkserver").Process(target=Child(show))
    child.start()
    child.join()
    print(*sorted(changed_since()))
"""
    program = tmp_path / "program.py"
    program.write_text(code)
    paths = os.environ | {"PYTHONPATH": str(PROGRAM.parent)}
    done = subprocess.run(
        [sys.executable, program, tmp_path], capture_output=True, text=True, env=paths
    )

    assert ["None 2", "AFTER BEFORE"] == done.stdout.splitlines(), done.stderr


def test_a_child_whose_parent_ended_before() -> None:
    """It ends at once: the kernel would never tell it."""
    code = "import os; from worker.lifetime import die_with_parent; die_with_parent(os.getpid())"
    done = subprocess.run([sys.executable, "-c", f"{code}; print('lives')"], capture_output=True)

    assert (1, b"") == (done.returncode, done.stdout)
