"""The fabric: arms one after the other, threads as ranks, one pair at a time, groups and checks beside a sweep."""

import itertools
import re
from concurrent.futures import Future

import pytest

import fixtures.machine.leases
from fixtures.collective.outcome import Outcome
from fixtures.collective.seats import PROCESS_PER_GPU, THREAD_PER_GPU
from fixtures.collective.under_test.operations import OPERATIONS
from fixtures.processes.proctable import marked_pids
from tests.unit.collective.conftest import LONG, PATIENCE, step

#: All pairs of three GPUs and one more, so that two can be tested side by side. GPU3 has no peer access.
ALL = [*itertools.combinations((0, 1, 3), 2), (2, 3)]


def arms_at_work(watched):
    """Of the workers that lived when each trial began."""
    return [{name.rpartition("-")[2] for name in trial.living} for trial in watched.all_of_them]


def test_a_sweep_has_one_worker_a_seat_and_arm(rig, watched):
    """Four pairs, four workers; the next arm's come when the former's are gone."""
    for arm in ("p2p_on", "p2p_off", "p2p_forced"):
        rig.begin(*ALL, arm=arm)
        outcomes = [rig.outcome(a, b, arm) for a, b in ALL]
        peers = [rig.fabric.machine.peer[a][b] for a, b in ALL]
        waived = arm == "p2p_forced"
        assert [o.status for o in outcomes] == ["pass" if peer or not waived else "waived" for peer in peers]
        assert len(rig.workers()) == (4 if not waived else 2)
    assert arms_at_work(watched) == [{"p2p_on"}] * 4 + [{"p2p_off"}] * 4 + [{"p2p_forced"}] * sum(peers)
    # the nursery and the last arm's workers
    assert len(marked_pids(rig.process.marker)) == 1 + len(rig.workers())


@pytest.mark.parametrize("serial", [False, True])
def test_pairs_are_tested_side_by_side_or_one_at_a_time(rig, watched, monkeypatch, serial):
    monkeypatch.setattr(rig.fabric, "serial", serial)
    rig.break_at(rank=0, call=1, sleep=0.2)
    rig.begin((0, 1), (2, 3))
    assert {rig.outcome(0, 1).status, rig.outcome(2, 3).status} == {"pass"}
    assert any(trial.beside for trial in watched.all_of_them) == (not serial)


def test_a_pair_is_swept_once(rig, watched):
    """Each test of a sweep names the sweep's pairs again."""
    for _ in range(2):
        rig.begin((0, 1), (2, 3))
        assert {rig.outcome(0, 1).status, rig.outcome(2, 3).status} == {"pass"}
    assert len(watched.all_of_them) == 2


@pytest.mark.parametrize("model", [PROCESS_PER_GPU, THREAD_PER_GPU])
def test_every_operation_over_a_group(rig, model):
    """Two communicators among them; four ranks in four processes, or four threads of one."""
    outcomes = {operation: rig.group(operation, model) for operation in OPERATIONS}
    assert {operation: outcome.status for operation, outcome in outcomes.items()} == dict.fromkeys(OPERATIONS, "pass")
    assert len(rig.workers()) == (4 if model == PROCESS_PER_GPU else 1)
    assert all(outcome.words.startswith("exact: ") for outcome in outcomes.values())


def test_an_error_of_one_thread_ends_the_trial(rig):
    """The others wait for it in vain, for ever; its GPU is named."""
    rig.break_at(rank=2, call=3, error="a wrong argument")
    outcome = rig.group("all_reduce", THREAD_PER_GPU)
    assert outcome.status == "crashed"
    assert outcome.words.startswith("GPU2 (pid ")
    assert ": RuntimeError: a wrong argument" in outcome.words
    assert outcome.culprits == ("GPU2",)
    rig.break_at()
    assert rig.group("all_reduce", THREAD_PER_GPU).status == "pass"


def test_a_thread_that_hangs_is_named(rig):
    rig.break_at(rank=2, call=1, sleep=3600)
    rig.fabric.pair_timeout = 0.5
    outcome = rig.group("all_reduce", THREAD_PER_GPU)
    assert outcome.status == "hung"
    assert "no progress for 0.5 s at all_reduce fp32 4084 B: " in outcome.words


def test_a_group_that_hangs_costs_the_timeout_once(rig, watched):
    """In one process model and arm; the others are tested all the same."""
    rig.break_at(rank=2, call=1, sleep=3600)
    rig.fabric.pair_timeout = 0.5
    assert rig.group("all_reduce", PROCESS_PER_GPU).status == "hung"
    other = rig.group("broadcast", PROCESS_PER_GPU)
    assert (other.status, other.trials) == ("inconclusive", 0)
    assert other.words == "not run: all_reduce hung before over this group, in this arm and process model"
    assert len(watched.all_of_them) == 1
    rig.break_at()
    rig.fabric.pair_timeout = LONG
    assert rig.group("broadcast", PROCESS_PER_GPU, "p2p_off").status == "pass"
    assert rig.group("broadcast", PROCESS_PER_GPU, seats=2).status == "pass"


def test_a_group_waits_for_the_sweep(rig):
    """Another arm's workers would end the sweep's; the same arm's would be given two things to do at once."""
    for arm in ("p2p_on", "p2p_off"):
        rig.fabric.results.clear()
        rig.begin(*ALL, steps=[step()] * 10)
        assert rig.group("broadcast", PROCESS_PER_GPU, arm).status == "pass"
        assert {rig.outcome(a, b).status for a, b in ALL} == {"pass"}


def test_the_gpus_are_held_from_the_first_trial_to_the_rest(rig, monkeypatch):
    locked = [seat.uuid for seat in rig.seats]
    assert rig.pair(0, 1).status == "pass"
    monkeypatch.setattr(fixtures.machine.leases, "LOCK_TIMEOUT", 0.01)
    with pytest.raises(TimeoutError):
        rig.site.lease(locked)
    rig.fabric.rest()
    assert rig.workers() == {}
    rig.site.lease(locked).close()


def test_one_at_a_time_the_first_asked_for_is_the_first_tested(rig, monkeypatch):
    """So that no test waits for the pairs of others; a tournament would begin with GPU0 and GPU3."""
    monkeypatch.setattr(rig.fabric, "serial", True)
    rig.break_at(rank=1, call=2, sleep=3600)
    rig.begin(*ALL, steps=[step(), step()], patience=PATIENCE)
    for number, pair in enumerate(ALL, 1):
        assert rig.outcome(*pair).status == "hung"
        done = [outcome for outcome in rig.fabric.results.values() if outcome.done()]
        assert len(done) <= number + 1


def test_a_sweep_that_got_no_gpus_can_be_made_later(rig, monkeypatch):
    """A time limit may end the wait for a server's GPUs; the next test of the same pair begins anew."""
    with monkeypatch.context() as short, rig.site.lease([rig.seats[3].uuid]):
        short.setattr(fixtures.machine.leases, "LOCK_TIMEOUT", 0.01)
        with pytest.raises(TimeoutError):
            rig.begin((0, 1))
    rig.begin((0, 1))
    assert rig.fabric.results[rig.seats[0], rig.seats[1], "p2p_on"].result(LONG).status == "pass"


def test_a_check_goes_through_both_arms_and_leaves_no_worker(rig):
    found = rig.fabric.check(rig.seats[:3], ["p2p_on", "p2p_off"], held=False)
    assert [(a.index, b.index, arm) for (a, b), arm, _ in found] == [
        (a, b, arm) for arm in ("p2p_on", "p2p_off") for a, b in itertools.combinations(range(3), 2)
    ]
    assert {outcome.status for *_, outcome in found} == {"pass"}
    assert rig.workers() == {}


def test_nothing_is_forced_that_needs_no_forcing(rig):
    """Known once a pair was tested with P2P on: the T4s are beyond NCCL's limit, NVLink is not."""
    assert not rig.fabric.uses_p2p(rig.seats[0], rig.seats[1])
    rig.begin((0, 1))
    rig.outcome(0, 1)
    assert not rig.fabric.uses_p2p(rig.seats[0], rig.seats[1])
    rig.fabric.results[rig.seats[0], rig.seats[1], "p2p_on"] = done = Future()
    done.set_result(Outcome("pass", "exact", used_p2p=True))
    assert rig.fabric.uses_p2p(rig.seats[0], rig.seats[1])


def test_a_group_without_peer_access_is_not_forced(rig, watched):
    """Before any worker is started; a group that has it is."""
    refused = rig.group("all_reduce", PROCESS_PER_GPU, "p2p_forced")
    words = "no peer access between GPU0 and GPU3 (chipset not supported)"
    assert (refused.status, refused.words) == ("waived", words)
    assert not watched.all_of_them
    assert rig.group("all_reduce", PROCESS_PER_GPU, "p2p_forced", seats=2).status == "pass"


def test_a_full_shm_is_named_instead_of_the_pair(make_rig):
    """What fails then says nothing of the path; what passes needed no more of it."""
    rig = make_rig()
    rig.fabric.shm_problem = lambda: "/dev/shm has 0 MB free"
    assert rig.pair(0, 1).status == "pass"
    rig.break_at(rank=1, call=1, error="unhandled system error")
    outcome = rig.pair(0, 1)
    assert outcome.status == "inconclusive"
    assert re.match(r"/dev/shm has 0 MB free; GPU1 \(pid \d+\) at .*: unhandled system error", outcome.words)
