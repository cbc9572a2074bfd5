"""A server ends when it is asked to, and gives everything back."""

import pytest

pytestmark = pytest.mark.multigpu


def test_sigterm_ends_it_cleanly(client, api_server):
    """SIGTERM after an answer: processes, GPU memory, shared memory and port are given back."""
    client.canary()
    stopped = api_server.stop()
    assert stopped.clean, stopped.words
