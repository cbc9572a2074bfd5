"""fp16 with tensor parallelism 2 died at its first request where AWQ on one GPU answered (lmdeploy issue 2508)."""

import pytest

from fixtures.api_server.founding import FOUNDING_REQUEST

pytestmark = pytest.mark.multigpu


@pytest.mark.only(backend="turbomind", communicator="nccl", tp=2, precision="fp16", p2p="p2p_on")
def test_the_founding_case(trial, configuration, awq_on_one_gpu):
    """The same request to a fresh server of each, and one report of both."""
    both = trial.compare(FOUNDING_REQUEST, configuration, awq_on_one_gpu)
    assert both.all_right, both.report
