"""numpy with one thread, and what begins with the session.

The suite's own tests have other processes beside them, and threads of OpenBLAS wait for each other in loops, which
takes long where others have the cores. It reads the variable when numpy is imported; what is started later never gets
it.
"""

import pytest

from tests.conftest import Ahead

with pytest.MonkeyPatch.context() as environment:
    environment.setenv("OPENBLAS_NUM_THREADS", "1")
    import numpy  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def begun_with_the_session(ahead: Ahead) -> None:
    """Of the suite's own tests; those that its users run begin nothing."""
