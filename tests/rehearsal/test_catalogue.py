"""No fault without a rehearsal that shows how it is told."""

import re
from pathlib import Path

import pytest

from fixtures.rehearsal.faults import fault_names


@pytest.mark.parametrize("fault", fault_names())
def test_fault_is_rehearsed(fault):
    """Some test here runs a whole rehearsal with it."""
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert re.search(rf'rehearsal\(\s*"--fault={re.escape(fault)}"', tests)
