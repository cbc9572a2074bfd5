"""numpy with one thread: the suite's own tests have other processes beside them.

Threads of OpenBLAS wait for each other in loops, which takes long where others have the cores. It reads the variable
when numpy is imported; nothing that is started later gets it.
"""

import pytest

with pytest.MonkeyPatch.context() as environment:
    environment.setenv("OPENBLAS_NUM_THREADS", "1")
    import numpy  # noqa: F401
