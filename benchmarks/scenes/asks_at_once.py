"""Each test gets a fresh server and asks it at once."""

import pytest

pytestmark = pytest.mark.multigpu


def test_asks_at_once(client, api_server, repeat):
    client.canary()
    assert api_server.stop().clean
