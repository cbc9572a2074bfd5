"""What ran where, in the words of the report, pytest's header, --plan and a command that repeats a server by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.machine.machine import Gpu, Machine
from fixtures.rehearsal.site import RehearsedNode
from fixtures.report.where import Where, machine_facts

LMDEPLOY = {"version": "0.18.0", "python": "/opt/bin/python", "torch": "2.11.0", "nccl": None}


@pytest.fixture
def machine() -> dict[str, Any]:
    """Two GPUs of different models."""
    gpus = tuple(Gpu(i, f"GPU-{i}", name, f"00000000:0{i}:00.0", 15360) for i, name in enumerate(("T4", "A10")))
    links = (("X", "PHB"), ("PHB", "X"))
    return machine_facts(Machine("node", gpus, links, (), driver="580.95.05", cuda="13.0", nccl="2.28.9"))


def test_on_a_real_machine(machine):
    where = Where(machine, LMDEPLOY)
    assert where.headline() == ["machine node: 1 x T4, 1 x A10, driver 580.95.05, CUDA 13.0", "lmdeploy 0.18.0"]
    assert where.header("machine") == ["multigpu: machine node, 2 GPUs", "lmdeploy: /opt/bin/python 0.18.0"]
    assert where.plan_head() == (
        "machine node: driver 580.95.05, CUDA 13.0, NCCL 2.28.9, lmdeploy 0.18.0 (/opt/bin/python)"
    )
    versions = "# lmdeploy 0.18.0, torch 2.11.0, NCCL 2.28.9, driver 580.95.05, CUDA 13.0"
    assert where.versions_comment() == versions
    assert Where(machine, {**LMDEPLOY, "nccl": "2.21.5"}).versions_comment() == versions.replace("2.28.9", "2.21.5")


def test_a_rehearsal_says_so_everywhere(machine):
    where = Where(machine, LMDEPLOY, rehearsed=True, fault="lost-share")
    assert where.headline()[2:] == [
        "REHEARSED: the GPUs are emulated, nothing here is about real ones",
        "fault injected: lost-share",
    ]
    assert where.header(RehearsedNode.label) == [
        "multigpu: REHEARSAL, no GPU is touched: node node, 2 GPUs",
        "lmdeploy: stand-in for 0.18.0",
        "fault injected: lost-share",
    ]
    assert where.plan_head().startswith("REHEARSAL, machine node: driver ")
    assert where.plan_head().endswith(", lmdeploy 0.18.0 (stand-in)")
    assert where.versions_comment().startswith("# REHEARSED: the stand-in server, no GPU\n# lmdeploy 0.18.0, ")


def test_without_gpus_and_lmdeploy():
    where = Where(machine_facts(Machine("laptop", (), (), ())), None)
    assert where.headline() == ["machine laptop: no GPUs", "lmdeploy: none found"]
    assert where.header("machine") == ["multigpu: machine laptop, 0 GPUs"]
    assert where.plan_head() == "machine laptop: no lmdeploy"
