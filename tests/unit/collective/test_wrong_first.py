"""Data that is wrong is worse than none: what was seen wrong is said first, whatever became of the trial afterwards."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

import fixtures.collective
from fixtures.collective.exchange import Conductor
from tests.unit.collective.conftest import PATIENCE, QUICK, until

sys.path.insert(0, str(Path(fixtures.collective.__file__).parent / "under_test"))

import rank_steps
from expectation import Expectation


@pytest.mark.parametrize(
    ("order", "patience", "then"),
    [
        ({"sleep": 3600}, PATIENCE, "; then hung: no progress for "),
        ({"end": 3}, None, "; then crashed: GPU1 (pid "),
        ({"error": "MemoryError"}, None, "; then inconclusive: GPU1 (pid "),
    ],
    ids=["hung", "died", "out_of_memory"],
)
def test_wrong_data_before_another_end(rig, order, patience, then):
    rig.break_at(rank=1, wrong_from=1, call=3, **order)
    rig.begin((0, 1), **({} if patience is None else {"patience": patience}))
    outcome = rig.outcome(0, 1)
    assert outcome.status == "wrong"
    assert outcome.words.startswith("results wrong on GPU1; first at all_reduce fp32 4084 B: 1 of 1021 elements wrong")
    assert then in outcome.words
    assert outcome.evidence[0].startswith(
        "GPU1: all_reduce fp32 4084 B, iteration 1: 1 of 1021 elements wrong, at 1020"
    )
    assert outcome.culprits == ("GPU1",)


class Zeros:
    rank, world_size = 0, 1

    def collective(self, operation, send, receive, root=0):
        receive.zero_()

    def synchronize(self):
        pass


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError("none left")])
def test_wrong_data_that_there_is_no_memory_to_explain(monkeypatch, error):
    def explain(*_):
        raise error

    monkeypatch.setattr(Expectation, "explain", explain)
    told = []
    found = rank_steps.run_steps(
        [Zeros()], QUICK, "cpu", lambda step: None, tell_wrong=lambda one: told.append({**one})
    )
    assert found["wrong_results"] == found["results"] == 3
    assert found["wrong"][0]["words"] == f"1021 of 1021 elements wrong, not explained: {error}"
    assert [one["words"] for one in told[:2]] == ["1021 of 1021 elements wrong", found["wrong"][0]["words"]]


def test_a_small_shm_excuses_no_p2p(make_rig):
    """What NCCL's log shows to go over P2P needs none of it."""
    rig = make_rig()
    rig.fabric.shm_problem = lambda: "/dev/shm has 0 MB free"
    rig.break_at(rank=1, call=1, error="unhandled system error")
    assert rig.pair(1, 2, arm="p2p_forced").status == "crashed"
    assert rig.pair(1, 2, arm="p2p_off").status == "inconclusive"


def test_a_dead_worker_is_told_of_its_own_gpu_alone(rig):
    """However early the other pair of the round ends."""
    rig.begin((0, 1), (2, 3))
    assert {rig.outcome(0, 1).status, rig.outcome(2, 3).status} == {"pass"}
    worker = next(worker for worker in rig.workers().values() if "GPU0" in worker.name)
    os.kill(worker.pid, signal.SIGKILL)
    until(worker.ended.done, "its end is known")
    rig.fabric.results.clear()
    rig.begin((0, 1), (2, 3))
    assert "fresh workers, for before it GPU0's idle worker" in rig.outcome(0, 1).words
    assert "fresh" not in rig.outcome(2, 3).words


def logging(*logs):
    """Runs trials of which NCCL has logged this."""

    class Logging(Conductor):
        async def run(self, communicators=1):
            trial = await super().run(communicators)
            trial.logs = logs
            return trial

    return Logging


def test_an_off_arm_without_a_log_is_no_control(rig, monkeypatch):
    monkeypatch.setattr(rig.fabric, "conductor", logging())
    off = rig.pair(0, 1, arm="p2p_off")
    assert off.status == "inconclusive"
    assert off.words.startswith("NCCL's log doesn't name the transport, so nothing proves that the arm is a control; ")
    assert rig.pair(0, 1, arm="p2p_on").status == "pass"


def test_a_forced_arm_that_nccl_refuses_is_waived(rig, monkeypatch):
    shm = "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n"
    monkeypatch.setattr(rig.fabric, "conductor", logging(shm))
    outcome = rig.pair(1, 2, arm="p2p_forced")
    assert outcome.status == "waived"
    assert outcome.words.startswith(
        "NCCL chose SHM: though P2P was forced and peer access is granted; the data was exact"
    )
