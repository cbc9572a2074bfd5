"""GPU memory on paper, held by real child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.rehearsal.ledger import Ledger

REPOSITORY = Path(__file__).parents[3]
GPU, OTHER = "GPU-0", "GPU-1"
# Takes what it is told, says so, and lives until its standard input closes. -S and -I: no package may be needed.
HOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from fixtures.rehearsal.ledger import Ledger
ledger = Ledger(sys.argv[2])
for _ in range(int(sys.argv[4])):
    ledger.take("GPU-0", int(sys.argv[3]))
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def start(ledger: Ledger) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a process that takes `mib` MiB of GPU-0 `times` over; the caller reads its "taken"."""
    children: list[subprocess.Popen[str]] = []

    def one(mib: int, times: int = 1) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", "-S", "-c", HOLDER, str(REPOSITORY), str(ledger.folder), str(mib), str(times)]
        children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return children[-1]

    yield one
    for child in children:
        child.kill()
        child.communicate()


def test_takings_add_up(ledger):
    assert ledger.used_mib(GPU) == 0
    ledger.take(GPU, 500)
    ledger.take(GPU, 500)
    ledger.take(OTHER, 1)
    assert (ledger.used_mib(GPU), ledger.used_mib(OTHER)) == (1000, 1)
    assert Ledger(ledger.folder).processes_on(GPU) == [(os.getpid(), 1000)]


def test_another_process_holds_until_it_ends(ledger, start):
    child = start(7)
    assert child.stdout.readline() == "taken\n"
    ledger.take(GPU, 1)
    assert ledger.processes_on(GPU) == sorted([(os.getpid(), 1), (child.pid, 7)])
    child.communicate("")
    assert ledger.used_mib(GPU) == 1


def test_a_killed_process_gives_back_even_before_it_is_waited_for(ledger, start):
    child = start(7)
    assert child.stdout.readline() == "taken\n"
    assert ledger.used_mib(GPU) == 7
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
    assert ledger.used_mib(GPU) == 0
    child.wait()
    assert ledger.used_mib(GPU) == 0


def test_a_stopped_process_still_holds(ledger, start):
    child = start(7)
    assert child.stdout.readline() == "taken\n"
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert ledger.used_mib(GPU) == 7


def test_many_at_once(ledger, start):
    children = [start(3, times=100) for _ in range(4)]
    seen = [ledger.used_mib(GPU)]
    for child in children:
        assert child.stdout.readline() == "taken\n"
        seen.append(ledger.used_mib(GPU))
    assert seen == sorted(seen)
    assert seen[-1] == 4 * 300
    assert [mib for _, mib in ledger.processes_on(GPU)] == [300] * 4


def test_a_later_process_with_the_same_pid_holds_nothing(ledger):
    ledger.take(GPU, 9)
    (entry,) = (ledger.folder / GPU).iterdir()
    pid, started, rest = entry.name.split("-", 2)
    entry.rename(entry.with_name(f"{pid}-{int(started) - 1}-{rest}"))
    assert ledger.used_mib(GPU) == 0
