"""The supervisor: what a server writes and how it ends comes through, and nothing of it outlives pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.processes.local_tree import ROOT
from fixtures.processes.proctable import marked_pids, stat_fields
from tests.unit.processes.conftest import LONG, StartProcess, line_with, member, until

#: os.write, since print writes a line in parts, between which another process's line can come.
SLEEP = r"import os, time; os.write(1, b'up\n'); time.sleep(60)"
#: A grandchild that leaves session and group, whose parent ends at once; {how} replaces it, or makes it sleep.
DAEMON = """
import os, sys, time
if not os.fork():
    os.setsid()
    if not os.fork():
        {how}
    os._exit(0)
os.wait()
os.write(1, b"up\\n")
time.sleep({seconds})
"""
STAYS = r"os.write(1, b'daemon %d\n' % os.getpid()); time.sleep(60)"
#: As `env -i` does; setproctitle in ray's workers has the same effect on /proc/PID/environ.
LOSES_ITS_ENVIRONMENT = (
    f"os.execve(sys.executable, [sys.executable, '-S', '-c', {('import os, time;' + STAYS)!r}], {{}})"
)


def lives(pid: int) -> bool:
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX"


def test_lines_come_through_whatever_their_bytes(start: StartProcess) -> None:
    process = start(
        member(
            r"import os; os.write(1, b'one\r\n\ntwo \xff\x00\x1b[31mred\x1b[0m\nthree'); os.write(2, b' \xe2\x82\xac')"
        )
    )
    assert process.wait_members_ended(LONG)
    assert [line.text for line in process.log.lines()] == ["one", "", "two \N{REPLACEMENT CHARACTER}\0red", "three €"]
    assert process.log_file.read_bytes() == b"one\r\n\ntwo \xff\x00\x1b[31mred\x1b[0m\nthree \xe2\x82\xac"


def test_a_line_without_an_end_comes_when_its_writer_dies_beside_a_child_that_holds_the_pipe(
    start: StartProcess,
) -> None:
    process = start(member("import os, time; os.write(1, b'last words'); os.fork() and os.abort(); time.sleep(60)"))
    assert process.wait_members_ended(LONG)
    assert [line.text for line in process.log.lines()] == ["last words"]
    assert len(process.living()) == 1


@pytest.mark.parametrize(
    ("ending", "code"),
    [("pass", 0), ("os._exit(7)", 7), ("os.abort()", -6), ("os.kill(os.getpid(), 11)", -11), ("os._exit(134)", 134)],
)
def test_exit_codes_and_signals(start: StartProcess, ending: str, code: int) -> None:
    process = start(member(f"import os; {ending}"))
    assert process.wait_members_ended(LONG)
    assert process.exit
    assert (process.exit.member, process.exit.pid, process.exit.code) == (0, process.pids[0], code)


def test_a_server_meets_the_usual_signals_with_the_usual_actions(start: StartProcess) -> None:
    process = start(member(SLEEP))
    line_with(process, "up")
    process.signal(signal.SIGTERM)
    assert process.wait_members_ended(LONG)
    assert process.exit
    assert process.exit.code == -signal.SIGTERM
    asking = "import signal as s; print([s.getsignal(n) for n in (s.SIGHUP, s.SIGTERM)] == [s.SIG_DFL] * 2)"
    process = start(member(asking))
    assert process.wait_members_ended(LONG)
    assert process.log.text() == "True"


def test_a_signal_to_one_of_two_members(start: StartProcess) -> None:
    process = start(member(SLEEP), member(SLEEP))
    until(lambda: len(process.log) == 2, "both are up")
    process.signal(signal.SIGUSR1, member=1)
    until(lambda: process.exits, "one ends")
    assert [(exit_.member, exit_.code) for exit_ in process.exits] == [(1, -signal.SIGUSR1)]
    assert process.living() == [process.pids[0]]


def test_a_signal_that_comes_after_the_end_hides_no_end(start: StartProcess) -> None:
    process = start(member(SLEEP))
    line_with(process, "up")
    os.kill(process._supervisor.pid, signal.SIGSTOP)  # so that it meets the order first, then the end
    process.signal(signal.SIGTERM)
    os.kill(process.pids[0], signal.SIGKILL)
    until(lambda: not lives(process.pids[0]), "the member has ended")
    os.kill(process._supervisor.pid, signal.SIGCONT)
    assert process.wait_members_ended(2), "the end of a member was never told"


def test_orphans_are_inherited_and_their_ends_told(start: StartProcess) -> None:
    process = start(member(DAEMON.format(how="os._exit(42)", seconds=60)))
    until(lambda: any(orphan.code == 42 for orphan in process.orphan_exits), "the orphan's end")
    assert process.exit is None


@pytest.mark.parametrize("how", [STAYS, LOSES_ITS_ENVIRONMENT])
@pytest.mark.parametrize("seconds", [0, 60])
def test_a_daemon_that_left_session_and_group_is_ended(start: StartProcess, how: str, seconds: int) -> None:
    process = start(member(DAEMON.format(how=how, seconds=seconds)))
    daemon = int(line_with(process, "daemon").split()[1])
    if not seconds:
        assert process.wait_members_ended(LONG)
    assert daemon in process.living()
    process.end()
    assert daemon in process.leftovers
    assert not lives(daemon)
    assert not process.unkillable


def test_end_comes_at_once_even_right_after_the_start(start: StartProcess) -> None:
    started = time.monotonic()
    start(member(SLEEP)).end()
    assert time.monotonic() - started < 5, "the order to end was lost"


#: What pytest is to a server: a process that holds a LocalTree, until it is killed.
PYTEST = """
import sys, time
from pathlib import Path
from fixtures.processes.local_tree import LocalTree
from tests.unit.processes.conftest import line_with, member

folder, program, awaited = sys.argv[1:]
process = LocalTree([member(program)], Path(folder, "log"), Path(folder), print)
print(process.marker, process._supervisor.pid, line_with(process, awaited).split()[-1], flush=True)
time.sleep(60)
"""
FLOODS = r"import os; os.write(1, b'daemon %d\n' % os.getpid())" "\nwhile True: os.write(1, b'flood ' * 1000)"


@pytest.mark.parametrize("program", [DAEMON.format(how=LOSES_ITS_ENVIRONMENT, seconds=60), FLOODS])
def test_sigkill_of_pytest_leaves_nothing(tmp_path: Path, program: str) -> None:
    argv = [sys.executable, "-c", PYTEST, str(tmp_path), program, "daemon"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as pytest_itself:
        assert pytest_itself.stdout
        marker, supervisor, daemon = pytest_itself.stdout.readline().split()
        assert marked_pids(marker)
        pytest_itself.kill()
    until(lambda: not marked_pids(marker), "the tree ends")
    until(lambda: not lives(int(daemon)), "the daemon without marker ends")
    until(lambda: not lives(int(supervisor)), "the supervisor ends")
    assert Path(tmp_path, "log.supervisor").read_text() == "", "the supervisor failed"


@pytest.mark.parametrize("place", [0, 1])
def test_a_member_that_cant_be_started(start: StartProcess, place: int) -> None:
    members = [member(SLEEP), member(SLEEP)]
    members[place] = member("/nowhere/python", "-m", "lmdeploy")
    process = start(*members)
    line_with(process, "up")  # of the other one
    assert process.problem == "can't start /nowhere/python: No such file or directory"
    process.signal(signal.SIGTERM)
    assert process.wait_members_ended(LONG)
    assert [(exit_.member, exit_.code) for exit_ in process.exits] == [(1 - place, -signal.SIGTERM)]


def test_a_flood_of_50_mb_loses_neither_a_line_nor_the_exit(start: StartProcess) -> None:
    process = start(member("import os\nfor _ in range(500): os.write(1, (b'x' * 99 + b'\\n') * 1000)\nos._exit(9)"))
    assert process.wait_members_ended(LONG)
    assert process.exit
    assert (process.exit.code, len(process.log), process.log_file.stat().st_size) == (9, 500_000, 50_000_000)
    started = time.monotonic()
    assert process.log.useful_tail(2) == ["x" * 99] * 2
    assert time.monotonic() - started < 0.1, "a death is told within 0.1 s, however long the log"


def test_an_endless_flood_keeps_no_order_waiting(start: StartProcess) -> None:
    process = start(member("import os\nwhile True: os.write(1, b'flood\\n' * 1000)"))
    line_with(process, "flood")
    process.signal(signal.SIGTERM)
    assert process.wait_members_ended(5)
    assert process.exit
    assert process.exit.code == -signal.SIGTERM


def test_an_endless_line_is_told_in_parts(start: StartProcess) -> None:
    process = start(member("import os\nfor _ in range(80): os.write(1, b'x' * 2**18)\nos._exit(9)"))
    assert process.wait_members_ended(LONG)
    lengths = [len(line.text) for line in process.log.lines()]
    assert sum(lengths) == 80 * 2**18
    assert max(lengths) < 2**18


def test_a_full_disk_doesnt_end_the_server(start: StartProcess) -> None:
    process = start(member("print('one'); print('two')"), log="/dev/full")
    assert process.wait_members_ended(LONG)
    assert process.log.text() == "one\ntwo"
    assert process.exit
    assert process.exit.code == 0
