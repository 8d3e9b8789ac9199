"""What a start takes of the disk and of the host's memory."""

from typing import Any

import pytest

from worker.doctor import host
from worker.doctor.weights import Weights
from worker.engine import command_line

GB, GIB = 10**9, 2**30
MODEL, DRAFT = Weights(4, 16 * GB, 5 * GB), Weights(1, 2 * GB, 2 * GB)


@pytest.mark.parametrize(
    ("found", "options", "expected"),
    [
        ({"a": MODEL}, {}, host.Host(16 * GB, 20, 5 * GB, 0)),
        ({"a": MODEL, "b": DRAFT}, {}, host.Host(18 * GB, 20, 5 * GB, 0)),
        ({"a": MODEL, "b": MODEL}, {}, host.Host(32 * GB, 35, 5 * GB, 0)),
        ({}, {}, host.Host(0, 5, 0, 0)),
        (
            {"a": MODEL},
            {"cpu_offload_gb": 2.5, "tensor_parallel_size": 2, "kv_offloading_size": 4},
            host.Host(16 * GB, 20, 5 * GB, 9 * GIB),
        ),
    ],
)
def test_what_it_takes(
    found: dict[str, Weights], options: dict[str, Any], expected: host.Host
) -> None:
    """All that is fetched counts, with room for compiled kernels; so does each GPU's share."""
    args = command_line.namespace({"model": "org/model", **options})

    assert expected == host.read(args, found)
