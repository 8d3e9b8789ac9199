"""A worker on the V2 model runner, started once a session."""

from collections.abc import Iterator

import pytest

import models
from served import Served, serve
from v2_runner import v2_environ


@pytest.fixture(scope="session")
def v2_runner() -> Iterator[Served]:
    """The tiny model on the V2 runner with asynchronous scheduling: what a GPU runs by default."""
    with serve({"MODEL_NAME": str(models.path("tiny"))} | v2_environ.environ()) as served:
        yield served
