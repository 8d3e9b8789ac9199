"""What the tests of the build's programs share: a hub of our own, and an image's root."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hub_stand_in
from builds import Build
from hub_stand_in import Hub


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    with hub_stand_in.serve() as served:
        yield served


@pytest.fixture
def build(hub: Hub, tmp_path: Path) -> Build:
    return Build(hub, tmp_path)
