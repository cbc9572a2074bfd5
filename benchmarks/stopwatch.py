"""pytest plugin of the benchmarks: notes moments (wall clock, s) of a run, and repeats its tests."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

MOMENTS, REPEATS = "BENCHMARK_MOMENTS", "BENCHMARK_REPEATS"


def note(moment: str, when: float | None = None) -> None:
    """Append one moment to the file that BENCHMARK_MOMENTS names."""
    line = json.dumps({"moment": moment, "time": time.time() if when is None else when})
    with open(os.environ[MOMENTS], "a", encoding="utf-8") as file:
        file.write(line + "\n")


def moments(file: Path, moment: str) -> list[float]:
    """The times of all moments of one name, in order."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted(line["time"] for line in lines if line["moment"] == moment)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "repeat" in metafunc.fixturenames:
        metafunc.parametrize("repeat", range(int(os.environ[REPEATS])))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Here the outcome of a test is known to everybody: pytest has made its report."""
    if report.when == "call" and MOMENTS in os.environ:
        note(report.outcome)
