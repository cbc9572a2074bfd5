"""Options that take a list between commas."""

from types import SimpleNamespace

import pytest

from fixtures.matrix import BACKENDS, COMMUNICATORS, PRECISIONS
from fixtures.nccl.arms import P2P_ARMS
from fixtures.session.options import words


@pytest.mark.parametrize(
    ("option", "known"),
    [("--p2p", P2P_ARMS), ("--backend", BACKENDS), ("--communicator", COMMUNICATORS), ("--precision", PRECISIONS)],
)
def test_what_is_named_twice_counts_once(option, known):
    first, last = known[0], known[-1]
    config = SimpleNamespace(getoption={option: f"{last}, {first},{last}"}.get)
    assert words(config, option, known) == (last, first)
