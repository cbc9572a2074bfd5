"""Whole rehearsals as their users run them: real pytest processes, some at a time, each ended with all it started."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import conftest
from tests.conftest import Ahead
from tests.rehearsal.leftovers import RUN, ports_left, processes_left

REPO = Path(__file__).parents[2]
DEADLINE = 120.0
#: For all of them; a hang's own rehearsal has a shorter deadline. A healthy server never meets one, on a busy machine.
DEFAULTS = ("--max-restarts=1", "--start-timeout=20", "--request-timeout=20", "--stop-timeout=20")
#: For rehearsals that look at a server alone: the sweep of the fabric under one that failed imports torch; without its
#: plugin there is no fabric. Rehearsals without this make it after a hang (where it is looked at), after a death, and
#: beside a server that lives.
NO_SWEEP = ("-p", "no:fixtures.session.fabric_plugin")
#: The suite's plugins loaded the other way round: nothing that a reader sees may depend on their order.
REVERSED = tuple(word for name in reversed(conftest.pytest_plugins) for word in ("-p", name))
#: What a rehearsal runs that names no file: the tests of servers.
SERVERS = [f"tests/multigpu/test_{name}.py" for name in ("requests", "stop", "the_founding_case")]


@dataclass(frozen=True)
class Rehearsal:
    """One `pytest -m multigpu --rehearse …` that has ended."""

    status: int
    output: str
    report: dict[str, Any]
    left: list[str]  # processes, ports and workers' folders that it left behind, in words

    def outcomes(self, configuration: str) -> dict[str, str]:
        """What became of each test of a configuration: passed, failed (in the test), set-up or tear-down (an error)."""
        return {
            test["check"]: test["outcome"] if test["phase"] in (None, "test") else test["phase"]
            for test in self.report["tests"]
            if test["configuration"] == configuration
        }

    def configuration(self, configuration: str) -> dict[str, Any]:
        """A configuration's entry in report.json."""
        found: dict[str, Any] = next(entry for entry in self.report["configurations"] if entry["id"] == configuration)
        return found

    def record(self, part: str, **place: Any) -> dict[str, Any]:
        """The one entry of report.json's `pairs`, `groups` or `peer_access` at this place."""
        [found] = [entry for entry in self.report[part] if all(entry[key] == place[key] for key in place)]
        return dict(found)

    def not_passed(self, part: str, *keys: str) -> dict[tuple[Any, ...], str]:
        """The status of each of a part's entries that didn't pass, by these of its fields."""
        return {
            tuple(entry[key] for key in keys): entry["status"]
            for entry in self.report[part]
            if entry["status"] != "pass"
        }

    def reason(self, check: str, configuration: str) -> str:
        """A test's one line in report.json."""
        return next(
            str(test["reason"])
            for test in self.report["tests"]
            if (test["check"], test["configuration"]) == (check, configuration)
        )

    def told(self, check: str, configuration: str) -> str:
        """What the terminal says of one failed test, from its head to the next one's; of the fabric's by its id."""
        parts = re.split(r"^_+ (?:ERROR at \w+ of )?(\S+) _+$|^=+ .* =+$", self.output, flags=re.MULTILINE)
        return next(
            after
            for name, after in zip(parts[1::2], parts[2::2], strict=True)
            if name == f"test_{check}[{configuration}]"
        )

    def shown_to(self, configuration: str, line: str) -> list[int]:
        """Indices of the GPUs that a command line shows this configuration's server: those of its entry, in order."""
        indices = {gpu["uuid"]: gpu["index"] for gpu in self.report["machine"]["gpus"]}
        [uuids] = re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", line)
        shown = [int(indices[uuid]) for uuid in uuids.split(",")]
        assert self.configuration(configuration)["gpus"] == shown
        return shown

    @staticmethod
    def by_hand(told: str) -> str:
        """The command line, under "repeat it by hand", of what is told of one test."""
        return re.split(r"^-+ repeat it by hand -+$", told, flags=re.MULTILINE)[1].strip().splitlines()[-1]


class Rehearsals:
    """Runs them; each set of arguments once."""

    def __init__(self, ahead: Ahead, folder: Path) -> None:
        self._ahead, self._folder = ahead, folder
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, arguments: tuple[str, ...]) -> Future[Rehearsal]:
        return self._ahead.begin(arguments, partial(self._run, arguments))

    def close(self) -> None:
        """Ends what still runs: a rehearsal's servers end with its pytest."""
        for process in self._processes:
            process.kill()

    def _run(self, arguments: tuple[str, ...]) -> Rehearsal:
        identity = uuid.uuid4().hex
        folder = self._folder / identity
        command = [sys.executable, "-m", "pytest", "-m", "multigpu", "--rehearse", f"--report={folder}"]
        command += [f"--basetemp={folder}-tmp", "-p", "no:cacheprovider", *DEFAULTS, *arguments]
        process = subprocess.Popen(
            [*command, *([] if any(a.startswith("tests/") for a in arguments) else SERVERS)],
            cwd=REPO,
            env={**self._ahead.environment, RUN: identity, "COLUMNS": "120", "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._processes.append(process)
        output, _ = process.communicate(timeout=DEADLINE)
        left = processes_left(identity) + ports_left(identity, output)
        left += [f"folder {path}" for path in Path(f"{folder}-tmp").rglob("fabric-*")]
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return Rehearsal(process.returncode, output, report, left)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rehearsal(*arguments): the rehearsal that the test looks at")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who looks at a rehearsal comes last: it has ended by then."""
    items.sort(key=lambda item: item.get_closest_marker("rehearsal") is not None)


@pytest.fixture(scope="session", autouse=True)
def rehearsals(
    request: pytest.FixtureRequest, ahead: Ahead, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rehearsals]:
    """All of this session's rehearsals, started at its first test; by xdist's workers when one asks."""
    runs = Rehearsals(ahead, tmp_path_factory.mktemp("rehearsals"))
    if not hasattr(request.config, "workerinput"):
        for item in request.session.items:
            if marker := item.get_closest_marker("rehearsal"):
                runs.start(marker.args)
    yield runs
    runs.close()


@pytest.fixture
def rehearsal(request: pytest.FixtureRequest, rehearsals: Rehearsals) -> Rehearsal:
    """The rehearsal named by the test's marker, ended; whatever its fault was, it left nothing behind."""
    marker = request.node.get_closest_marker("rehearsal")
    ended = rehearsals.start(marker.args).result()
    assert not ended.left, "\n".join(ended.left)
    return ended
