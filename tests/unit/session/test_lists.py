"""Options that take a list between commas."""

import pytest

from fixtures.matrix import BACKENDS, COMMUNICATORS, PRECISIONS, Configuration
from fixtures.nccl.arms import P2P_ARMS
from fixtures.option import values


@pytest.mark.parametrize(
    ("axis", "known"),
    [("p2p", P2P_ARMS), ("backend", BACKENDS), ("communicator", COMMUNICATORS), ("precision", PRECISIONS)],
)
def test_what_is_named_twice_counts_once(axis, known):
    first, last = known[0], known[-1]
    assert values(Configuration, {axis: f"{last}, {first},{last}"}.get)[axis] == (last, first)
