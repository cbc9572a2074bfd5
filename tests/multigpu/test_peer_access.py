"""Apart from NCCL: what a kernel on one GPU stores in another GPU's memory is what its owner reads."""

import pytest

pytestmark = pytest.mark.multigpu


def test_peer_access(gpu_pair, method, fabric):
    """Eight bytes, then megabytes; in one process (peer write) and between two (CUDA IPC)."""
    fabric.peer_access(gpu_pair, method)
