"""The machine's set-up, before anything is started on it; what only informs passes and is told."""

import pytest

from fixtures.preflight.rules import CHECKS

pytestmark = pytest.mark.multigpu


@pytest.mark.parametrize("check", CHECKS)
def test_preflight(finding):
    """Nothing is found that would fail a server or a collective whatever the engine does."""
    if finding.level == "failure":
        pytest.fail(finding.text, pytrace=False)
