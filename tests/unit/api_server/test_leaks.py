"""Starting and stopping again and again leaves nothing behind in pytest's own process."""

from __future__ import annotations

import os
import subprocess
import sys

from fixtures.processes.local_tree import ROOT


def test_cycles_leave_no_file_thread_or_process() -> None:
    command = [sys.executable, "-m", "tests.unit.api_server.cycles", os.environ.get("CYCLES", "3")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
