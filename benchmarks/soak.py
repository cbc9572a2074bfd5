"""Clean rehearsals in a row: no false alarm, nothing left behind. `python -m benchmarks.soak --runs 50`

Each is a whole `pytest -m multigpu --rehearse -q`. A line a run and a summary at the end; exit code 1 when any run
failed or left a process, a port or a file in /dev/shm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fixtures.run import ROOT
from tests.rehearsal.leftovers import RUN, ports_left, processes_left, shared_memory


@dataclass(frozen=True)
class Clean:
    """What one rehearsal showed."""

    seconds: float
    status: int
    failures: list[str]  # tests that didn't pass, and why
    left: list[str]

    @property
    def good(self) -> bool:
        """Whether it was clean."""
        return self.status == 0 and not self.failures and not self.left


def rehearse(folder: Path) -> Clean:
    """One rehearsal of the default matrix; `folder` is its own."""
    identity = uuid.uuid4().hex
    before = shared_memory()
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-m", "multigpu", "--rehearse", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, f"--report={folder}", f"--basetemp={folder / 'tmp'}"],
        cwd=ROOT,
        env={**os.environ, RUN: identity},
        capture_output=True,
        text=True,
    )
    seconds = time.monotonic() - started
    logs = "".join(path.read_text(errors="replace") for path in folder.glob("tmp/servers/*/server.log"))
    left = processes_left(identity) + ports_left(identity, logs)
    left += [f"/dev/shm/{name}" for name in sorted(shared_memory() - before)]
    try:
        tests = json.loads((folder / "report.json").read_text(encoding="utf-8"))["tests"]
    except OSError:
        return Clean(seconds, ended.returncode, [ended.stdout + ended.stderr], left)
    failures = [f"{test['nodeid']}: {test['reason']}" for test in tests if test["outcome"] != "passed"]
    return Clean(seconds, ended.returncode, failures, left)


def main() -> int:
    parser = argparse.ArgumentParser(description="clean rehearsals in a row")
    parser.add_argument("--runs", type=int, default=50)
    runs: list[Clean] = []
    wanted = parser.parse_args().runs
    for number in range(1, wanted + 1):
        with tempfile.TemporaryDirectory() as folder:
            run = rehearse(Path(folder))
        runs.append(run)
        told = "clean" if run.good else "\n  ".join([f"exit code {run.status}", *run.failures, *run.left])
        print(f"run {number:3} of {wanted}: {run.seconds:5.1f} s  {told}", flush=True)
    seconds = [run.seconds for run in runs]
    print(
        f"{sum(run.good for run in runs)} of {len(runs)} clean;"
        f" {sum(len(run.failures) for run in runs)} tests failed, {sum(len(run.left) for run in runs)} things left;"
        f" seconds a run: min {min(seconds):.1f}, median {median(seconds):.1f}, max {max(seconds):.1f}"
    )
    return 0 if all(run.good for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
