"""NCCL's all-reduce is exact across each pair of GPUs, with P2P on, off and forced."""

import pytest

pytestmark = pytest.mark.multigpu


def test_all_reduce(gpu_pair, p2p, fabric):
    """Bit for bit on both GPUs, at every size and type, over a transport that the arm allows."""
    fabric.all_reduce(gpu_pair, p2p)
