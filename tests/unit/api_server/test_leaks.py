"""Starting and stopping again and again leaves nothing behind in pytest's own process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil

from fixtures.api_server.client import Client
from fixtures.api_server.command import ServerCommand
from fixtures.api_server.interrupt import failing_at_death
from fixtures.api_server.loop import LoopThread
from fixtures.api_server.ports import free_ports
from fixtures.api_server.ready import wait_until_ready
from fixtures.api_server.server import Server
from fixtures.api_server.stop import stop
from fixtures.matrix import Configuration
from tests.unit.api_server.conftest import ENVIRONMENT, LONG, answering

CONFIGURATION = Configuration("turbomind", None, 1, "fp16", gpus=(0,))


def held() -> tuple[int, int, int]:
    """This process's open files, threads and children (zombies are children too)."""
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(psutil.Process().children())


def test_cycles_leave_no_file_thread_or_process(tmp_path: Path, loop: LoopThread) -> None:
    def cycle() -> None:
        port = free_ports("127.0.0.1", 1)[0]
        server = Server(CONFIGURATION, ServerCommand((answering(port),), ENVIRONMENT), "127.0.0.1", port, tmp_path)
        wait_until_ready(server, LONG, lambda: 0)
        client = Client(server, loop, LONG)
        with failing_at_death(server):
            client.canary()
        client.close()
        assert stop(server, dict, {}, LONG).clean

    cycle()  # what stays for good is there after the first one
    before = held()
    for _ in range(int(os.environ.get("CYCLES", "3"))):
        cycle()
    assert held() == before
