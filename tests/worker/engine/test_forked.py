"""How the engine core is made depends on what has happened to the environment."""

import os

import pytest

from worker import lifetime
from worker.engine import forked


@pytest.fixture(autouse=True)
def _as_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server began with the environment as it is, and vLLM's server asks for spawning."""
    monkeypatch.setattr(lifetime, "_begun_with", dict(os.environ))
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")


def test_it_is_forked_by_the_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this worker sets itself, and what is no variable of vLLM's, forbids no fork."""
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/dev/shm/x")
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "0")

    assert "forkserver" == forked._context().get_start_method()


def test_it_is_spawned_where_an_import_would_read_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For some models vLLM's configuration sets this, which its attention layers read at import."""
    monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", "1")

    assert "spawn" == forked._context().get_start_method()
