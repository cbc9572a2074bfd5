"""pytest as a person calls it: in this process where nothing is started, in one of its own where something is."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

import fixtures.machine.here
from fixtures.machine.machine import Machine
from fixtures.matrix import Configuration, Selection
from fixtures.option import values
from fixtures.processes.proctable import MARKER
from fixtures.rehearsal.nodes import load_node
from fixtures.run import Run
from fixtures.session.resolve import resolve
from tests.conftest import OUTER, THREADS
from tests.unit.preflight.conftest import this_run  # noqa: F401  a fixture
from tests.unit.sigint import heed_sigint

ROOT = Path(__file__).parents[3]
#: In every process that a Project starts, so that each can be found again whatever became of its parents.
OWNER = "LMDEPLOY_SUITE_TESTS_OF_RUNS"
#: Without this environment's other plugins, whose imports take longer than most of these runs.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
PLUGINS = ("-p", "pytest_timeout", "-p", "xdist")
END = "-- the end of one --"
#: Answers each command line in turn, each answer with its exit code and END after it.
COLLECT = f"""
import json, sys, pytest
for line in json.loads(sys.argv[1]):
    print(int(pytest.main(line)), {END!r})
"""
#: The quickest rehearsal: one configuration on one GPU.
ONE = ("--rehearse", "--backend=turbomind", "--tp=1", "--precision=fp16")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the outer pytest was given, and the GPUs it may see, are not for the inner one."""
    for name in list(os.environ):
        if name.startswith(OUTER):
            monkeypatch.delenv(name)


class Pytest:
    """pytest in this process: its exit code, what it printed, and every process it started."""

    def __init__(self, started: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
        self.started = started
        self._capsys = capsys

    def __call__(self, *arguments: str, plugins: tuple[object, ...] = ()) -> tuple[int, str, str]:
        """Exit code, standard output, standard error of `pytest ARGUMENTS`, run where this test is."""
        self._capsys.readouterr()
        code = pytest.main(["-p", "no:faulthandler", *arguments], plugins=[*plugins])
        return int(code), *self._capsys.readouterr()

    def resolve(self, *arguments: str) -> Run:
        """The run that these options ask for."""
        asking = _Resolving()
        code, _, errors = self(*arguments, plugins=(asking,))
        assert code == 0, errors
        return asking.run


def select(**given: tuple[object, ...]) -> Selection:
    """What is chosen of the matrix without options, but for what is given."""
    return values(Configuration, lambda name: None) | given


class _Resolving:
    run: Run

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        self.run = resolve(config)
        return 0


@pytest.fixture
def inner(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Pytest]:
    """pytest in this process, called in a project of its own."""
    started: list[list[str]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, args: list[str], *more: object, **named: object) -> None:
            if not threading.current_thread().name.startswith(THREADS):  # those start what they have to
                started.append([str(arg) for arg in args])
            super().__init__(args, *more, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.chdir(project.folder)
    return Pytest(started, capsys)


class Project:
    """A copy of what pytest reads of this repository, small enough to be collected at once."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        self.folder, self.environment = folder, environment
        self._started: list[subprocess.Popen[str]] = []
        self.owner = uuid.uuid4().hex
        self.report_json = folder / "reports" / "report.json"
        for name in ("pytest.ini", "conftest.py", "tests/multigpu"):
            source, target = ROOT / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        (folder / "tests/unit").mkdir()
        (folder / "tests/unit/test_unit.py").write_text("def test_unit():\n    pass\n")

    def multigpu(self, text: str) -> None:
        """The project's only multigpu tests."""
        shutil.rmtree(self.folder / "tests/multigpu")
        (self.folder / "tests/multigpu").mkdir()
        header = "import os, signal\nimport psutil, pytest\npytestmark = pytest.mark.multigpu\n\n"
        (self.folder / "tests/multigpu/test_here.py").write_text(header + text)

    def start(self, *arguments: str, folder: str = ".") -> subprocess.Popen[str]:
        """`pytest ARGUMENTS` in a process of its own, standard output and error together."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *PLUGINS, *arguments],
            cwd=self.folder / folder,
            env={**self.environment, **ALONE, OWNER: self.owner},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=heed_sigint,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str, folder: str = ".") -> tuple[int, str]:
        """Exit code and output of `pytest ARGUMENTS`."""
        process = self.start(*arguments, folder=folder)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def collect(self, lines: Sequence[Sequence[str]]) -> list[tuple[int, list[str]]]:
        """Exit code and selected node ids of each of these command lines, all in one process: starting it is most."""
        process = subprocess.run(
            [sys.executable, "-c", COLLECT, json.dumps([[*PLUGINS, *line, "--collect-only", "-q"] for line in lines])],
            cwd=self.folder,
            env={**self.environment, **ALONE},
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        )
        outputs = process.stdout.split(END)[:-1]
        return [(int(output.split()[-1]), re.findall(r"^tests/.*::.*$", output, re.MULTILINE)) for output in outputs]

    def processes(self) -> list[psutil.Process]:
        """The living processes that come from this project's runs."""
        return [process for process in psutil.process_iter() if environment_of(process).get(OWNER) == self.owner]

    def servers(self) -> dict[str, list[psutil.Process]]:
        """Its living servers' processes, by the server's marker."""
        found: dict[str, list[psutil.Process]] = {}
        for process in self.processes():
            if marker := environment_of(process).get(MARKER):
                found.setdefault(marker, []).append(process)
        return found

    def end(self) -> None:
        """End what is left."""
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)
        for each in self._started:
            each.communicate()


def environment_of(process: psutil.Process) -> dict[str, str]:
    """A process's environment; empty for one that is gone or somebody else's."""
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "project")
    yield made
    made.end()


@pytest.fixture
def this_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    """Makes a machine this one, as if NVML had told so; and no lmdeploy is asked for flags it may not have."""

    def become(machine: Machine) -> None:
        monkeypatch.setattr(fixtures.machine.here, "read_machine", lambda: machine)

    return become


@pytest.fixture
def t4x4() -> Machine:
    """The seed's machine."""
    return load_node("t4x4")
