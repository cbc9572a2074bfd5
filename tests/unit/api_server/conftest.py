"""Real processes as servers, ended after each test, with a check that none is left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from fixtures.api_server.client import Client
from fixtures.api_server.command import ServerCommand
from fixtures.api_server.ready import wait_until_ready
from fixtures.api_server.server import Server
from fixtures.machine.here import Here
from fixtures.matrix import Configuration
from fixtures.processes.loop import LoopThread
from fixtures.processes.ports import free_ports
from fixtures.processes.tree import Member
from tests.unit.processes.conftest import ENVIRONMENT, LONG, member

ANSWERING = Path(__file__).with_name("answering.py")


class Launch(Protocol):
    def __call__(self, *members: Member, port: int = ..., tp: int = ...) -> Server: ...


@contextmanager
def launching(folder_of_all: Path) -> Iterator[Launch]:
    """Ends the launched servers, and checks that nothing is left of them."""
    launched: list[Server] = []

    def launch_server(*members: Member, port: int = 0, tp: int = 1) -> Server:
        port = port or free_ports("127.0.0.1", 1)[0]
        members = members or (answering(port),)
        folder = folder_of_all / f"server{len(launched)}"
        folder.mkdir()
        configuration = Configuration("turbomind", "nccl" if tp > 1 else None, tp, "fp16", gpus=tuple(range(tp)))
        launched.append(Server(Here(), configuration, ServerCommand(members, ENVIRONMENT), "127.0.0.1", port, folder))
        return launched[-1]

    yield launch_server
    for server in launched:
        server.stopping = True
        server.process.end()
    assert [server.process.living() for server in launched] == [[]] * len(launched)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Call it with members to get their Server; without any it's the one of answering.py."""
    with launching(tmp_path) as launch:
        yield launch


def answering(port: int) -> Member:
    """The server of answering.py."""
    return member(sys.executable, "-S", str(ANSWERING), str(port))


@pytest.fixture
def ready_server(launch: Launch) -> Server:
    """A server of answering.py that is ready."""
    server = launch()
    wait_until_ready(server, LONG, lambda: 0)
    return server


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    """An event loop of its own."""
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def mortal(ready_server: Server, loop: LoopThread) -> Iterator[Client]:
    """Asks a server of the test's own, that may die or hang; the whole answer's deadline is long."""
    client = Client(ready_server, loop, LONG)
    yield client
    client.close()


@pytest.fixture(scope="module")
def steady_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that lives through the tests of a module."""
    with launching(tmp_path_factory.mktemp("steady")) as launch:
        server = launch()
        wait_until_ready(server, LONG, lambda: 0)
        yield server


@pytest.fixture
def client(steady_server: Server, loop: LoopThread) -> Iterator[Client]:
    """Asks the steady server."""
    client = Client(steady_server, loop, LONG)
    yield client
    client.close()
