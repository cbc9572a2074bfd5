"""A user's own tests, while somebody outside kills their server; given to pytest by path, not collected otherwise."""

import subprocess
import time

import pytest

pytestmark = pytest.mark.multigpu


def kill(pid):
    """As the kernel's OOM killer or a colleague would."""
    subprocess.run(["kill", "-KILL", str(pid)], check=True)


@pytest.fixture
def killed_afterwards(api_server):
    yield
    kill(api_server.pid)
    while api_server.is_alive:
        time.sleep(0.001)


def test_killed_while_nothing_is_asked(client, api_server):
    client.canary()
    kill(api_server.pid)
    time.sleep(30)


def test_after_it(client):
    client.canary()


def test_killed_after_its_end(client, killed_afterwards):
    client.canary()


def test_next(client):
    client.canary()


def test_next_but_one(client):
    client.canary()


def test_last(client, killed_afterwards):
    client.canary()
