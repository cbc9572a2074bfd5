"""The matrix: which configurations a selection names, where they go, and why one can't run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.matrix import configurations, plan
from fixtures.rehearsal.nodes import load_node
from tests.unit.session.conftest import select

DEFAULT = [
    "turbomind-tp1-fp16",
    "turbomind-tp1-awq",
    "turbomind-tp2-fp16-nccl-p2p_on",
    "turbomind-tp2-fp16-nccl-p2p_off",
    "turbomind-tp2-awq-nccl-p2p_on",
    "turbomind-tp2-awq-nccl-p2p_off",
    "turbomind-tp2-fp16-cuda_ipc",
    "turbomind-tp2-awq-cuda_ipc",
    "pytorch-tp1-fp16",
    "pytorch-tp2-fp16-nccl-p2p_on",
    "pytorch-tp2-fp16-nccl-p2p_off",
]
CASES = {
    "default": (select(), DEFAULT),
    "backend": (select(backend=("pytorch",)), DEFAULT[8:]),
    "communicator": (select(communicator=("cuda-ipc",), tp=(2,)), DEFAULT[6:8]),
    "communicator keeps tp 1": (
        select(communicator=("cuda-ipc",)),
        [*DEFAULT[:2], *DEFAULT[6:8], DEFAULT[8]],
    ),
    "precision": (
        select(precision=("awq",)),
        [
            *(name for name in DEFAULT if "awq" in name),
            "pytorch-tp1-awq",
            "pytorch-tp2-awq-nccl-p2p_on",
            "pytorch-tp2-awq-nccl-p2p_off",
        ],
    ),
    "p2p forced": (
        select(backend=("turbomind",), tp=(2,), precision=("fp16",), p2p=("p2p_on", "p2p_forced")),
        ["turbomind-tp2-fp16-nccl-p2p_on", "turbomind-tp2-fp16-nccl-p2p_forced", "turbomind-tp2-fp16-cuda_ipc"],
    ),
    "tp 1 stands once": (
        select(tp=(1, 4, 8), backend=("turbomind",), precision=("fp16",), p2p=("p2p_on",)),
        [
            "turbomind-tp1-fp16",
            "turbomind-tp4-fp16-nccl-p2p_on",
            "turbomind-tp8-fp16-nccl-p2p_on",
            "turbomind-tp4-fp16-cuda_ipc",
            "turbomind-tp8-fp16-cuda_ipc",
        ],
    ),
}


@pytest.mark.parametrize(("selection", "ids"), CASES.values(), ids=CASES)
def test_selection(selection, ids):
    assert [configuration.id for configuration in configurations(selection)] == ids


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--backend=pytorch", "--tp=1"], ["pytorch-tp1-fp16"]),
        (["--backend= turbomind,pytorch", "--precision=fp16", "--tp=1"], ["turbomind-tp1-fp16", "pytorch-tp1-fp16"]),
        (["--communicator=cuda-ipc", "--precision=awq", "--tp=4"], ["turbomind-tp4-awq-cuda_ipc"]),
        (["--communicator=nccl", "--backend=pytorch", "--tp=2", "--p2p=p2p_off"], ["pytorch-tp2-fp16-nccl-p2p_off"]),
        (["--p2p=p2p_forced", "--backend=pytorch", "--tp=4,4"], ["pytorch-tp4-fp16-nccl-p2p_forced"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_options_narrow(inner, arguments, ids):
    assert [cell.configuration.id for cell in inner.resolve("--rehearse", *arguments).cells] == ids


def placed(machine, *, oversubscribe=False, **given):
    """Configuration id to GPUs, or to the skip reason."""
    cells = plan(select(**given), machine, oversubscribe=oversubscribe, missing=lambda _: None)
    return {cell.configuration.id: cell.skip_reason or cell.configuration.gpus for cell in cells}


PYTORCH = {"backend": ("pytorch",), "p2p": ("p2p_on",)}


def test_too_few_gpus():
    """The reason names the way out."""
    one = load_node("h200x1")
    assert placed(one, **PYTORCH) == {
        "pytorch-tp1-fp16": (0,),
        "pytorch-tp2-fp16-nccl-p2p_on": "needs 2 GPUs, this machine has 1; try --oversubscribe",
    }
    assert placed(one, tp=(8,), **PYTORCH) == {
        "pytorch-tp8-fp16-nccl-p2p_on": "needs 8 GPUs, this machine has 1; try --oversubscribe"
    }


def test_no_gpus():
    """Every cell says why there is none, tp 1 too."""
    nothing = replace(load_node("h200x1").keeping([]), why_no_gpus="no NVIDIA driver")
    assert set(placed(nothing).values()) == {"no GPU to use: no NVIDIA driver; try --rehearse"}
    assert set(placed(nothing, oversubscribe=True)) == set(DEFAULT)


def test_mig(t4x4):
    """A process sees one MIG instance only: tp 1 runs there, tensor parallelism can't."""
    split = replace(t4x4, gpus=tuple(replace(gpu, mig=gpu.index == 0) for gpu in t4x4.gpus)).keeping([0, 1])
    found = placed(split, **PYTORCH)
    assert found["pytorch-tp1-fp16"] == (0,)
    assert found["pytorch-tp2-fp16-nccl-p2p_on"].startswith("GPU0 is in MIG mode")


def test_oversubscribe_shares_only_where_gpus_are_too_few(t4x4):
    assert placed(t4x4, oversubscribe=True, tp=(4, 8), **PYTORCH) == {
        "pytorch-tp4-fp16-nccl-p2p_on": (0, 1, 2, 3),
        "pytorch-tp8-fp16-nccl-shared_gpu": (0,),
    }


def test_shared_gpu_has_no_p2p_arms():
    """Both arms would be one and the same server, so it stands once, with ids as the contract has them."""
    one = load_node("h200x1")
    assert placed(one, oversubscribe=True, precision=("fp16",), tp=(2,)) == {
        "turbomind-tp2-fp16-nccl-shared_gpu": (0,),
        "turbomind-tp2-fp16-cuda_ipc-shared_gpu": (0,),
        "pytorch-tp2-fp16-nccl-shared_gpu": (0,),
    }


def test_what_lmdeploy_lacks_is_a_reason(t4x4):
    """The machine's own reason comes first: it is asked about nothing that can't be placed."""
    asked = []

    def missing(configuration):
        asked.append(configuration.id)
        return "lmdeploy 0.5.0 has no --communicator" if configuration.communicator == "cuda-ipc" else None

    selection = select(backend=("turbomind",), precision=("fp16",), tp=(2, 8), p2p=("p2p_on",))
    cells = plan(selection, t4x4, oversubscribe=False, missing=missing)
    assert {cell.configuration.id: cell.skip_reason for cell in cells} == {
        "turbomind-tp2-fp16-nccl-p2p_on": None,
        "turbomind-tp8-fp16-nccl-p2p_on": "needs 8 GPUs, this machine has 4; try --oversubscribe",
        "turbomind-tp2-fp16-cuda_ipc": "lmdeploy 0.5.0 has no --communicator",
        "turbomind-tp8-fp16-cuda_ipc": "needs 8 GPUs, this machine has 4; try --oversubscribe",
    }
    assert asked == ["turbomind-tp2-fp16-nccl-p2p_on", "turbomind-tp2-fp16-cuda_ipc"]
