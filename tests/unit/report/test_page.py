"""The table: a full matrix within the terminal's width, and words that can't be mistaken."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from fixtures.report.fabric import PARTS
from fixtures.report.grid import grid_of, headline
from fixtures.report.markdown import markdown
from fixtures.report.summary import write_summary

CHECKS = [f"check_with_quite_a_long_name_{number}" for number in range(9)]
IDS = [f"turbomind-tp{2**number}-fp16-nccl-p2p_off" for number in range(14)]


class Terminal:
    """Takes what a TerminalReporter would print."""

    def __init__(self) -> None:
        self.out = io.StringIO()

    def section(self, title: str) -> None:
        self.write_line(f"= {title} =")

    def write(self, text: str, **markup: bool) -> None:
        self.out.write(text)

    def write_line(self, text: str, **markup: bool) -> None:
        self.out.write(text + "\n")


def a_test(configuration: str | None, check: str, outcome: str = "passed", phase: str | None = None) -> dict[str, Any]:
    """One entry of report.json's tests."""
    reason = None if outcome == "passed" else "why"
    return {
        "nodeid": f"t.py::test_{check}[{configuration}]",
        "configuration": configuration,
        "check": check,
        "outcome": outcome,
        "phase": phase,
        "reason": reason,
    }


def a_report(tests: list[dict[str, Any]], ids: list[str] = IDS, **more: Any) -> dict[str, Any]:
    """As much of report.json as the summary reads."""
    entry = {"outcome": "passed", "reason": None, "ready_s": 12.34, "starts": 1}
    return {
        "machine": {"name": "t4x4", "gpus": [{"name": "Tesla T4"}] * 4, "driver": None, "cuda": None},
        "lmdeploy": {"version": "0.6.0"},
        "rehearsed": False,
        "oversubscribed": False,
        "run": {"fault": None},
        "configurations": [{"id": name, **entry} for name in ids],
        "tests": tests,
        **dict.fromkeys(PARTS, ()),
        **more,
    }


def printed(report: dict[str, Any], width: int) -> list[str]:
    """The section's lines."""
    terminal = Terminal()
    write_summary(terminal, report, Path("reports"), width)  # type: ignore[arg-type]
    return terminal.out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_full_matrix_fits(width):
    report = a_report([a_test(name, check, "failed", "test") for name in IDS for check in CHECKS])
    report["configurations"][0] |= {"outcome": "skipped", "reason": "needs GPUs " * 20}
    lines = printed(report, width)
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith("turbomind")]
    assert len(rows) == 14
    word = "F" if width == 80 else "FAIL"
    assert all(row.split()[1:-2] == [word] * 9 for row in rows)
    for number, check in enumerate(CHECKS, start=1):
        assert f"{number} {check}" in "\n".join(lines)


def test_checks_are_named_where_they_fit():
    lines = printed(a_report([a_test(IDS[0], "stops")]), 100)
    assert "configuration" in lines[4]
    assert lines[4].split() == ["configuration", "stops", "ready", "starts"]


def test_words_of_cells():
    tests = [
        a_test("a", "x"),
        a_test("a", "y", "failed", "test"),
        a_test("a", "z", "failed", "set-up"),
        a_test("b", "x", "skipped", "set-up"),
        a_test("b", "y", "skipped") | {"reason": "not run: interrupted"},
        a_test("c", "z", "skipped") | {"reason": "not run: interrupted"},
        a_test(None, "both", "failed", "tear-down"),
    ]
    report = a_report(tests, ["a", "b", "c"])
    report["configurations"][2] |= {"outcome": "skipped", "reason": "no GPU"}
    grid = grid_of(report)
    assert grid.checks == ("x", "y", "z")
    assert [row.cells for row in grid.rows] == [("ok", "FAIL", "ERR"), ("skip", "?", "-"), ("-", "-", "skip")]
    assert grid.loose == (("both", "ERR"),)


def test_cell_of_several_tests_says_the_worst():
    tests = [
        a_test("a", "x"),
        a_test("a", "x", "skipped", "test"),
        a_test("a", "y"),
        a_test("a", "y", "failed", "test"),
    ]
    assert grid_of(a_report(tests, ["a"])).rows[0].cells == ("ok", "FAIL")


def test_headline_says_what_is_not_proved():
    lines = headline(a_report([], rehearsed=True, oversubscribed=True, run={"fault": "lost-share"}, lmdeploy=None))
    assert lines == [
        "machine t4x4: 4 x Tesla T4",
        "lmdeploy: none found",
        "REHEARSED: the GPUs are emulated, nothing here is about real ones",
        "fault injected: lost-share",
        "OVERSUBSCRIBED: the path between GPUs is not tested; no verdict on the fabric",
    ]


def test_markdown_lets_no_words_act_as_markup():
    report = a_report([a_test(IDS[0], "x", "failed", "test") | {"reason": "<b>|@someone `x` [a](b)"}])
    page = markdown(report)
    assert "\\<b\\>\\|@\u200bsomeone \\`x\\` \\[a\\](b)" in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(IDS)
    assert {line.count("|") for line in table} == {5}
