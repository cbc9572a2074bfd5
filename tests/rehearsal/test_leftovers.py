"""What looks for leftovers finds them, and only its own run's."""

import os
import subprocess
import sys

import pytest

from tests.rehearsal.leftovers import RUN, ports_left, processes_left

LISTEN = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def forgotten():
    """A process that one run left behind, and its port."""
    command = [sys.executable, "-S", "-c", LISTEN]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, RUN: "one"}, text=True, **pipes) as process:
        yield process.pid, int(process.stdout.readline())


def test_what_a_run_left_is_found(forgotten):
    """The process by its environment, the port by the log that named it; another run left neither."""
    pid, port = forgotten
    log = f"INFO:     Uvicorn running on http://127.0.0.1:{port} (Press CTRL+C to quit)\n"
    [told] = processes_left("one")
    assert told.startswith(f"process {pid}: ")
    assert ports_left("one", log) == [f"port {port}"]
    assert ports_left("one", "no server got ready") == []
    assert processes_left("another") == ports_left("another", log) == []
