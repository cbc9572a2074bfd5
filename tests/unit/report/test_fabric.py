"""Records of the fabric on their way from a test to report.json: noted, carried, merged."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.machine.here import Here
from fixtures.machine.machine import Machine
from fixtures.report.contract import PROPERTY, note, note_of
from fixtures.report.fabric import BAD, PARTS, STATUSES, merged
from fixtures.report.phases import SKIPPED
from fixtures.report.run_record import RunRecord
from fixtures.run import Run, ServerSettings
from tests.conftest import beside
from tests.unit.report.conftest import Project, check_schema
from tests.unit.report.fabric_records import a_finding, a_group, a_pair, a_peer

#: Hands records over; `again` runs each test named so twice, as plugins that run failed tests again do.
AGAIN = """
import pytest
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    if "again" not in item.name:
        return None
    runtestprotocol(item, nextitem=nextitem, log=False)
    item._initrequest()
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""
NOTES = """
from fixtures.report.contract import note
from tests.unit.report.fabric_records import a_finding, a_group, a_pair, a_peer

def test_again(request):
    note(request.node, pairs=[a_pair(), a_pair(1, 2)], preflight=[a_finding()])
    note(request.node, pairs=[a_pair(2, 3)])

def test_configuration_whose_gpus_are_swept(request):
    note(request.node, pairs=[a_pair(status="wrong", words="zeros", configuration="its-own")], peer_access=[a_peer()])

@pytest.fixture
def dies(request):
    note(request.node, groups=[a_group([0, 1])])
    yield
    os.kill(os.getpid(), signal.SIGKILL)

def test_worker_dies_in_tear_down(dies):
    pass
"""


@beside(Project)
def test_records_reach_the_report(project):
    """Across xdist, once though a test runs twice, and though a worker dies after it has told them."""
    (project.folder / "again.py").write_text(AGAIN)
    project.suite(NOTES)
    assert project.run("-n", "2", "-p", "again", "--dist", "load")[0] == 1
    report = project.report()
    found = [(pair["a"], pair["b"], pair["status"], pair.get("configuration")) for pair in report["pairs"]]
    assert sorted(found, key=str) == [
        (0, 1, "pass", None),
        (0, 1, "wrong", "its-own"),
        (1, 2, "pass", None),
        (2, 3, "pass", None),
    ]
    assert {pair["trials"] for pair in report["pairs"]} == {1}
    assert (report["groups"], report["peer_access"]) == ([a_group([0, 1])], [a_peer()])
    assert report["preflight"] == [a_finding()]


def test_notes_add_records_and_leave_earlier_copies_alone():
    item = SimpleNamespace(user_properties=[])
    note(item, pairs=[a_pair()], check="c")
    before = list(item.user_properties)
    note(item, pairs=[a_pair(1, 2)], groups=[a_group([0, 1])])
    assert note_of(item.user_properties).pairs == [a_pair(), a_pair(1, 2)]
    assert note_of(item.user_properties).groups == [a_group([0, 1])]
    assert note_of(before).pairs == [a_pair()]
    assert [name for name, _ in item.user_properties] == [PROPERTY]


@pytest.mark.parametrize("change", [{"colour": "red"}, {"status": None}])
def test_a_record_that_readers_do_not_know_is_refused_where_it_is_noted(change):
    record = {name: value for name, value in {**a_pair(), **change}.items() if value is not None}
    item = SimpleNamespace(user_properties=[])
    with pytest.raises(ValueError, match=f"a record of pairs lacks or doesn't know {next(iter(change))}:"):
        note(item, pairs=[record])
    assert item.user_properties == []


def test_worst_status_in_any_order():
    """A pass never hides a failure, and what can't be made here hides nothing."""
    assert set(BAD) == set(STATUSES) - {"pass", "waived"}
    for worse, better in itertools.pairwise(STATUSES):
        trials = {"wrong": 2}.get(worse, 1)
        records = [a_pair(status=better, words="b"), a_pair(status=worse, words="w", trials=trials)]
        words = f"w ({trials} of {trials + 1} trials)" if better != "waived" else "w"
        for order in (records, records[::-1]):
            [entry] = merged("pairs", order)
            assert (entry["status"], entry["words"], entry["trials"]) == (worse, words, trials + 1)


def test_same_end_again_says_it_once():
    [entry] = merged("pairs", [a_pair(status="hung", words="first"), a_pair(status="hung", words="second")])
    assert (entry["words"], entry["trials"]) == ("first", 2)


def test_what_was_measured_is_put_together():
    records = [
        a_pair(transport="SHM/direct", busbw=2.0, sizes=[4]),
        a_pair(transport="P2P/IPC", busbw=12.0, sizes=[64, 4]),
        a_pair(transport="SHM/direct", busbw=1.0, sizes=[4]),
        a_pair(status="hung", transport=None, busbw=None, sizes=[]),
    ]
    [entry] = merged("pairs", records)
    assert (entry["transport"], entry["busbw_gb_per_s"], entry["sizes"]) == ("SHM/direct + P2P/IPC", 2.0, [4, 64])


def test_what_was_tested_tells_records_apart():
    different = {
        "pairs": [
            a_pair(),
            a_pair(0, 2),
            a_pair(arm="p2p_off"),
            a_pair(0, 0, ranks=[0, 1]),
            a_pair(0, 0, ranks=[0, 2]),
            a_pair(configuration="turbomind-tp2-fp16-nccl-p2p_on"),
            a_pair(configuration="turbomind-tp2-awq-nccl-p2p_on"),
        ],
        "groups": [
            a_group([0, 1]),
            a_group([0, 0]),
            a_group([0, 1], "broadcast"),
            a_group([0, 1], model="thread"),
            a_group([0, 1], arm="p2p_off"),
        ],
        "peer_access": [a_peer(), a_peer(1, 0), a_peer(method="cuda_ipc")],
        "preflight": [a_finding(), a_finding("acs")],
    }
    assert different.keys() == PARTS.keys()
    for part, records in different.items():
        assert merged(part, records) == records
        twice = merged(part, [*records, *random.Random(0).sample(records, len(records))])
        assert len(twice) == len(records)
        assert all(entry.get("trials", 2) == 2 for entry in twice)


def test_findings_of_one_check():
    records = [
        a_finding(level="info", words="small"),
        a_finding(level="warning", words="full", remedy="rm"),
        a_finding(level="warning", words="read-only", remedy="rm"),
    ]
    assert merged("preflight", records) == [a_finding(level="warning", words="full; read-only", remedy="rm")]


@pytest.mark.parametrize(
    "records",
    [
        {"pairs": [a_pair(0, 0, link="X", ranks=[0, 1])]},
        {"groups": [a_group([0, 0, 0])]},
        {"peer_access": [a_peer(0, 0, ranks=[0, 1])]},
    ],
)
def test_ranks_on_one_gpu_make_the_run_oversubscribed(records):
    """Also where no configuration of the matrix shares one."""
    record = RunRecord(Run(Here(), Machine("h", (), (), ()), (), None, ServerSettings(), Path("reports")))
    assert record.as_dict()["oversubscribed"] is False
    item = SimpleNamespace(user_properties=[])
    note(item, **records)
    record.add(
        SimpleNamespace(
            nodeid="tests/multigpu/test_pairs.py::test_all_reduce[x]",
            keywords={"multigpu": 1},
            when="call",
            outcome=SKIPPED,
            longrepr=("t.py", 1, "Skipped: why"),
            duration=0.1,
            user_properties=item.user_properties,
        )
    )
    made = record.as_dict()
    check_schema(made)
    assert made["oversubscribed"] is True
