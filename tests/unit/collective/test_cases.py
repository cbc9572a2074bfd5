"""Which pairs and groups a run tests, and why there is none."""

import dataclasses
from pathlib import Path

import pytest

from fixtures.collective.cases import (
    group_cases,
    groups_of,
    pair_cases,
    pairs_of,
    seats_of_run,
    why_no_fabric,
    why_not_selected,
)
from fixtures.collective.outcome import Outcome
from fixtures.collective.under_test.operations import OPERATIONS
from fixtures.machine.here import Here
from fixtures.machine.machine import Machine
from fixtures.matrix import Cell, Configuration
from fixtures.rehearsal.nodes import load_node
from fixtures.run import Run, ServerSettings


def run_on(machine: Machine | str, *configurations: Configuration, **more) -> Run:
    machine = load_node(machine) if isinstance(machine, str) else machine
    cells = tuple(Cell(configuration, None) for configuration in configurations)
    return Run(Here(), machine, cells, None, ServerSettings(), Path("/nowhere"), **more)


def tp(size: int, *gpus: int, shared: bool = False) -> Configuration:
    return Configuration("turbomind", "nccl", size, "fp16", gpus=gpus, shared_gpu=shared)


def ids(run: Run) -> list[str]:
    return [f"{pair.id}-{arm}" for pair, arm in pair_cases(run)]


def test_pairs_of_the_seeds_node():
    """Arm by arm; who names an arm gets it alone."""
    run = run_on("t4x4")
    found = ids(run)
    assert found[:2] == ["GPU0-GPU1-NODE-p2p_on", "GPU0-GPU2-NODE-p2p_on"]
    assert [i.rpartition("-")[2] for i in found] == ["p2p_on"] * 6 + ["p2p_off"] * 6 + ["p2p_forced"] * 6
    assert [i.rpartition("-")[2] for i in ids(run_on("a100x8", p2p=("p2p_forced",)))] == ["p2p_forced"] * 28
    assert pairs_of(run)[1].words == "GPU0 (00000000:3B:00.0) and GPU2 (00000000:5F:00.0), link NODE"


def test_groups_are_the_node_and_those_of_the_matrix_once():
    run = run_on("t4x4", tp(1, 0), tp(2, 2, 0), tp(2, 2, 0), tp(4, 0, 1, 2, 3), tp(2, 7, 8))
    assert [group.id for group in groups_of(run)] == ["GPU0+1+2+3", "GPU2+0"]
    cases = list(group_cases(run))
    assert {(model, arm) for _, _, model, arm in cases} == {
        ("process_per_gpu", "p2p_on"),
        ("process_per_gpu", "p2p_off"),
        ("thread_per_gpu", "p2p_on"),
        ("thread_per_gpu", "p2p_off"),
        ("thread_per_gpu", "p2p_direct_off"),
    }
    assert len(cases) == len(OPERATIONS) * 2 * 5
    only_off = group_cases(run_on("t4x4", p2p=("p2p_off",)))
    assert {arm for *_, arm in only_off} == {"p2p_off"}


def test_ranks_on_one_gpu():
    """As many as the largest tp; P2P between them can't be forced."""
    run = run_on("h200x1", tp(2, 0, shared=True), tp(4, 0, shared=True), oversubscribed=True)
    assert [seat.name for seat in seats_of_run(run)] == ["GPU0.0", "GPU0.1", "GPU0.2", "GPU0.3"]
    assert [group.id for group in groups_of(run)] == ["GPU0.0+0.1+0.2+0.3", "GPU0.0+0.1"]
    assert "GPU0.0-GPU0.3-X-p2p_off" in ids(run)
    assert not any("forced" in i for i in ids(run))
    forced = dataclasses.replace(run, p2p=("p2p_forced",))
    assert ids(forced) == [] == list(group_cases(forced))
    pair = pairs_of(run)[2]
    assert pair.record("p2p_on", Outcome("pass", "exact")) | {"sizes": []} == {
        "a": 0,
        "b": 0,
        "link": "X",
        "arm": "p2p_on",
        "ranks": [0, 3],
        "status": "pass",
        "transport": None,
        "busbw_gb_per_s": None,
        "sizes": [],
        "trials": 1,
        "words": "exact",
    }


NO_GPU = dataclasses.replace(load_node("h200x1"), gpus=(), links=(), peer=(), why_no_gpus="no NVIDIA driver")
T4X4 = load_node("t4x4")
MIG = dataclasses.replace(T4X4, gpus=(T4X4.gpus[0], dataclasses.replace(T4X4.gpus[1], mig=True), *T4X4.gpus[2:]))


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (run_on("t4x4"), None),
        (run_on(NO_GPU), "no GPU to use: no NVIDIA driver; try --rehearse"),
        (
            run_on(load_node("h200x1")),
            "pairs and groups need 2 GPUs, this machine has 1; try --oversubscribe",
        ),
        (run_on("h200x1", oversubscribed=True), None),
        (run_on(MIG), "GPU1 is in MIG mode: a process sees one MIG instance only, so no collective between GPUs"),
    ],
)
def test_why_there_is_no_fabric(run, why):
    assert why_no_fabric(run) == why


def test_no_torch_here(monkeypatch):
    """Another interpreter's is looked for when it is started."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert (
        why_no_fabric(run_on("t4x4")) == "no torch in this Python, which collectives are run with (pip install torch)"
    )
    assert why_no_fabric(run_on("t4x4", python="/elsewhere/python")) is None


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (run_on("t4x4"), "; this run's GPUs: GPU0, GPU1, GPU2, GPU3"),
        (run_on(T4X4.keeping([3, 1])), "; this run's GPUs: GPU3, GPU1"),
        (run_on("h200x1", tp(2, 0, shared=True), oversubscribed=True), "; this run's GPUs: GPU0.0, GPU0.1"),
        (
            run_on("h200x1"),
            ", and no pair of GPUs exists here: pairs and groups need 2 GPUs, this machine has 1; try --oversubscribe",
        ),
    ],
)
def test_a_keyword_that_selects_nothing(run, words):
    """pytest doesn't say which names there are."""
    assert why_not_selected(run, "GPU7 and p2p_on") == f'-k "GPU7 and p2p_on" selects nothing{words}'
