"""A hang as data and in words, with what NCCL's RAS says of the server's ranks where it can be asked."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from functools import partial

import pytest

from fixtures.api_server import server as server_module
from fixtures.api_server.client import Client
from fixtures.api_server.death import RequestInFlight
from fixtures.api_server.hang import Hang, ServerHung
from fixtures.api_server.ready import wait_until_ready
from fixtures.api_server.server import Server
from fixtures.nccl.ras import ask_shared_ras
from fixtures.processes.loop import LoopThread
from fixtures.processes.ports import free_ports
from fixtures.processes.tree import Member
from tests.unit.api_server.conftest import ANSWERING, Launch
from tests.unit.nccl.ras_answers import IDLE, STOPPED
from tests.unit.processes.conftest import ENVIRONMENT, LONG, line_with, member

SHORT = 0.3
#: Says {text} on the RAS port, as NCCL does, but for the first {silent} connections; then does {rest}.
WITH_RAS = """
import os, runpy, socket, sys, threading, time
host, port = os.environ["NCCL_RAS_ADDR"].split(":")
listening = socket.create_server((host, int(port)))
def ras():
    held = []
    while True:
        held.append(listening.accept()[0])
        if len(held) > {silent}:
            with held.pop() as connection, connection.makefile() as lines:
                while lines.readline().strip() != "verbose status":
                    pass
                connection.sendall({text!r}.encode())
threading.Thread(target=ras, daemon=True).start()
os.write(1, b"up\\n")
sys.argv = ["", "{http}"]
{rest}
"""
ANSWERS, HANGS = f"runpy.run_path({str(ANSWERING)!r})", "time.sleep(60)"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """RAS is waited for less long."""
    monkeypatch.setattr(server_module, "ask_shared_ras", partial(ask_shared_ras, deadline_s=3 * SHORT))


def up(launch: Launch, *, rest: str, text: str = STOPPED, silent: int = 0) -> Server:
    """A server of two ranks that listens for RAS's clients."""
    http, ras = free_ports("127.0.0.1", 2)
    code = WITH_RAS.format(rest=rest, text=text, silent=silent, http=http)
    program = Member((sys.executable, "-S", "-c", code), {**ENVIRONMENT, "NCCL_RAS_ADDR": f"127.0.0.1:{ras}"})
    server = launch(program, port=http, tp=2)
    line_with(server.process, "up")
    return server


def test_a_hang_in_full() -> None:
    hang = Hang(
        configuration="turbomind-tp2-fp16-nccl-p2p_on",
        phase="serving 1 request",
        what="POST /v1/chat/completions (hi): no whole answer within 2 s (sent 2.0 s ago)",
        in_flight=[RequestInFlight("POST /v1/chat/completions (hi)", 2.0)],
        answers={"/v1/models": "200", "/health": "ReadTimeout"},
        processes=["pid 41: state S"],
        ras=["rank 1 is missing", "no more is known"],
        last_lines=["loading"],
    )
    assert str(ServerHung(hang)) == (
        "the server turbomind-tp2-fp16-nccl-p2p_on lives but hangs: "
        "POST /v1/chat/completions (hi): no whole answer within 2 s (sent 2.0 s ago)\n"
        "  meanwhile GET /v1/models: 200\n"
        "  meanwhile GET /health: ReadTimeout\n"
        "  pid 41: state S\n"
        "  NCCL's RAS: rank 1 is missing\n"
        "  NCCL's RAS: no more is known\n"
        "  last useful log lines:\n"
        "    loading"
    )
    bare = replace(hang, answers={}, processes=(), ras=None, last_lines=())
    assert bare.words().splitlines() == [hang.headline(), "  the log has no line that explains it"]


def test_what_couldnt_be_started_has_nothing_to_explain() -> None:
    hang = Hang("x", "starting", "can't start /nowhere/python", started=False)
    assert hang.words() == hang.headline() == "the server x was not started: can't start /nowhere/python"
    assert replace(hang, last_lines=["node 0 is up"]).words().endswith("  last useful log lines:\n    node 0 is up")


def test_a_hang_while_serving_is_data(launch: Launch, loop: LoopThread) -> None:
    server = up(launch, rest=ANSWERS)
    wait_until_ready(server, LONG, lambda: 0)
    client = Client(server, loop, SHORT)
    with pytest.raises(ServerHung) as told:
        client.chat("wait")
    client.close()
    hang = told.value.hang
    assert server.hang is hang
    assert (hang.configuration, hang.phase) == ("turbomind-tp2-fp16-nccl", "serving 1 request")
    assert hang.what.startswith("POST /v1/chat/completions (wait): no whole answer within 0.3 s (sent ")
    [request] = hang.in_flight
    assert request.name == "POST /v1/chat/completions (wait)"
    assert SHORT <= request.seconds < LONG
    assert hang.answers == {"/v1/models": "200", "/health": "200"}
    [process] = hang.processes
    assert process.startswith(f"pid {server.pid}: state S")
    assert hang.ras is not None
    assert hang.ras[1] == "rank 1 (GPU 0, process 502) is missing"
    assert list(hang.last_lines) == ["up", "input backend=turbomind", "asked"]
    assert "\n  NCCL's RAS: rank 1 (GPU 0, process 502) is missing\n" in str(told.value)


def start_hang(server: Server) -> Hang:
    """Of a server that never gets ready."""
    with pytest.raises(ServerHung, match="not ready after") as told:
        wait_until_ready(server, SHORT, lambda: 0)
    return told.value.hang


def test_a_hang_at_start_is_data(launch: Launch) -> None:
    """A stopped process holds what the kernel hands it, and says nothing; another one says all."""
    hang = start_hang(up(launch, rest=HANGS, silent=1))
    assert (hang.phase, hang.in_flight, hang.answers, list(hang.last_lines)) == ("starting", [], {}, ["up"])
    assert hang.ras is not None
    assert "rank 1 (GPU 0, process 502) is missing" in hang.ras


@pytest.mark.parametrize(
    ("text", "silent", "words"),
    [
        pytest.param(IDLE, 0, "no rank is missing, failed or behind", id="a job in which nothing is wrong"),
        pytest.param("", 99, "no answer", id="every process is stopped"),
    ],
)
def test_what_ras_says(launch: Launch, text: str, silent: int, words: str) -> None:
    assert start_hang(up(launch, rest=HANGS, text=text, silent=silent)).ras == [words]


def test_ras_of_somebody_else_isnt_asked(launch: Launch) -> None:
    """NCCL is older than its RAS, or has no communicator yet; another program has the port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        code = "import time; time.sleep(60)"
        address = f"127.0.0.1:{other.getsockname()[1]}"
        server = launch(Member((sys.executable, "-S", "-c", code), {**ENVIRONMENT, "NCCL_RAS_ADDR": address}))
        hang = start_hang(server)
    assert hang.ras is None
    assert "RAS" not in hang.words()


@pytest.mark.parametrize("address", ["", "28028", "localhost", "[::1]:x"])
def test_an_address_that_cant_be_asked(launch: Launch, address: str) -> None:
    sleeping = member("import time; time.sleep(60)")
    hang = start_hang(launch(Member(sleeping.argv, {**ENVIRONMENT, "NCCL_RAS_ADDR": address})))
    assert hang.ras is None


def test_one_that_couldnt_be_started_is_data_too(launch: Launch) -> None:
    server = launch(member("/nowhere/python", "-m", "lmdeploy"))
    with pytest.raises(ServerHung) as told:
        wait_until_ready(server, LONG, lambda: 0)
    hang = told.value.hang
    assert (hang.started, hang.phase) == (False, "starting")
    assert hang.what == "can't start /nowhere/python: No such file or directory"
    assert server.hang is hang
    assert str(told.value) == hang.headline()
