from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Where the models of these tests are kept, so that each is built once."""
    return tmp_path_factory.mktemp("models")
