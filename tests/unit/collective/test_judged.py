"""From a trial to a test's outcome: only a pass passes, and what makes a trial's meaning doubtful is kept out."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.collective.cases import GpuPair
from fixtures.collective.exchange import Conductor
from fixtures.collective.outcome import Outcome
from fixtures.collective.seats import seats_of
from fixtures.rehearsal.nodes import load_node
from fixtures.report.contract import note_of
from fixtures.report.fabric import STATUSES
from fixtures.session.fabric_plugin import FabricFailure, FabricOfTest
from fixtures.verdict.given import given_to

SEATS = seats_of(load_node("t4x4"))
PAIR = GpuPair(SEATS[0], SEATS[2], "NODE")


def judged(status, libnccl=()):
    """A test of a pair with this outcome: its item, the outcome, and what the test calls."""
    config = SimpleNamespace(invocation_params=SimpleNamespace(args=["-q", "--pair-timeout=5"]))
    item = SimpleNamespace(stash=pytest.Stash(), user_properties=[], config=config, nodeid="test_x.py::test_x")
    outcome = Outcome(status, f"{status} it was", evidence=["a line", "another"])
    of_test = FabricOfTest(item, SimpleNamespace(libnccl=libnccl, pair=lambda a, b, arm: outcome))
    return item, outcome, lambda: of_test.all_reduce(PAIR, "p2p_on")


def test_what_passed_passes():
    _, outcome, judge = judged("pass")
    assert judge() is outcome


def test_an_arm_that_cant_be_made_is_a_skip():
    _, _, judge = judged("waived")
    with pytest.raises(pytest.skip.Exception, match=r"^waived it was$"):
        judge()


@pytest.mark.parametrize("status", sorted({*STATUSES} - {"pass", "waived"}))
def test_everything_else_fails(status):
    """In three lines: what and where, how, and where to look first; its report is given evidence and a command."""
    item, _, judge = judged(status)
    with pytest.raises((FabricFailure, pytest.skip.Exception)) as failure:  # a skip would end this test as one, too
        judge()
    assert failure.type is FabricFailure
    first, second, third = str(failure.value).splitlines()
    assert (first, second.strip()) == (f"{status}: {PAIR.words}, p2p_on", f"{status} it was")
    assert third.strip().startswith("look at: ")
    given = given_to(item)
    assert given.evidence == ["a line", "another"]
    assert given.by_hand() == "pytest --pair-timeout=5 test_x.py::test_x"


@pytest.mark.parametrize("status", ["pass", "wrong"])
def test_two_copies_of_libnccl_are_noted_whatever_the_outcome(status):
    item, _, judge = judged(status, ["/a/libnccl.so.2", "/b/libnccl.so.2"])
    if status == "pass":
        judge()
    else:
        with pytest.raises(FabricFailure):
            judge()
        assert "2 copies are mapped in one process" in given_to(item).evidence[-1]
    assert [record["level"] for record in note_of(item.user_properties).preflight] == ["failure"]


class OverP2P(Conductor):
    """Trials whose log says P2P, whatever the arm."""

    async def run(self, communicators=1):
        trial = await super().run(communicators)
        trial.logs = [log.replace("via SHM/direct/direct", "via P2P/CUMEM") for log in trial.logs]
        return trial


def test_an_off_arm_that_used_p2p_is_no_pass(rig, monkeypatch):
    """Its data was right, but it is no control."""
    assert rig.pair(0, 2, arm="p2p_off").status == "pass"
    monkeypatch.setattr(rig.fabric, "conductor", OverP2P)
    outcome = rig.pair(0, 2, arm="p2p_off")
    assert (outcome.status, outcome.transport, outcome.used_p2p) == ("inconclusive", "P2P/CUMEM", True)
    assert outcome.words.startswith("NCCL used P2P/CUMEM in the arm without P2P, so it is no control; the data was ex")


def test_after_an_error_the_next_trial_gets_fresh_workers(rig, watched, monkeypatch):
    """What a failed collective leaves behind in a process must not reach the next pair."""
    monkeypatch.setattr(watched, "grace", 0.1)
    statuses = [rig.pair(0, 2).status]
    rig.break_at(rank=1, call=1, error="a wrong argument")
    statuses += [rig.pair(0, 2).status]
    rig.break_at()
    statuses += [rig.pair(0, 2).status]
    assert statuses == ["pass", "crashed", "pass"]
    before, failed, after = [{member.worker.pid for member in one.trial.members} for one in watched.all_of_them]
    assert before == failed
    assert not failed & after


def test_outer_p2p_variables_end_at_the_nursery(make_rig):
    """It has the environment that the suite was started in; its workers have their arm's."""
    rig = make_rig(NCCL_P2P_LEVEL="SYS")
    assert rig.pair(0, 1).transport == "SHM"
    assert b"NCCL_P2P_LEVEL=SYS" in Path(f"/proc/{rig.process.pids[0]}/environ").read_bytes().split(b"\0")
