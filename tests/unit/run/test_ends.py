"""Ctrl-C and SIGKILL of pytest, whatever its server is doing: no process is left, and the report can be read."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import psutil
import pytest

from fixtures.api_server.proctable import marked_pids
from tests.unit.report.conftest import check_schema

DEADLINE = 20
TWO_RANKS = ("--rehearse", "--tp=2", "--precision=fp16", "--communicator=nccl", "--p2p=p2p_on", "-m", "multigpu", "-s", "--stop-timeout=1")
SUITE = """
def test_before(configuration):
    pass

def test_now(api_server, client):
    print("\\nnow", flush=True)
    {now}

def test_later(client):
    pass
"""
#: What the server is doing when the signal comes: the test's own line, and the fault that makes it last.
MOMENTS = {
    "starting": ("pass", "hang-at-start"),
    "answering": ("client.chat('Tell a story.')", "hang-first-request"),
    "stopping": ("api_server.stop()", "ignores-sigterm"),
}


def wait_for(moment: str, project, process: subprocess.Popen[str]) -> list[str]:
    """Until the moment has come; the markers of the servers there are then."""
    if moment != "starting":
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == "now\n":
                return list(project.servers())
        pytest.fail(f"pytest ended too early: {''.join(lines)}")
    # A starting server tells nothing, so the process table is asked.
    deadline = time.monotonic() + DEADLINE
    while not (found := project.servers()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return list(found)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize(
    ("moment", "backend", "workers"),
    [
        ("starting", "turbomind", ()),
        ("answering", "pytorch", ()),
        ("stopping", "turbomind", ()),
        ("starting", "pytorch", ("-n", "2")),
    ],
    ids=lambda value: "-".join(value).replace("--", "-") if isinstance(value, tuple) else value,
)
def test_nothing_is_left(project, moment, backend, workers, number):
    now, fault = MOMENTS[moment]
    project.multigpu(SUITE.format(now=now))
    process = project.start(*TWO_RANKS, f"--backend={backend}", f"--fault={fault}", *workers)
    markers = wait_for(moment, project, process)
    assert markers
    process.send_signal(number)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == (pytest.ExitCode.INTERRUPTED if number == signal.SIGINT else -number)

    assert psutil.wait_procs(project.processes(), timeout=DEADLINE)[1] == []
    assert [pid for marker in markers for pid in marked_pids(marker)] == []
    report = json.loads(project.report_json.read_text())
    check_schema(report)
    outcomes = {test["nodeid"].partition("::")[2].partition("[")[0]: test["outcome"] for test in report["tests"]}
    assert outcomes["test_before"] == "passed"
    assert outcomes["test_later"] != "passed"
    assert (report["run"]["ended_at"] is None) == (number == signal.SIGKILL)
