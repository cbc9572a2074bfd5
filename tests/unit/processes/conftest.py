"""Real trees of processes: short Python programs, ended after each test, with a check that none is left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from fixtures.processes.ending import Exit
from fixtures.processes.local_tree import LocalTree
from fixtures.processes.tree import Member

ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
#: Seconds after which a test's own waiting has failed; far more than a busy machine needs.
LONG = 20.0


def member(*words: str) -> Member:
    """A program of one word is Python code; more words are an argv."""
    return Member(words if len(words) > 1 else (sys.executable, "-S", "-c", *words), ENVIRONMENT)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for what no event tells of."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, f"waited {LONG:g} s in vain: {what}"
        time.sleep(0.002)


def line_with(process: LocalTree, words: str) -> str:
    """Wait for a line of the log that has these words."""
    deadline = time.monotonic() + LONG
    while True:
        found = [line.text for line in process.log.lines() if words in line.text]
        if found:
            return found[0]
        assert time.monotonic() < deadline, f"no line with {words!r} in:\n{process.log.text(20)}"
        process.wait_for_change(0.05)


class StartProcess(Protocol):
    def __call__(self, *members: Member, on_exit: Callable[[Exit], None] = ..., log: str | None = ...) -> LocalTree: ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartProcess]:
    """Call it with members to get their LocalTree; `log`: where its log file really is."""
    started: list[LocalTree] = []

    def start_process(
        *members: Member, on_exit: Callable[[Exit], None] = lambda exit_: None, log: str | None = None
    ) -> LocalTree:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        if log:
            Path(folder, "server.log").symlink_to(log)
        started.append(LocalTree(members, folder / "server.log", folder, on_exit))
        return started[-1]

    yield start_process
    for process in started:
        process.end()
    assert [process.living() for process in started] == [[]] * len(started)
