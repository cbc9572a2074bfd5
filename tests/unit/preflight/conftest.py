"""A run on a machine with four GPUs, as the preflight gets it."""

from __future__ import annotations

import pytest

from fixtures.machine.here import Here
from fixtures.rehearsal.nodes import load_node
from fixtures.run import Run, ServerSettings


@pytest.fixture
def this_run(tmp_path):
    machine = load_node("t4x4")
    return Run(Here(), machine, (), None, ServerSettings(), tmp_path)
