"""The CI workflows: the commands that README promises, pinned actions, and no failure hidden."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML isn't installed")

FOLDER = Path(__file__).parents[3] / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
MAIN_JOB = "pip install -e . && pytest -m multigpu --rehearse"
OWN_TESTS = "pip install -e . && pytest"


def jobs_of(path: Path) -> dict[str, Any]:
    """The jobs of one workflow, by name."""
    jobs: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return jobs


def steps_of(path: Path) -> list[dict[str, Any]]:
    """The steps of all jobs of one workflow."""
    return [step for job in jobs_of(path).values() for step in job["steps"]]


def test_there_is_one_for_each_change_and_one_for_each_night():
    assert [path.name for path in WORKFLOWS] == ["cpu.yml", "nightly.yml"]


def test_each_change_runs_readmes_two_commands():
    commands = [step.get("run") for step in steps_of(FOLDER / "cpu.yml")]
    main_job, own_tests = commands.index(MAIN_JOB), commands.index(OWN_TESTS)
    torch = commands.index("pip install torch --index-url https://download.pytorch.org/whl/cpu")
    assert torch < main_job < own_tests
    versions = jobs_of(FOLDER / "cpu.yml")["suite"]["strategy"]["matrix"]["python"]
    assert versions == ["3.10", "3.11", "3.12", "3.13"]


def test_each_night_demands_gpus_and_the_release_under_test():
    (command,) = [step["run"] for step in steps_of(FOLDER / "nightly.yml") if "pytest" in step.get("run", "")]
    for argument in ("-m multigpu", "--require-gpus=2", "--lmdeploy-python=", "--report=reports", "--junitxml="):
        assert argument in command
    assert "--rehearse" not in command
    job = jobs_of(FOLDER / "nightly.yml")["multigpu"]
    assert job["runs-on"] == ["self-hosted", "linux", "gpu", "multigpu"]
    assert job["strategy"]["max-parallel"] == 1


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_failure_is_hidden(path):
    assert "continue-on-error" not in path.read_text()
    for step in steps_of(path):
        assert not re.search(r"\|\|\s*(true|:|exit 0)", step.get("run", "")), step
        assert "set +e" not in step.get("run", "")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_reports_are_kept_also_of_a_failure(path):
    uploads = [step for step in steps_of(path) if "upload-artifact" in step.get("uses", "")]
    assert [(step["if"], step["with"]["path"]) for step in uploads] == [("always()", "reports/")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_with_their_version_beside(path):
    used = re.findall(r"^\s*- uses: (.*)$", path.read_text(), re.MULTILINE)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_has_a_time_limit(path):
    assert all(job["timeout-minutes"] for job in jobs_of(path).values())


def test_zizmor_finds_nothing():
    zizmor = shutil.which("zizmor", path=str(Path(sys.executable).parent)) or shutil.which("zizmor")
    if zizmor is None:
        pytest.skip("zizmor isn't installed")
    command = [zizmor, "--offline", "--no-progress", "--persona=pedantic", str(FOLDER)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr
