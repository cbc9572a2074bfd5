"""Which of xdist's workers runs what, and in which order; nothing is started by these tests themselves."""

from __future__ import annotations

import re

from tests.conftest import beside
from tests.unit.session.conftest import Project

FILES = {
    "test_groups.py": 3,
    "test_pairs.py": 3,
    "test_peer_access.py": 2,
    "test_preflight.py": 2,
    "test_alone.py": 1,
}
HEADER = """
import os, pytest
pytestmark = pytest.mark.multigpu

@pytest.fixture(autouse=True)
def order(request):
    with open("order", "a") as file:
        file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {request.node.nodeid}\\n")
"""
#: More tests of a configuration than the fabric has, so that xdist itself would hand those out first.
OF_CONFIGURATIONS = """
@pytest.mark.parametrize("number", range(9))
def test_served(configuration, number):
    pass
"""


@beside(Project)
def test_the_fabric_goes_to_one_worker_and_first(project):
    folder = project.folder / "tests/multigpu"
    for path in folder.glob("test_*.py"):
        path.unlink()
    for name, count in FILES.items():
        (folder / name).write_text(
            f"{HEADER}\n@pytest.mark.parametrize('number', range({count}))\ndef test_it(number):\n    pass\n"
        )
    (folder / "test_served.py").write_text(HEADER + OF_CONFIGURATIONS)
    code, output = project.run("--rehearse", "--tp=1", "--precision=fp16", "-m", "multigpu", "-n", "2")
    assert code == 0, output
    assert "29 passed" in output

    groups: dict[str, list[str]] = {}  # group → the worker of each of its tests
    orders: dict[str, list[str]] = {}  # worker → the groups of its tests
    for worker, module, parameters in re.findall(
        r"^(gw\d) tests/multigpu/(\w+)\.py::\w+\[(.*)\]$", (project.folder / "order").read_text(), re.MULTILINE
    ):
        fabric = {"test_groups": "fabric", "test_pairs": "fabric", "test_peer_access": "fabric"}
        group = parameters.rpartition("-")[0] if module == "test_served" else fabric.get(module, module)
        groups.setdefault(group, []).append(worker)
        orders.setdefault(worker, []).append(group)
    assert {group: len(workers) for group, workers in groups.items()} == {
        "test_preflight": 2,
        "fabric": 8,
        "turbomind-tp1-fp16": 9,
        "pytorch-tp1-fp16": 9,
        "test_alone": 1,
    }
    assert {group: len(set(workers)) for group, workers in groups.items()} == dict.fromkeys(groups, 1)
    assert {order[0] for order in orders.values()} == {"test_preflight", "fabric"}
