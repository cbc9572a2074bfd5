"""A server's death fails the test that runs, whatever it is doing."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time

import pytest

from fixtures.api_server.client import Client
from fixtures.api_server.death import ServerDied
from fixtures.api_server.interrupt import SIGNAL, _too_late, failing_at_death
from fixtures.api_server.server import Server
from tests.unit.api_server.conftest import Launch
from tests.unit.processes.conftest import LONG, line_with, member, until

SLEEP = r"import os, time; os.write(1, b'up\n'); time.sleep(60)"


@pytest.fixture
def server(launch: Launch) -> Server:
    server = launch(member(SLEEP))
    line_with(server.process, "up")
    return server


def kill(server: Server) -> None:
    os.kill(server.process.pids[0], signal.SIGKILL)


def test_a_death_while_the_test_sleeps_raises_at_once(server: Server) -> None:
    def a_test() -> None:
        with failing_at_death(server):
            kill(server)
            time.sleep(30)

    started = time.monotonic()
    with pytest.raises(ServerDied, match=r"killed by SIGKILL \(Killed\) while starting"):
        a_test()
    assert time.monotonic() - started < 5
    assert server.told


def test_a_death_before_raises_on_entering(server: Server) -> None:
    kill(server)
    until(lambda: server.death, "the death is noted")
    former = signal.getsignal(SIGNAL)
    with pytest.raises(ServerDied), failing_at_death(server):
        pytest.fail("the test ran without a server")
    assert signal.getsignal(SIGNAL) in (former, _too_late)


def test_a_death_during_a_request_is_told_once(mortal: Client) -> None:
    with failing_at_death(mortal.server):
        with pytest.raises(ServerDied, match="in flight: POST /v1/chat/completions") as told:
            mortal.chat("signal 9")
        time.sleep(0.01)  # a second telling would come here
    assert told.value.__context__ is None, "the same death stands twice in the report"


def test_a_death_just_after_the_test_doesnt_end_pytest(server: Server) -> None:
    with failing_at_death(server):
        pass
    assert not server._callbacks, "nobody is to be interrupted any more"
    signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)  # what a wake-up that is late by a moment does


def test_an_asked_end_and_a_death_after_the_test_raise_nothing(server: Server) -> None:
    with failing_at_death(server):
        server.stopping = True
        kill(server)
        assert server.process.wait_members_ended(LONG)
    assert server.death is None


def test_deaths_at_the_end_of_tests_are_either_told_or_left_for_later(launch: Launch) -> None:
    """The race of a death with the end of a test, at many moments of it."""
    before = signal.getsignal(SIGNAL)
    for turn in range(6):
        server = launch(member(SLEEP))
        line_with(server.process, "up")
        kill(server)
        told = False
        try:
            with failing_at_death(server):
                for _ in range(turn * 40000):
                    pass
        except ServerDied:
            told = True
        until(functools.partial(getattr, server, "death"), "the death is noted")
        assert server.told == told
        assert not server._callbacks
    assert signal.getsignal(SIGNAL) in (before, _too_late)


def test_beside_the_main_thread_nothing_is_interrupted(server: Server) -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            with failing_at_death(server):
                kill(server)
                until(lambda: server.death, "the death is noted")
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(LONG)
    assert not problems
