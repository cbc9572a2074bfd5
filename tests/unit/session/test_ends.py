"""Ctrl-C and SIGKILL of pytest, whatever its server is doing: no process is left, and the report can be read."""

from __future__ import annotations

import json
import signal
import time

import psutil
import pytest

from fixtures.processes.proctable import marked_pids
from tests.conftest import beside
from tests.unit.report.conftest import check_schema
from tests.unit.session.conftest import Project

DEADLINE = 20
#: A killed pytest's servers end at once, not when somebody's own deadline has passed (s; the machine may be busy).
AT_ONCE = 4
TWO_RANKS = ("--rehearse", "--tp=2", "--precision=fp16", "--communicator=nccl", "--p2p=p2p_on", "-m", "multigpu")
#: A server that hangs doesn't heed SIGTERM; the default of 30 s would be waited for.
QUICK = "--stop-timeout=1"
SUITE = """
def test_before(configuration):
    pass

def test_now(api_server, client):
    open("now", "w").close()
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


def wait_for(moment: str, project) -> list[str]:
    """Until the moment has come; the markers of the servers there are then."""
    # Polled: a starting server tells nothing, and a worker's output doesn't reach the terminal.
    deadline = time.monotonic() + DEADLINE
    while not (project.servers() if moment == "starting" else (project.folder / "now").exists()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return list(project.servers())


@pytest.mark.parametrize(
    ("moment", "number", "backend", "workers"),
    [
        ("starting", signal.SIGINT, "turbomind", ()),
        ("starting", signal.SIGKILL, "pytorch", ("-n", "2")),
        ("answering", signal.SIGINT, "turbomind", ()),
        ("answering", signal.SIGKILL, "pytorch", ()),
        ("stopping", signal.SIGINT, "pytorch", ()),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "".join(value),
)
@beside(Project)
def test_nothing_is_left(project, moment, number, backend, workers):
    """No process, and none of the suite's folders; a folder that somebody else named for ray's files stays."""
    somebodys, own = project.folder.parent / "somebodys", project.folder.parent / "own"
    for folder in (somebodys, own):
        folder.mkdir()
    project.environment = {**project.environment, "RAY_TMPDIR": str(somebodys), "TMPDIR": str(own)}
    now, fault = MOMENTS[moment]
    project.multigpu(SUITE.format(now=now))
    process = project.start(*TWO_RANKS, QUICK, f"--backend={backend}", f"--fault={fault}", *workers)
    markers = wait_for(moment, project)
    assert markers
    process.send_signal(number)
    code = process.wait(timeout=DEADLINE)  # not for the end of its output: whoever is left would hold it open
    assert code == (pytest.ExitCode.INTERRUPTED if number == signal.SIGINT else -number)

    assert psutil.wait_procs(project.processes(), timeout=AT_ONCE)[1] == []
    assert [pid for marker in markers for pid in marked_pids(marker)] == []
    assert somebodys.exists()
    assert not [path for path in own.iterdir() if path.name.startswith("ray-")]
    report = json.loads(project.report_json.read_text())
    check_schema(report)
    outcomes = {test["nodeid"].partition("::")[2].partition("[")[0]: test["outcome"] for test in report["tests"]}
    assert outcomes["test_before"] == "passed"
    assert outcomes["test_later"] != "passed"
    assert (report["run"]["ended_at"] is None) == (number == signal.SIGKILL)
