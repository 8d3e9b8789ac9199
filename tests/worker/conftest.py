"""What the tests of the rooms share."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import s3_server


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A volume of two megabytes; only root may mount one."""
    path = tmp_path / "volume"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", path]).returncode:
        pytest.skip("nothing can be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    with s3_server.serve() as url:
        yield url
