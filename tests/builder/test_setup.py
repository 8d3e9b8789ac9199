"""`make setup` on a machine whose Python is another one."""

import shutil
import subprocess
from pathlib import Path

import pytest

from builds import PROJECT

pytestmark = pytest.mark.timeout(120)

TOOLS = ("cmp", "dirname", "grep", "ln", "mkdir", "sh", "tail", "uname")
# Makes an environment that holds no pip: nothing is fetched here.
PYTHON_3_11 = """#!/bin/sh
case "$*" in
*version_info*) echo 3.11 ;;
"-m venv "*) mkdir -p "$3/bin" && ln -s "$0" "$3/bin/python" ;;
*) exit 1 ;;
esac
"""
OTHER_PYTHON = '#!/bin/sh\ncase "$*" in *version_info*) echo 3.13 ;; *) exit 1 ;; esac\n'


def setup(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of setup.sh with these programs and nothing else on the path."""
    binaries = folder / "bin"
    binaries.mkdir()
    for tool in TOOLS:
        (binaries / tool).symlink_to(shutil.which(tool) or "")
    for name, text in programs.items():
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    (folder / "builder").mkdir()
    shutil.copy(PROJECT / "builder" / "setup.sh", folder / "builder")
    (folder / "requirements.txt").write_text("torch==2.13.0+cpu\nuv==0.0.0\n")
    return subprocess.run(
        [folder / "builder" / "setup.sh", "python3"],
        env={"PATH": str(binaries), "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("uv", [None, "#!/bin/sh\necho no network >&2\nexit 1\n"])
def test_a_python_that_cannot_be_fetched(tmp_path: Path, uv: str | None) -> None:
    """Another Python, and no way to 3.11: a sentence says what to do, and nothing was made."""
    done = setup(tmp_path, python3=OTHER_PYTHON, **({"uv": uv} if uv else {}))
    last = done.stderr.splitlines()[-1]

    assert 1 == done.returncode
    assert "python3 is 3.13: fetching 3.11" in done.stderr
    assert "PYTHON=/path/to/python3.11" in last
    assert not (tmp_path / ".venv").exists()


def test_a_python_that_uv_fetches(tmp_path: Path) -> None:
    """Where uv has 3.11, the environment is made with it."""
    uv = f'#!/bin/sh\n[ "$2" = install ] || echo {tmp_path}/bin/its_python\n'
    done = setup(tmp_path, python3=OTHER_PYTHON, uv=uv, its_python=PYTHON_3_11)

    assert (tmp_path / ".venv/bin/python").exists()
    assert "torch==2.13.0+cpu was found neither" in done.stderr  # as no index is to be asked


def test_a_3_11_beside_the_default(tmp_path: Path) -> None:
    """A python3.11 on the path is taken without a word about it."""
    done = setup(tmp_path, python3=OTHER_PYTHON, **{"python3.11": PYTHON_3_11})

    assert (tmp_path / ".venv/bin/python").exists()
    assert "fetching" not in done.stderr
