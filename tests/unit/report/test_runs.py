"""Real pytest runs: what they leave in the report folder, and what they print."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.conftest import beside
from tests.unit.report.conftest import Project

AWQ, FP16, TP8 = "turbomind-tp1-awq", "turbomind-tp2-fp16-nccl-p2p_on", "pytorch-tp8-fp16-nccl-p2p_on"
MIXED = """
def test_01_canaries(configuration):
    pass

def test_founding_request(configuration):
    assert configuration.tp == 1, "server died: SIGABRT\\nat the first request"

@pytest.fixture
def stopping(configuration):
    yield
    assert configuration.tp == 1, "2 processes are left"

def test_stops(stopping):
    pass

def test_both_agree():
    pass
"""
WAITS = """
def test_canaries(configuration):
    pass

def test_waits(configuration):
    print("waiting", flush=True)
    signal.pause()
"""


def outcomes(report: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    """Configuration id to outcome and reason."""
    return {found["id"]: (found["outcome"], found["reason"]) for found in report["configurations"]}


def check_mixed(report: dict[str, Any]) -> None:
    """The whole of what MIXED has to give, whoever ran it."""
    assert outcomes(report) == {
        AWQ: ("passed", None),
        FP16: ("failed", "AssertionError: server died: SIGABRT"),
        TP8: ("skipped", "needs 8 GPUs, this machine has 2"),
    }
    tests = {test["nodeid"]: test for test in report["tests"]}
    assert len(tests) == 10
    assert {name: test["configuration"] for name, test in tests.items() if "[" not in name} == {
        "test_suite.py::test_both_agree": None
    }
    stops = tests[f"test_suite.py::test_stops[{FP16}]"]
    assert (stops["outcome"], stops["phase"]) == ("failed", "tear-down")
    assert stops["reason"] == "during tear-down: AssertionError: 2 processes are left"
    assert tests[f"test_suite.py::test_01_canaries[{AWQ}]"]["check"] == "canaries"
    first = report["configurations"][0]
    assert (first["ready_s"], first["starts"], first["gpus"]) == (12.346, 1, [0])
    assert report["run"]["exit_status"] == 1
    assert report["run"]["ended_at"]


@beside(Project)
def test_mixed_run(project):
    project.suite(MIXED)
    exit_status, output = project.run()
    assert exit_status == 1
    check_mixed(project.report())
    table = output[output.index("multi-GPU report") :]
    assert "machine t4x2: 2 x Tesla T4, driver 535.1" in table
    assert "REHEARSED" in table
    assert "fault injected: abort-first-request" in table
    rows = {line.split()[0]: line.split()[1:] for line in table.split("\n\n")[1].splitlines()}
    assert rows["configuration"] == ["canaries", "founding_request", "stops", "ready", "starts"]
    assert rows[AWQ] == ["ok", "ok", "ok", "12.3s", "1"]
    assert rows[FP16] == ["ok", "FAIL", "ERR", "12.3s", "1"]
    assert rows[TP8] == ["skip", "skip", "skip", "-", "0"]
    assert "needs 8 GPUs, this machine has 2:" in table
    assert "report: reports/report.json" in table
    assert sorted(os.listdir(project.folder / "reports")) == ["report.json", "summary.md"]


@pytest.mark.parametrize("distribution", ["load", "loadgroup"])
@beside(Project)
def test_mixed_run_under_xdist(project, distribution):
    project.suite(MIXED)
    exit_status, output = project.run("-n", "2", "--dist", distribution)
    assert exit_status == 1
    check_mixed(project.report())
    assert output.count("multi-GPU report") == 1


@beside(Project)
def test_set_up_error_fails_its_configuration(project):
    project.suite("""
@pytest.fixture
def server(configuration):
    pytest.fail("the server did not start: exit code 1\\nlog follows", pytrace=False)

def test_canaries(server):
    pass
""")
    assert project.run()[0] == 1
    report = project.report()
    words = "during set-up: the server did not start: exit code 1"
    assert outcomes(report)[AWQ] == ("failed", words.replace("up: ", "up: Failed: "))
    assert report["tests"][0]["phase"] == "set-up"


@beside(Project)
def test_crashed_worker_is_a_failure_of_its_configuration(project):
    project.suite("""
def test_canaries(configuration):
    if configuration.tp == 2:
        os.kill(os.getpid(), signal.SIGKILL)
""")
    assert project.run("-n", "2", "--dist", "loadgroup")[0] == 1
    report = project.report()
    outcome, reason = outcomes(report)[FP16]
    assert outcome == "failed"
    assert "crashed while running" in reason
    assert outcomes(report)[AWQ] == ("passed", None)


def wait_for(process, words: str) -> None:
    """Read the process' output up to these words."""
    for line in process.stdout:
        if words in line:
            return
    pytest.fail(f"{words!r} never came")


@beside(Project)
def test_interrupted_run(project):
    project.suite(WAITS)
    process = project.start("-s")
    wait_for(process, "waiting")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 2, output
    report = project.report()
    assert report["run"]["exit_status"] == 2
    assert outcomes(report)[AWQ] == ("skipped", "not run: interrupted (1 of 2 tests have a result)")
    assert outcomes(report)[TP8][1] == "needs 8 GPUs, this machine has 2"
    waiting = report["tests"][3]
    assert (waiting["nodeid"], waiting["outcome"]) == (f"test_suite.py::test_waits[{AWQ}]", "skipped")
    assert (waiting["reason"], waiting["phase"], waiting["seconds"]) == ("not run: interrupted", None, None)
    assert "? = not run" in output


@beside(Project)
def test_killed_run_leaves_its_results_so_far(project):
    project.suite(WAITS)
    process = project.start("-s")
    wait_for(process, "waiting")
    process.kill()
    process.communicate(timeout=30)
    report = project.report()
    assert (report["run"]["ended_at"], report["run"]["exit_status"]) == (None, None)
    assert outcomes(report)[AWQ] == ("skipped", "not run yet (1 of 2 tests have a result)")
    assert report["tests"][0]["outcome"] == "passed"


@beside(Project)
def test_stopped_at_the_first_failure(project):
    project.suite(MIXED)
    assert project.run("-x", "-k", f"{FP16} or both")[0] == 1
    report = project.report()
    assert outcomes(report)[AWQ] == ("skipped", "not run: no test was selected")
    assert outcomes(report)[FP16][0] == "failed"
    assert report["tests"][-1]["reason"] == "not run: stopping after 1 failures"


@beside(Project)
def test_folder_that_cannot_be_written(project):
    project.suite("def test_starts(): open('started', 'w')")
    (project.folder / "occupied").write_text("")
    exit_status, output = project.run("--report=occupied/reports")
    assert exit_status == 4
    assert output.splitlines() == ["ERROR: --report=occupied/reports: can't be written (Not a directory)", ""]
    assert not (project.folder / "started").exists()


@beside(Project)
def test_folder_lost_during_the_run_fails_it(project):
    project.suite("""
import shutil
def test_loses_the_folder():
    shutil.rmtree("reports")
""")
    exit_status, output = project.run()
    assert exit_status == 1
    assert "THE REPORT COULD NOT BE WRITTEN" in output
    assert "1 passed" in output


@beside(Project)
def test_former_report_is_replaced_before_the_first_test(project):
    project.suite("""
import json
def test_sees_the_new_report():
    report = json.load(open("reports/report.json"))
    assert report["tests"][0]["reason"] == "not run yet"
""")
    project.report_json.parent.mkdir()
    project.report_json.write_text(json.dumps({"schema": 0}))
    exit_status, output = project.run()
    assert exit_status == 0, output
    assert project.report()["tests"][0]["outcome"] == "passed"


@pytest.mark.parametrize("argument", ["--no-facts", "--collect-only"])
@beside(Project)
def test_nothing_is_written_without_a_run(project, argument):
    project.suite("def test_passes(): pass")
    exit_status, output = project.run(argument)
    assert exit_status == 0
    assert not project.report_json.parent.exists()
    assert "multi-GPU report" not in output
