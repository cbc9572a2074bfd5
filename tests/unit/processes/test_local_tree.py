"""A LocalTree's call-backs, and what becomes of it when its supervisor is lost."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading

import pytest

from fixtures.processes.ending import Exit
from fixtures.processes.local_tree import LOST
from tests.unit.processes.conftest import LONG, StartProcess, line_with, member, until

SLEEP = r"import os, time; os.write(1, b'up\n'); time.sleep(60)"
WITH_A_CHILD = r"import os, time; os.fork(); os.write(1, b'up %d\n' % os.getpid()); time.sleep(60)"


def test_the_first_end_is_called_back_once_after_the_last_words(start: StartProcess) -> None:
    told: queue.Queue[tuple[Exit, list[str], str]] = queue.Queue()

    def on_exit(exit_: Exit) -> None:
        told.put((exit_, [line.text for line in process.log.lines()], threading.current_thread().name))

    process = start(member(SLEEP), member("import os; os.write(1, b'farewell'); os._exit(3)"), on_exit=on_exit)
    first, lines, thread = told.get(timeout=LONG)
    assert (first.member, first.code, thread) == (1, 3, "server-events")
    assert "farewell" in lines
    line_with(process, "up")
    process.signal(signal.SIGTERM)
    assert process.wait_members_ended(LONG)
    process.end()
    assert told.empty()
    assert [exit_.member for exit_ in process.exits] == [1, 0]


def test_wait_members_ended_waits_for_members_that_havent_started_yet(start: StartProcess) -> None:
    assert not start(member(SLEEP)).wait_members_ended(0)


def test_a_lost_supervisor_is_a_death_and_leaves_nothing(start: StartProcess) -> None:
    told: queue.Queue[Exit] = queue.Queue()
    process = start(member(WITH_A_CHILD), on_exit=told.put)
    until(lambda: len(process.log) == 2, "parent and child are up")
    os.kill(process._supervisor.pid, signal.SIGKILL)
    assert told.get(timeout=LONG) == process.exit
    assert process.exit
    assert (process.exit.pid, process.exit.code) == (process.pids[0], -signal.SIGKILL)
    assert process.problem == LOST
    until(lambda: not process.living(), "the child ends too")


def test_a_stopped_supervisor_doesnt_keep_its_tree(start: StartProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixtures.processes.local_tree.END_DEADLINE", 0.1)
    monkeypatch.setattr("fixtures.processes.local_tree.SUPERVISOR_DEADLINE", 0.1)
    process = start(member(WITH_A_CHILD))
    until(lambda: len(process.log) == 2, "parent and child are up")
    os.kill(process._supervisor.pid, signal.SIGSTOP)
    process.end()
    assert not process.living()


def test_end_and_signal_after_the_end_do_nothing(start: StartProcess) -> None:
    process = start(member(SLEEP))
    line_with(process, "up")
    process.end()
    process.signal(signal.SIGTERM)
    process.end()
    assert [exit_.code for exit_ in process.exits] == [-signal.SIGKILL]


def test_a_released_server_lives_on_without_pytest(start: StartProcess) -> None:
    process = start(member(SLEEP))
    line_with(process, "up")
    process.release()
    assert process._supervisor.stdin
    assert process._supervisor.stdout
    process._supervisor.stdin.close()  # as the end of pytest does
    with pytest.raises(subprocess.TimeoutExpired):
        process._supervisor.wait(0.2)
    assert process.living() == [process.pids[0]]
    os.kill(process.pids[0], signal.SIGUSR1)
    assert process._supervisor.wait(LONG) == 0
    process._reader.join(LONG)
    assert not process.exits, "what becomes of a kept server is nobody's death"
