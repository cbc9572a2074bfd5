"""A run on a machine with four GPUs, as the preflight gets it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.rehearsal.nodes import load_node
from fixtures.run import Run, ServerSettings


@pytest.fixture
def this_run(tmp_path):
    machine = replace(load_node("t4x4"), rehearsed=False)
    return Run(machine, (), None, ServerSettings(), tmp_path)
