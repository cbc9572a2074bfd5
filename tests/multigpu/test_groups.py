"""NCCL's collectives are exact over the whole node and over each tensor-parallel group of the matrix."""

import pytest

pytestmark = pytest.mark.multigpu


def test_collective(operation, gpu_group, process_model, p2p, fabric):
    """Bit for bit on every GPU, with a process per GPU and with a thread per GPU (TurboMind's own model)."""
    fabric.collective(operation, gpu_group, process_model, p2p)
