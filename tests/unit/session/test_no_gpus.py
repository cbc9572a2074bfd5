"""A machine without GPUs to use: skips with reasons, never a pretended pass; --require-gpus makes a failure of it."""

from __future__ import annotations

import json
import re

import pytest

from tests.conftest import beside
from tests.unit.session.conftest import Project

#: Hides the GPUs of a machine that has some.
NONE = {"CUDA_VISIBLE_DEVICES": ""}
NARROW = ("--backend=pytorch", "--precision=fp16", "--tp=1")


@beside(Project, **NONE)
def test_all_skipped_with_a_reason(project):
    """Exit code 0, as pytest has it for skips; the reason is in terminal and report."""
    code, output = project.run(*NARROW, "-m", "multigpu")
    assert code == 0, output
    assert "passed" not in output
    assert "no GPU to use: " in output
    assert "try --rehearse" in output
    report = json.loads(project.report_json.read_text())
    assert {test["outcome"] for test in report["tests"]} == {"skipped"}
    assert len(report["tests"]) >= 8
    assert all("no GPU to use: " in test["reason"] or "this run's matrix" in test["reason"] for test in report["tests"])
    assert report["rehearsed"] is False
    assert report["lmdeploy"] is None or report["lmdeploy"]["version"]
    [configuration] = report["configurations"]
    assert configuration["outcome"] == "skipped"
    assert configuration["reason"].startswith("no GPU to use: ")


@beside(Project, **NONE)
def test_a_pair_that_k_names(project):
    """There is none to select: pytest's exit code for that, and one line that says why and what to do."""
    code, output = project.run(*NARROW, "-m", "multigpu", "-k", "GPU0 and GPU2 and p2p_off")
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED, output
    told = re.findall(r"^.*selects nothing.*$", output, re.MULTILINE)
    assert len(told) == 1
    assert told[0].startswith(
        '-k "GPU0 and GPU2 and p2p_off" selects nothing, and no pair of GPUs exists here: no GPU '
    )
    assert told[0].endswith("; try --rehearse")


@beside(Project, **NONE)
def test_require_gpus(project):
    """More than any machine has: exit 1, though every test was skipped, and the words for it; workers or not."""
    code, output = project.run(*NARROW, "-m", "multigpu", "--require-gpus=99", "-n", "1")
    assert code == 1, output
    assert "--require-gpus=99: this machine has " in output
    assert "physical GPUs, so the run failed" in output
    assert json.loads(project.report_json.read_text())["run"]["exit_status"] == 1


@beside(Project, **NONE)
def test_require_gpus_of_a_rehearsal(project):
    """Emulated GPUs aren't physical: a nightly run that rehearses by mistake must not pass."""
    project.multigpu("def test_here(configuration):\n    pass\n")
    code, output = project.run("--rehearse", *NARROW, "-m", "multigpu", "--require-gpus=1")
    assert code == 1, output
    assert "1 passed" in output
    assert "--require-gpus=1: a rehearsal has no physical GPUs, so the run failed" in output
