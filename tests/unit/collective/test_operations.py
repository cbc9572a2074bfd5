"""What is declared of each collective: NCCL's own words for it, and that no side of the suite has forgotten one.

That each really runs and is exact: test_fabric.py, every operation over a group.
"""

import pytest

from fixtures.collective.steps import group_steps, results_of
from fixtures.collective.under_test.operations import COLLECTIVES
from fixtures.rehearsal.fabric_faults import fabric_faults
from fixtures.rehearsal.gloo import GLOO

#: nccl.h: what stands between the type of the data and the communicator, for root 3.
PROTOTYPES = {
    "ncclAllReduce": [0],
    "ncclAllGather": [],
    "ncclReduceScatter": [0],
    "ncclBroadcast": [3],
}


@pytest.mark.parametrize("operation", list(PROTOTYPES))
def test_nccls_arguments(operation):
    (declared,) = [one for one in COLLECTIVES.values() if one.nccl == operation]
    assert declared.arguments(root=3) == PROTOTYPES[operation]


def test_a_rehearsal_has_them_all():
    assert list(GLOO) == list(COLLECTIVES)


@pytest.mark.parametrize("operation", COLLECTIVES)
def test_a_fault_may_be_about_any(operation):
    assert fabric_faults("own.toml", [{"action": "hang", "operation": operation}])[0].meets(operation, "int32", 4)


@pytest.mark.parametrize(("operation", "results"), [("all_gather", 2), ("broadcast", 5), ("many_small", 2 * 64)])
def test_how_many_results_a_rank_compares(operation, results):
    """Of five ranks, in each step: two, or one from each rank as root, or each of those in a row."""
    steps = group_steps(operation)
    assert results_of(steps, world_size=5) == results * len(steps)


def test_a_measurements_first_run_is_compared_too():
    *steps, measured = group_steps("all_reduce")
    assert results_of([*steps, measured], world_size=5) == 2 * len(steps) + 6
