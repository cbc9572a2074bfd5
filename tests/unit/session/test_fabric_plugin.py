"""When the fabric's plugin gives the GPUs back."""

from types import SimpleNamespace

import pytest

from fixtures.session.fabric_plugin import FABRIC, pytest_runtest_teardown


class Resting:
    """A fabric that counts its rests."""

    rests = 0

    def rest(self):
        self.rests += 1


def item(fabric, *names):
    return SimpleNamespace(config=SimpleNamespace(stash={FABRIC: fabric}), fixturenames=names)


@pytest.mark.parametrize(
    ("following", "rests"),
    [
        pytest.param(["api_server"], 1, id="a server's test follows"),
        pytest.param(["fabric"], 0, id="one of the fabric follows"),
        pytest.param(None, 0, id="none follows, or the run is stopped"),  # what is swept then is waited for by nobody
    ],
)
def test_the_gpus_are_given_to_the_servers_that_follow(following, rests):
    fabric = Resting()
    teardown = pytest_runtest_teardown(item(fabric, "fabric"), None if following is None else item(fabric, *following))
    assert list(teardown) == [None]
    assert fabric.rests == rests
