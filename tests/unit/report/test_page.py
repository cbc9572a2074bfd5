"""The page of configurations: a full matrix within the terminal's width, and words that can't be mistaken."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fixtures.report.contents import page_of
from fixtures.report.fabric import PARTS
from fixtures.report.markdown import markdown
from fixtures.report.page import Entry
from fixtures.report.terminal import write_page

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


def printed(report: dict[str, Any], width: int = 80) -> list[str]:
    """The section's lines."""
    terminal = Terminal()
    write_page(terminal, page_of(report), Path("reports"), width)  # type: ignore[arg-type]
    return terminal.out.getvalue().splitlines()


def matrix(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The checks, and of each configuration what the matrix says of them."""
    [table] = page_of(report).sections[0].tables
    return list(table.columns), [[place.mark.word for place in row if isinstance(place, Entry)] for row in table.rows]


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
    assert matrix(report) == (
        ["x", "y", "z"],
        [["ok", "FAIL", "ERR"], ["skip", "?", "-"], ["-", "-", "skip"]],
    )
    assert "  both: ERR (failed before or after the check)" in printed(report)


def test_cell_of_several_tests_says_the_worst():
    tests = [
        a_test("a", "x"),
        a_test("a", "x", "skipped", "test"),
        a_test("a", "y"),
        a_test("a", "y", "failed", "test"),
    ]
    assert matrix(a_report(tests, ["a"]))[1] == [["ok", "FAIL"]]


def test_headline_says_what_is_not_proved():
    report = a_report([], rehearsed=True, oversubscribed=True, run={"fault": "lost-share"}, lmdeploy=None)
    assert page_of(report).headline == [
        "machine t4x4: 4 x Tesla T4",
        "lmdeploy: none found",
        "REHEARSED: the GPUs are emulated, nothing here is about real ones",
        "fault injected: lost-share",
        "OVERSUBSCRIBED: the path between GPUs is not tested; no verdict on the fabric",
    ]


def test_page_is_plain_data():
    """Any other writer gets all that there is to say."""
    page = page_of(a_report([a_test(IDS[0], "x", "failed", "test"), a_test(None, "y")]))
    assert json.dumps(asdict(page))
    assert page.failed == [(f"t.py::test_x[{IDS[0]}]", "why")]


def test_markdown_lets_no_words_act_as_markup():
    report = a_report([a_test(IDS[0], "x", "failed", "test") | {"reason": "<b>|@someone `x` [a](b)"}])
    page = markdown(page_of(report))
    assert "\\<b\\>\\|@\u200bsomeone \\`x\\` \\[a\\](b)" in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(IDS)
    assert {line.count("|") for line in table} == {5}
