"""Stopping: what a clean end is, and what a server can keep that isn't its own any more."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.api_server import stop as stopping
from fixtures.api_server.server import Server
from fixtures.api_server.stop import Stopped, stop
from tests.unit.api_server.conftest import Launch
from tests.unit.processes.conftest import LONG, line_with, member, until

#: A program that is up and waits for signals; {on_term} is what it does at SIGTERM.
UP = r"""
import os, signal, time
def on_term(*_):
    {on_term}
signal.signal(signal.SIGTERM, on_term)
{first}
os.write(1, b'up\n')
while True:
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel and children get a moment, but not seconds."""
    monkeypatch.setattr(stopping, "CHILDREN_DEADLINE", 0.2)
    monkeypatch.setattr(stopping, "RETURN_DEADLINE", 0.2)


def stopped(server: Server, deadline: float = LONG, used: int = 0) -> Stopped:
    return stop(server, lambda: {"GPU-0": used}, {"GPU-0": 100}, deadline)


def up(launch: Launch, on_term: str, first: str = "pass", members: int = 1) -> Server:
    server = launch(*[member(UP.format(on_term=on_term, first=first))] * members)
    until(lambda: len(server.process.log) >= members, "all are up")
    line_with(server.process, "up")
    return server


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("os._exit(0)", 0),
        ("os._exit(143)", 143),
        ("signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15)", -signal.SIGTERM),
    ],
)
def test_a_clean_end(launch: Launch, ending: str, code: int) -> None:
    server = up(launch, ending)
    end = stopped(server)
    assert (end.clean, [exit_.code for exit_ in end.exits]) == (True, [code])
    assert end.seconds < 5
    assert server.death is None
    assert not server.usable


@pytest.mark.parametrize(
    ("ending", "words"),
    [("os._exit(3)", "the server exited with code 3"), ("os.abort()", r"the server killed by SIGABRT (Aborted)")],
)
def test_an_unclean_end(launch: Launch, ending: str, words: str) -> None:
    assert stopped(up(launch, ending)).problems == (f"on SIGTERM {words} (clean are 0, SIGTERM and 143)",)


def test_an_unclean_end_of_one_of_two_nodes(launch: Launch) -> None:
    server = launch(*(member(UP.format(on_term=f"os._exit({code})", first="pass")) for code in (0, 3)))
    until(lambda: len(server.process.log) == 2, "both are up")
    assert stopped(server).words == (
        "the server wasn't stopped cleanly: "
        "on SIGTERM node 1 of the server exited with code 3 (clean are 0, SIGTERM and 143)"
    )


def test_ignoring_sigterm(launch: Launch) -> None:
    server = up(launch, "pass")
    started = time.monotonic()
    end = stopped(server, deadline=0.2)
    assert 0.2 <= time.monotonic() - started < 5
    assert end.problems[0] == "SIGTERM didn't end it within 0.2 s; SIGKILL was needed"
    assert end.problems[1].startswith(f"  pid {server.pid}: state S")
    assert [exit_.code for exit_ in end.exits] == [-signal.SIGKILL]


def test_a_child_that_outlives_the_server(launch: Launch) -> None:
    server = up(launch, "os._exit(0)", first="os.fork() or time.sleep(60)")
    (problem,) = stopped(server).problems
    assert problem.startswith("a process outlives the server: pid ")
    assert not server.process.living()


def test_a_child_that_follows_a_moment_later_is_no_problem(launch: Launch) -> None:
    server = up(launch, "os._exit(0)", first="r, w = os.pipe(); os.fork() or (os.close(w), os.read(r, 1), os._exit(0))")
    assert stopped(server).clean


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    path = Path(f"/dev/shm/lmdeploy-suite-test-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


#: Mapped, and its file closed again, as NCCL does; Python's own mmap keeps a descriptor.
MAPS = """
import ctypes
call, fd = ctypes.CDLL(None).mmap, os.open({path!r}, os.O_RDWR)
call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
call(None, 4096, 3, 1, fd, 0)
os.close(fd)
"""


@pytest.mark.parametrize("unlinks", [False, True])
@pytest.mark.parametrize("holding", ["held = open({path!r}, 'rb')", MAPS])
def test_shared_memory_that_is_left(launch: Launch, shared_memory: Path, holding: str, unlinks: bool) -> None:
    shared_memory.write_bytes(b"x" * 4096)
    on_term = (f"os.unlink({str(shared_memory)!r}); " if unlinks else "") + "os._exit(0)"
    server = up(launch, on_term, first=holding.format(path=str(shared_memory)))
    assert stopped(server).problems == (() if unlinks else (f"shared memory left: {shared_memory}",))


#: Listens on a port beside whoever else does.
LISTENS = """
import socket
listening = socket.socket()
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listening.bind(("127.0.0.1", {port}))
listening.listen()
"""


def test_a_port_that_is_still_taken(launch: Launch) -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        port = other.getsockname()[1]
        server = launch(member(UP.format(on_term="os._exit(0)", first=LISTENS.format(port=port))), port=port)
        line_with(server.process, "up")
        assert stopped(server).problems == (f"port {port} is still taken",)


def test_a_port_that_the_server_never_had_is_no_problem(launch: Launch) -> None:
    """Another program got it meanwhile; the server died before it listened, or never would have."""
    server = up(launch, "os._exit(0)")
    with socket.create_server((server.host, server.port)):
        assert stopped(server).clean


def test_gpu_memory_that_isnt_given_back(launch: Launch) -> None:
    assert stopped(up(launch, "os._exit(0)"), used=164).clean, "a driver's bookkeeping may move a little"
    (problem,) = stopped(up(launch, "os._exit(0)"), used=165).problems
    assert problem == "GPU GPU-0 has 65 MiB more in use than before the start"


def test_memory_that_comes_back_a_moment_later_is_no_problem(launch: Launch) -> None:
    answers = iter([4000, 2000])
    assert stop(up(launch, "os._exit(0)"), lambda: {"G": next(answers, 0)}, {"G": 0}, LONG).clean


def test_a_server_that_died_before_has_no_clean_end_to_speak_of(launch: Launch) -> None:
    server = up(launch, "os._exit(0)", first="if os.fork() == 0: time.sleep(60)")
    os.kill(server.pid or 0, signal.SIGSEGV)
    until(lambda: server.death, "the death is noted")
    assert stopped(server).clean
    assert not server.process.living()


def test_an_end_in_the_moment_before_sigterm_isnt_taken_for_a_clean_one(launch: Launch) -> None:
    server = up(launch, "os._exit(0)")
    server.stopping = True  # as `stop` does, and in this moment:
    os.kill(server.pid or 0, signal.SIGSEGV)
    assert server.process.wait_members_ended(LONG)
    assert stopped(server).problems == ("before SIGTERM the server killed by SIGSEGV (Segmentation fault)",)
