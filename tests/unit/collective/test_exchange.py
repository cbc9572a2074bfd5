"""Trials whose workers are killed, stopped, and fail: what the outcome says, and what is left."""

import os
import signal
import time

import pytest

from fixtures.processes.proctable import marked_pids
from tests.unit.collective.conftest import PATIENCE, lives, step, until


def test_a_pair_passes(rig):
    outcome = rig.pair(0, 2)
    assert outcome.status == "pass"
    assert outcome.words.startswith("exact: 6 results of 2 steps, bit for bit; NCCL chose SHM: ")
    assert (outcome.transport, outcome.used_p2p, outcome.sizes) == ("SHM", False, [4084])
    assert outcome.busbw_gb_per_s > 0


@pytest.mark.parametrize("first", [3, 6])
def test_what_goes_wrong_only_while_it_is_measured_is_wrong(rig, first):
    """From the third collective of a trial on, and in the very last one of those in a row."""
    rig.break_at(rank=1, wrong_from=first)
    outcome = rig.pair(0, 2, steps=[step(iterations=2), step("measure", repeat=2)])
    assert outcome.status == "wrong"
    assert " results wrong on GPU2; first at measure fp32 4084 B: 1 of 1021 elements wrong, at 1020" in outcome.words


def test_a_worker_killed_in_a_trial(rig):
    members = rig.endless(0, 2)
    os.kill(members[1].worker.pid, signal.SIGKILL)
    outcome = rig.outcome(0, 2)
    assert outcome.status == "crashed"
    killed = f"GPU2 (pid {members[1].worker.pid}) was killed by SIGKILL (Killed) at measure fp32 4084 B"
    assert outcome.words.startswith(killed)
    assert outcome.culprits == ("GPU2",)
    assert any(line.startswith("GPU0 (pid ") and "afterwards: " in line for line in outcome.evidence)


def test_a_stopped_worker_hangs_its_pair_once_and_no_other(rig):
    """Both workers are ended, its GPUs' next pairs get fresh ones, and the pair beside it was not held up."""
    first = rig.endless(0, 2, patience=PATIENCE)
    pids = [member.worker.pid for member in first]
    os.kill(pids[1], signal.SIGSTOP)
    stopped = time.monotonic()
    outcome = rig.outcome(0, 2)
    took = time.monotonic() - stopped
    assert outcome.status == "hung"
    assert PATIENCE - 0.1 < took < PATIENCE + 0.8
    assert outcome.words.startswith(
        f"no progress for {PATIENCE:g} s at measure fp32 4084 B: GPU2 (pid {pids[1]}) is stopped by a signal (state T)"
    )
    assert outcome.culprits == ("GPU2",)
    assert f"GPU0 (pid {pids[0]}): " in "\n".join(outcome.evidence)
    assert not any("RAS" in line for line in outcome.evidence), "there is no NCCL to ask in a rehearsal"
    assert not any(map(lives, pids))
    assert marked_pids(rig.process.marker) == [rig.process.pids[0]]
    assert rig.pair(0, 2).status == "pass"
    assert not {worker.pid for worker in rig.workers().values()} & {*pids}


def test_a_hung_pair_costs_its_deadline_once_in_a_sweep(rig, watched):
    """One that hangs in an early step of many: a single trial, that stood still once, and went no further."""
    rig.break_at(rank=1, call=3, sleep=3600)
    rig.begin((0, 3), steps=[step()] * 22, patience=PATIENCE)
    outcome = rig.outcome(0, 3)
    (trial,) = [one.trial for one in watched.all_of_them]
    assert (trial.ending, trial.seconds_still) == ("hung", PATIENCE)
    assert [member.reached for member in trial.members] == [{0: 2}, {1: 2}]
    assert outcome.status == "hung"
    assert outcome.words.startswith(
        f"no progress for {PATIENCE:g} s at all_reduce fp32 4084 B: all of GPU0, GPU3 are in it"
    )


def test_a_long_step_that_gets_on_is_no_hang(rig):
    """As with messages of gigabytes: a whole step takes longer than a trial may stand still, no iteration does."""
    rig.break_at(rank=1, sleep=PATIENCE / 3)
    rig.begin((0, 2), steps=[step(iterations=4), step("measure", iterations=4)], patience=PATIENCE)
    assert rig.outcome(0, 2).status == "pass"


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        ("a wrong argument", "crashed", "RuntimeError: a wrong argument"),
        ("CUDA error: out of memory", "inconclusive", "RuntimeError: CUDA error: out of memory"),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", "inconclusive", "DefaultCPU"),
        ("MemoryError", "inconclusive", "MemoryError"),
    ],
)
def test_a_workers_error_is_told(rig, watched, monkeypatch, error, status, told):
    """Which GPU, at which step; memory that didn't suffice says nothing of the path."""
    monkeypatch.setattr(watched, "grace", 0.1)
    rig.break_at(rank=1, call=2, error=error)
    outcome = rig.pair(0, 2, steps=[step(), step()])
    assert outcome.status == status
    assert outcome.words.startswith("GPU2 (pid ")
    assert ") at all_reduce fp32 4084 B: " in outcome.words
    assert told in outcome.words
    assert outcome.culprits == ("GPU2",)


def test_a_worker_that_ends_by_itself(rig):
    rig.break_at(rank=0, call=1, end=7)
    outcome = rig.pair(0, 2)
    assert outcome.status == "crashed"
    assert "GPU0 (pid " in outcome.words
    assert ") exited with code 7 at all_reduce fp32 4084 B" in outcome.words


def test_the_end_of_a_process_comes_before_its_consequences(rig, watched, monkeypatch):
    """Its partner's error arrives at once, its own end only when the stopped nursery goes on: the end is told."""
    monkeypatch.setattr(watched, "grace", 0.01)
    members = rig.endless(0, 2)
    os.kill(rig.process.pids[0], signal.SIGSTOP)
    try:
        os.kill(members[0].worker.pid, signal.SIGKILL)
        until(lambda: members[1].error, "the partner's error")
        until(lambda: members[0].worker.read_out, "the killed worker's line is closed")
        time.sleep(0.05)  # more than the grace
    finally:
        os.kill(rig.process.pids[0], signal.SIGCONT)
    outcome = rig.outcome(0, 2)
    assert outcome.status == "crashed"
    assert "GPU0 (pid " in outcome.words
    assert "was killed by SIGKILL" in outcome.words


def test_a_worker_that_died_between_trials_blames_no_pair(rig):
    assert rig.pair(0, 2).status == "pass"
    worker = next(worker for name, worker in rig.workers().items() if "GPU0" in name)
    os.kill(worker.pid, signal.SIGKILL)
    until(worker.ended.done, "its end is told")
    outcome = rig.pair(0, 2)
    assert outcome.status == "pass"
    assert f"fresh workers, for before it GPU0's idle worker (pid {worker.pid}) was killed by SIGKILL" in outcome.words
    assert "idle" not in rig.pair(0, 2).words
