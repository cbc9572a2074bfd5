"""Faults between a rehearsal's GPUs, as two real ranks meet them: what is broken, where, and that nothing else is."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fixtures.nccl.arms import arm_of
from fixtures.rehearsal.broken_fabric import under_faults
from fixtures.rehearsal.fabric_faults import FabricFault
from fixtures.rehearsal.gloo import Communicator

COUNT = 128
BLOCK = slice(32, 64)  # a result's second quarter
GPUS = [1, 2]
#: What rank 0 and rank 1 send first, and then.
FIRST = [torch.arange(1, COUNT + 1), torch.arange(1001, COUNT + 1001)]
THEN = [torch.arange(2, 2 * COUNT + 2, 2), torch.arange(3001, COUNT + 3001)]


@pytest.fixture
def ranks(tmp_path):
    """Two threads, a rank each: `ranks(call, faults)` gives what call(end, rank) returned on both."""
    meetings = iter(range(100))

    def run(call, faults, over_p2p=lambda a, b: True):
        path = str(tmp_path / str(next(meetings)))

        def rank(number):
            ends = [Communicator(path, number, 2)]
            [end] = under_faults(ends, GPUS, "process_per_gpu", faults, over_p2p)
            found = call(end, number)
            end.close()
            return found

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(rank, range(2)))

    return run


def reduced_twice(end, rank):
    """The second of two all-reduces."""
    receive = torch.zeros(COUNT, dtype=torch.int64)
    for shares in (FIRST, THEN):
        end.collective("all_reduce", shares[rank], receive)
    return receive


@pytest.mark.parametrize(
    ("pattern", "block"),
    [
        ("zeros", torch.zeros(COUNT, dtype=torch.int64)),
        ("stale", FIRST[0] + FIRST[1]),
        ("shifted", (THEN[0] + THEN[1]).roll(-16)),
        ("share", THEN[0]),
        ("left_out", THEN[1]),
        ("doubled", 2 * THEN[0] + THEN[1]),
        ("stale_share", FIRST[0] + THEN[1]),
    ],
)
def test_wrong_block(ranks, pattern, block):
    """On the GPU that it befalls, and there in the block alone."""
    one, other = ranks(reduced_twice, [FabricFault("wrong", gpus=(1, 2), gpu=2, pattern=pattern)])
    right = THEN[0] + THEN[1]
    assert one.equal(right)
    assert other[BLOCK].equal(block[BLOCK])
    assert other[:32].equal(right[:32])
    assert other[64:].equal(right[64:])


def test_flipped_bit(ranks):
    """One bit of one element."""

    def reduced(end, rank):
        receive = torch.zeros(COUNT, dtype=torch.int32)
        end.collective("all_reduce", THEN[rank].int(), receive)
        return receive

    _, other = ranks(reduced, [FabricFault("wrong", pattern="bit_flip")])
    flips = other ^ (THEN[0] + THEN[1]).int()
    assert flips.sum() == flips[48] == 1


def every_operation(end, rank):
    """Results of all four, out of place, into buffers of -1."""
    own = THEN[rank]
    reduced, gathered = torch.full((COUNT,), -1), torch.full((2 * COUNT,), -1)
    scattered, broadcast = torch.full((COUNT // 2,), -1), torch.full((COUNT,), -1)
    end.collective("all_reduce", own, reduced)
    end.collective("all_gather", own, gathered)
    end.collective("reduce_scatter", own, scattered)
    end.collective("broadcast", own, broadcast, 0)
    return reduced, gathered, scattered, broadcast


def test_data_that_never_arrives(ranks):
    """A lying peer access: of each sum the own share is left, of a copy what was there before."""
    lie = [FabricFault("lying_peer_access", gpus=(1, 2))]
    nothing, half = torch.full((COUNT,), -1), COUNT // 2
    one, other = ranks(every_operation, lie)
    wanted = [
        (THEN[0], torch.cat([THEN[0], nothing]), THEN[0][:half], THEN[0]),
        (THEN[1], torch.cat([nothing, THEN[1]]), THEN[1][half:], nothing),
    ]
    for found, right in zip((one, other), wanted, strict=True):
        assert [a.equal(b) for a, b in zip(found, right, strict=True)] == [True] * 4


@pytest.mark.parametrize(
    ("fault", "over_p2p"),
    [
        (FabricFault("wrong", pattern="zeros", gpus=(1, 3)), True),
        (FabricFault("wrong", pattern="zeros", arms=("p2p_off",)), True),
        (FabricFault("wrong", pattern="zeros", ranks_min=3), True),
        (FabricFault("wrong", pattern="zeros", bytes_min=8 * COUNT + 1), True),
        (FabricFault("wrong", pattern="zeros", dtype="float32"), True),
        (FabricFault("lying_peer_access", gpus=(1, 2)), False),
        (FabricFault("lying_peer_access", gpus=(1, 3)), True),
    ],
)
def test_what_it_does_not_concern_is_right(ranks, fault, over_p2p):
    total = THEN[0] + THEN[1]
    one, other = ranks(every_operation, [fault], lambda a, b: over_p2p)
    both = torch.cat(THEN)
    half = COUNT // 2
    for found, part in ((one, total[:half]), (other, total[half:])):
        right = (total, both, part, THEN[0])
        assert [a.equal(b) for a, b in zip(found, right, strict=True)] == [True] * 4


@pytest.mark.parametrize(
    ("environment", "arm"),
    [
        ({}, "p2p_on"),
        ({"NCCL_P2P_DISABLE": "1"}, "p2p_off"),
        ({"NCCL_P2P_DIRECT_DISABLE": "1"}, "p2p_direct_off"),
        ({"NCCL_P2P_LEVEL": "SYS"}, "p2p_forced"),
    ],
)
def test_arm_is_read_from_its_variables(environment, arm):
    assert arm_of(environment) == arm
