"""Start and stop a server again and again: `python -m tests.unit.api_server.cycles N`.

Exits 1 when more files, threads or children (zombies are children too) are held at the end than after the first time.
A process of its own, since the other tests' come and go.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path

import psutil

from fixtures.api_server.client import Client
from fixtures.api_server.command import ServerCommand
from fixtures.api_server.interrupt import failing_at_death
from fixtures.api_server.ready import wait_until_ready
from fixtures.api_server.server import Server
from fixtures.api_server.stop import stop
from fixtures.machine.here import Here
from fixtures.matrix import Configuration
from fixtures.processes.loop import LoopThread
from fixtures.processes.ports import free_ports
from tests.unit.api_server.conftest import answering
from tests.unit.processes.conftest import ENVIRONMENT, LONG

CONFIGURATION = Configuration("turbomind", None, 1, "fp16", gpus=(0,))


def held() -> tuple[int, int, int]:
    """This process's open files, threads and children."""
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(psutil.Process().children())


def cycle(folder: Path, loop: LoopThread) -> None:
    """One server's whole life."""
    port = free_ports("127.0.0.1", 1)[0]
    server = Server(Here(), CONFIGURATION, ServerCommand((answering(port),), ENVIRONMENT), "127.0.0.1", port, folder)
    wait_until_ready(server, LONG, lambda: 0)
    client = Client(server, loop, LONG)
    with failing_at_death(server):
        client.canary()
    client.close()
    assert stop(server, dict, {}, LONG).clean


def main(times: int) -> None:
    loop = LoopThread()
    with tempfile.TemporaryDirectory() as folder:
        cycle(Path(folder), loop)  # what stays for good is there after the first one
        before = held()
        for _ in range(times):
            cycle(Path(folder), loop)
        after = held()
    if after != before:
        sys.exit(f"files, threads, children: {before} after the first time, {after} after {times} more")


if __name__ == "__main__":
    main(int(sys.argv[1]))
