"""The small table that a benchmark prints."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from statistics import median


def table(title: str, rows: Mapping[str, Sequence[float]], goal: float) -> str:
    """Seconds by row, the first row being this suite: least, median, most; how it keeps to its goal; the ratio."""
    lines = [spread(title, rows)]
    ours, other = rows
    first = rows[ours]
    kept = sum(value <= goal for value in first)
    lines.append(f"{ours}: at most {goal:g} s in {kept} of {len(first)}")
    lines.append(ratio(rows, other, ours))
    return "\n".join(lines)


def spread(title: str, rows: Mapping[str, Sequence[float]]) -> str:
    """Seconds by row: how many, least, median, most."""
    width = max(map(len, rows))
    lines = [f"{title} ({os.cpu_count()} cores, Python {platform.python_version()})"]
    lines.append(f"{'seconds':<{width}}      n     min  median     max")
    for name, values in rows.items():
        numbers = "".join(f"{value:8.3f}" for value in (min(values), median(values), max(values)))
        lines.append(f"{name:<{width}}  {len(values):5}{numbers}")
    return "\n".join(lines)


def ratio(rows: Mapping[str, Sequence[float]], slow: str, fast: str) -> str:
    """How many times longer one row takes than another."""
    return f"ratio of the medians, {slow} to {fast}: {median(rows[slow]) / median(rows[fast]):.1f}"
