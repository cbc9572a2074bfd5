"""The fabric's tests in a pytest of their own: ended from outside in the middle, narrowed, and with bad values."""

import json
import os
import re
import signal
import time

import psutil
import pytest

from tests.conftest import OUTER, beside
from tests.unit.report.conftest import check_schema
from tests.unit.session.conftest import Project

DEADLINE = 30
#: A killed pytest's workers end at once, not when their trial is over (s; the machine may be busy).
AT_ONCE = 4
PAIRS = ("--rehearse", "tests/multigpu/test_pairs.py")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@beside(Project)
def test_ended_from_outside_nothing_is_left(project, number):
    """By Ctrl-C and by SIGKILL, in the middle of trials: no process, nothing beside pytest's own temporary folder."""
    temporary = project.folder.parent / "tmp"
    temporary.mkdir()
    project.environment = {**project.environment, "TMPDIR": str(temporary)}
    process = project.start(*PAIRS, "--pair-sizes=64M")
    deadline = time.monotonic() + DEADLINE
    while not any(len(processes) >= 5 for processes in project.servers().values()):  # a nursery and four workers
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(DEADLINE) == (pytest.ExitCode.INTERRUPTED if number == signal.SIGINT else -number)
    assert psutil.wait_procs(project.processes(), timeout=AT_ONCE)[1] == []
    assert [path.name.partition("-of-")[0] for path in temporary.iterdir()] == ["pytest"]
    assert (number == signal.SIGKILL) == any(temporary.rglob("fabric-*"))
    check_schema(json.loads(project.report_json.read_text()))


@beside(Project)
def test_other_pairs_hangs_use_up_no_tests_time(project):
    """On a node where every pair hangs, the last one's turn comes later than a test may take."""
    fault = project.folder / "fault.toml"
    fault.write_text('description = "nothing arrives"\n[[fabric]]\naction = "hang"\narms = ["p2p_on"]\n')
    options = (f"--fault={fault}", "--pair-timeout=1", "--timeout=1.5", "-k", "p2p_on")
    process = project.start(*PAIRS, *options)
    assert process.wait(DEADLINE) == pytest.ExitCode.TESTS_FAILED
    report = json.loads(project.report_json.read_text())
    assert [pair["status"] for pair in report["pairs"]] == ["hung"] * 6
    assert {test["reason"].partition(":")[0] for test in report["tests"]} == {"FabricFailure"}


def test_one_pair_in_one_arm(project_here, capsys):
    """Selected as any test is."""
    arguments = [*PAIRS, "-k", "GPU0 and GPU2 and p2p_off", "--serial-pairs", "--pair-sizes=64M", "--collect-only"]
    assert pytest.main(["-p", "no:faulthandler", "-q", *arguments]) == 0
    selected = re.findall(r"test_all_reduce\[(.*?)\]", capsys.readouterr().out)
    assert selected == ["GPU0-GPU2-NODE-p2p_off"]


@pytest.mark.parametrize(("keyword", "told"), [("GPU7", True), ("GPU0 and GPU7", True), ("GPU1-GPU2 or GPU7", False)])
def test_a_gpu_that_k_names_and_the_run_has_not(project_here, capsys, keyword, told):
    """Where nothing else was selected: then which there are, in one line."""
    code = pytest.main(["-p", "no:faulthandler", "-q", *PAIRS, "-k", keyword, "--collect-only"])
    assert code == (pytest.ExitCode.NO_TESTS_COLLECTED if told else 0)
    words = f'-k "{keyword}" selects nothing; this run\'s GPUs: GPU0, GPU1, GPU2, GPU3\n'
    assert (words in capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--pair-sizes=64M,3", "'3' is no size; e.g. 64M,256M (a multiple of 4 bytes)"),
        ("--pair-sizes=2000G", "'2000G' is more than any GPU holds"),
        ("--pair-timeout=0", "must be a number from 0.1 on"),
        ("--pair-timeout=soon", "not a number"),
    ],
)
def test_a_bad_value_is_one_line(project_here, capsys, option, words):
    assert pytest.main(["-p", "no:faulthandler", *PAIRS, option]) == pytest.ExitCode.USAGE_ERROR
    errors = capsys.readouterr().err.strip()
    assert errors == f"ERROR: {option}: {words}"


@pytest.fixture
def project_here(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(OUTER):
            monkeypatch.delenv(name)
    monkeypatch.chdir(Project(tmp_path / "project").folder)
