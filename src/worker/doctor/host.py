"""What a start takes beside its GPUs: of the disk, and of the host's memory."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from worker.configuration.environ import COMPILED_BYTES
from worker.doctor.cards import GIB
from worker.doctor.weights import Weights

STEP_GB = 5  # sizes of disks are told in steps of it


@dataclass(frozen=True)
class Host:
    """Bytes: of all weights on the disk, read at once, and kept for the GPUs (CPU_OFFLOAD_GB).

    `disk_gb` is the free disk to choose: for the weights, what lies beside them, compiled kernels.
    """

    disk: int
    disk_gb: int
    read_at_once: int
    offloaded: int


def read(args: argparse.Namespace, found: Mapping[str, Weights]) -> Host:
    """Return what all that was found takes: the model, a draft model, adapters."""
    disk = sum(its.stored for its in found.values())
    gpus = args.tensor_parallel_size * args.pipeline_parallel_size
    offloaded = args.cpu_offload_gb * gpus + (args.kv_offloading_size or 0)
    steps = -(-(disk + 2 * COMPILED_BYTES) // (STEP_GB * 10**9))
    largest = max((its.largest for its in found.values()), default=0)
    return Host(disk, STEP_GB * steps, largest, int(offloaded * GIB))
