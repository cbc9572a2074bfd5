"""Which tests a command line selects: multigpu tests only when it names them."""

from __future__ import annotations

import itertools

import pytest

from fixtures.preflight.rules import CHECKS
from tests.conftest import Ahead, beside
from tests.unit.session.conftest import ONE, ROOT, Project

FOUNDING = "tests/multigpu/test_requests.py::test_founding_request[turbomind-tp1-fp16]"
UNIT = "tests/unit/test_unit.py::test_unit"
#: How many tests of a configuration there are.
ALL = sum(
    (ROOT / f"tests/multigpu/test_{name}.py").read_text().count("\ndef test_")
    for name in ("requests", "stop", "the_founding_case")
)
#: Command line → how many unit tests and how many of configurations it selects of a project that has one and these.
LINES = {
    (): (1, 0),
    ("tests",): (1, 0),
    ("tests/unit",): (1, 0),
    ("-k", "founding or unit"): (1, 0),
    ("-m", "not multigpu"): (1, 0),
    ("-m", "multigpu"): (0, ALL),
    ("-m", "multigpu", "-k", "founding_request"): (0, 1),
    ("-m", "multigpu", "tests/unit"): (0, 0),
    ("tests/multigpu",): (0, ALL),
    ("tests/multigpu/test_stop.py",): (0, 1),
    ("./tests/multigpu/../multigpu/test_stop.py",): (0, 1),
    (FOUNDING,): (0, 1),
    (UNIT, FOUNDING): (1, 1),
}


ORDERED = ("--rehearse", "--precision=fp16", "--backend=turbomind", "-m", "multigpu")


def of_configurations(nodeids: list[str]) -> list[str]:
    """The tests of a server's configuration, also of one that isn't in the matrix; others are about the machine."""
    return [nodeid for nodeid in nodeids if "[turbomind-" in nodeid or nodeid.endswith("[not_in_the_matrix]")]


Collected = dict[tuple[str, ...], tuple[int, list[str]]]


def collect(project: Project) -> Collected:
    """Exit code and selected node ids of each command line of this module."""
    lines = [*((*ONE, *line) for line in LINES), ORDERED]
    return dict(zip(lines, project.collect(lines), strict=True))


looks_at_them = pytest.mark.beside.with_args(collect, Project, {})


@pytest.fixture
def collected(ahead: Ahead) -> Collected:
    return ahead.body(collect, Project).result()


@looks_at_them
def test_only_what_names_them_selects_multigpu_tests(collected):
    found = {}
    for line in LINES:
        _, nodeids = collected[(*ONE, *line)]
        found[line] = (nodeids.count(UNIT), len(of_configurations(nodeids)))
        assert any(nodeid.startswith("tests/multigpu/") for nodeid in nodeids) == bool(LINES[line][1])
    assert found == LINES
    # Nothing selected is pytest's exit code 5, not success.
    assert {line: collected[(*ONE, *line)][0] for line in LINES} == {
        line: 0 if any(LINES[line]) else 5 for line in LINES
    }


@looks_at_them
def test_configurations_run_one_after_the_other(collected):
    """All tests of a configuration in a row, in the matrix's order, though the files stand file by file."""
    _, nodeids = collected[ORDERED]
    order = [nodeid.partition("[")[2].rstrip("]") for nodeid in of_configurations(nodeids)]
    assert list(dict.fromkeys(order)) == [
        "turbomind-tp1-fp16",
        "turbomind-tp2-fp16-nccl-p2p_on",
        "turbomind-tp2-fp16-nccl-p2p_off",
        "turbomind-tp2-fp16-cuda_ipc",
    ]
    assert sum(one != other for one, other in itertools.pairwise(order)) == 3


@looks_at_them
def test_the_host_is_looked_at_first(collected):
    """Before any server, whatever the file is called."""
    _, nodeids = collected[ORDERED]
    host = [nodeid.startswith("tests/multigpu/test_preflight.py") for nodeid in nodeids]
    assert host == sorted(host, reverse=True)
    assert sum(host) == len(CHECKS)


@beside(Project)
def test_a_test_without_configuration(project):
    """The founding case needs tp 2: narrowed away, it is a skip in words."""
    code, output = project.run(*ONE, "tests/multigpu/test_the_founding_case.py")
    assert code == 0, output
    assert "1 skipped" in output
    assert "not in this run's matrix" in output


@beside(Project)
def test_plain_run_leaves_no_report(project):
    """The suite's own tests, without or with the marker's name: no machine is asked, nothing is written."""
    for line in ((), ("-m", "not (multigpu)")):
        code, output = project.run(*line)
        assert code == 0, output
        assert "1 passed" in output
        assert "multigpu: " not in output
        assert not project.report_json.parent.exists()


@beside(Project)
def test_another_folder_as_working_directory(project):
    """Paths count from where the person is."""
    _, output = project.run("--collect-only", "-q", *ONE, "multigpu", folder="tests")
    assert len(of_configurations(output.splitlines())) == ALL
