"""A small suite that hands over its facts as the real one does, run by pytest in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import fixtures.report
from tests.unit.sigint import heed_sigint

ROOT = Path(__file__).parents[3]
#: Whatever the outer pytest was given is not for the inner one.
PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}
SCHEMA = json.loads((Path(fixtures.report.__file__).parent / "schema.json").read_text())

OPTIONS = """
from pathlib import Path
import pytest
from fixtures.machine.machine import Gpu, Machine
from fixtures.matrix import Cell, Configuration
from fixtures.interpreter.help_flags import Flags
from fixtures.interpreter.probe import Lmdeploy
from fixtures.rehearsal.site import RehearsedNode
from fixtures.report.contract import note
from fixtures.run import Run, ServerSettings
from fixtures.session.run_plugin import RUN

pytest_plugins = ["fixtures.session.report_plugin"]

def gpu(index):
    return Gpu(index, f"GPU-{index}", "Tesla T4", f"00000000:0{index}:00.0", 15360)

CELLS = [
    Cell(Configuration("turbomind", None, 1, "awq", gpus=(0,))),
    Cell(Configuration("turbomind", "nccl", 2, "fp16", "p2p_on", gpus=(0, 1))),
    Cell(Configuration("pytorch", "nccl", 8, "fp16", "p2p_on"), "needs 8 GPUs, this machine has 2"),
]

def pytest_addoption(parser):
    parser.addoption("--report", default="reports")
    parser.addoption("--no-facts", action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "multigpu: as in the real suite")
    if not config.option.no_facts:
        links = (("X", "PHB"), ("PHB", "X"))
        machine = Machine("t4x2", (gpu(0), gpu(1)), links, ((True, True), (True, True)), driver="535.1")
        config.stash[RUN] = Run(
            RehearsedNode(), machine, CELLS, Lmdeploy("/v/python", "0.6.0", Flags({}, {}), python_version="3.8.19"),
            ServerSettings(), Path(config.option.report), node="t4x2", fault="abort-first-request",
        )

def pytest_generate_tests(metafunc):
    if "configuration" in metafunc.fixturenames:
        metafunc.parametrize("configuration", [
            pytest.param(cell, id=cell.configuration.id, marks=pytest.mark.xdist_group(cell.configuration.id))
            for cell in CELLS], indirect=True)

@pytest.fixture
def configuration(request):
    cell = request.param
    if cell.skip_reason:
        pytest.skip(cell.skip_reason)
    note(request.node, configuration_id=cell.configuration.id, starts=1)
    note(request.node, ready_s=12.3456, gpus=cell.configuration.gpus)
    return cell.configuration
"""


class Project:
    """A folder with a suite in it."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        self.folder, self.environment = folder, environment
        folder.mkdir(exist_ok=True)
        self.report_json = folder / "reports" / "report.json"
        (folder / "conftest.py").write_text(OPTIONS)
        (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
        self._started: list[subprocess.Popen[str]] = []

    def suite(self, text: str) -> None:
        """Replace the suite's only test module."""
        (self.folder / "test_suite.py").write_text(
            "import os, signal, pytest\npytestmark = pytest.mark.multigpu\n" + text
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start pytest on the suite in a process group of its own."""
        process = subprocess.Popen(
            # Without this environment's other plugins, whose imports take longer than the run.
            [sys.executable, "-m", "pytest", *(("-p", "xdist") if "-n" in args else ()), *args],
            cwd=self.folder,
            env={**self.environment, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **PLAIN},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=heed_sigint,
        )
        self._started.append(process)
        return process

    def run(self, *args: str) -> tuple[int, str]:
        """Run pytest to its end: exit status, output."""
        process = self.start(*args)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def report(self) -> dict[str, Any]:
        """report.json, checked against the schema."""
        report: dict[str, Any] = json.loads(self.report_json.read_text())
        check_schema(report)
        return report

    def end(self) -> None:
        """End whatever a failing test left running."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def check_schema(report: dict[str, Any]) -> None:
    """Raise jsonschema.ValidationError if the report isn't what schema.json says."""
    jsonschema.Draft202012Validator(SCHEMA).validate(report)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An empty suite; its pytest processes are ended with the test."""
    project = Project(tmp_path)
    yield project
    project.end()
