"""Waiting for a start: progress extends its deadline, silence ends it, only the server itself makes it ready."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from fixtures.api_server import ready
from fixtures.api_server.death import ServerDied
from fixtures.api_server.hang import ServerHung
from fixtures.api_server.ready import wait_until_ready
from fixtures.processes.ports import free_ports
from tests.unit.api_server.conftest import ANSWERING, Launch, answering
from tests.unit.processes.conftest import LONG, member

#: The start's deadline here; the programs below take several times as long, in steps of a fraction of it.
TIMEOUT = 0.5
STEPS = f"""
import os, runpy, sys, time
held = []
for _ in range(9):
    time.sleep(0.09)
    {{step}}
sys.argv = ["", "{{port}}"]
runpy.run_path({str(ANSWERING)!r})
"""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is looked at more often than every second."""
    monkeypatch.setattr(ready, "SAMPLE_S", 0.05)


def test_a_start(launch: Launch) -> None:
    server = launch()
    wait_until_ready(server, LONG, lambda: 0)
    assert server.model_name == "stub"
    assert server.ready_s is not None
    assert 0 < server.ready_s < LONG
    assert list(server.known_pids) == [server.pid]
    assert server.usable


@pytest.mark.parametrize("step", [r"os.write(1, b'step\n')", "held.append(b'x' * 40_000_000)"])
def test_progress_extends_the_deadline(launch: Launch, step: str) -> None:
    port = free_ports("127.0.0.1", 1)[0]
    server = launch(member(STEPS.format(step=step, port=port)), port=port)
    wait_until_ready(server, TIMEOUT, lambda: 0)
    assert server.ready_s is not None
    assert server.ready_s > 0.8


def test_growing_gpu_memory_is_progress(launch: Launch) -> None:
    port = free_ports("127.0.0.1", 1)[0]
    server = launch(member(STEPS.format(step="pass", port=port)), port=port)
    wait_until_ready(server, TIMEOUT, lambda: int((time.monotonic() - server.started) * 1000))


def test_silence_ends_a_start(launch: Launch) -> None:
    server = launch(member(r"import os, time; os.write(1, b'loading\n'); time.sleep(60)"))
    with pytest.raises(ServerHung, match=r"not ready after .*no progress .*--start-timeout=0.3") as told:
        wait_until_ready(server, 0.3, lambda: 0)
    assert time.monotonic() - server.started < 2.5, "ten times the deadline is for starts that show progress"
    assert f"pid {server.pid}: state S" in str(told.value)
    assert "    loading" in str(told.value)
    assert not server.usable


def test_progress_that_leads_nowhere_ends_too(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "LONGEST", 1.5)
    server = launch(member(r"import os, time" "\nwhile True: os.write(1, b'loading\\n'); time.sleep(0.01)"))
    with pytest.raises(ServerHung, match=r"ten times --start-timeout=0.6, though it still shows progress"):
        wait_until_ready(server, 0.6, lambda: 0)


def test_a_death_while_starting_is_told_at_once(launch: Launch) -> None:
    server = launch(member("import os; os.write(2, b'ImportError: no engine'); os._exit(1)"))
    with pytest.raises(ServerDied, match="exited with code 1 while starting") as told:
        wait_until_ready(server, LONG, lambda: 0)
    assert told.value.death.last_lines == ["ImportError: no engine"]


def test_a_server_that_cant_be_started(launch: Launch) -> None:
    server = launch(member("/nowhere/python", "-m", "lmdeploy"))
    with pytest.raises(ServerHung, match="was not started: can't start /nowhere/python: No such file or directory"):
        wait_until_ready(server, LONG, lambda: 0)
    assert not server.usable


@pytest.fixture
def others_port() -> Iterator[int]:
    """A port at which somebody else's server answers /v1/models."""
    port = free_ports("127.0.0.1", 1)[0]
    with subprocess.Popen(answering(port).argv, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()  # comes when it listens
        yield port
        other.kill()


def test_somebody_elses_server_isnt_taken_for_ours(launch: Launch, others_port: int) -> None:
    server = launch(member("import time; time.sleep(60)"), port=others_port)
    with pytest.raises(ServerHung, match="no progress"):
        wait_until_ready(server, 0.3, lambda: 0)
    server = launch(port=others_port)
    with pytest.raises(ServerDied, match="Address already in use"):
        wait_until_ready(server, LONG, lambda: 0)
