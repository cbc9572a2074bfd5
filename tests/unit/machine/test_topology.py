"""The printed square, against what real machines print."""

from __future__ import annotations

from dataclasses import replace

from fixtures.machine.machine import Machine
from fixtures.machine.topology import topology_table
from fixtures.rehearsal.nodes import load_node

SEED = """\
        GPU0  GPU1  GPU2  GPU3  CPU Affinity  NUMA Affinity
GPU0     X    NODE  NODE  SYS   0-15,32-47    0
GPU1    NODE   X    PHB   SYS   0-15,32-47    0
GPU2    NODE  PHB    X    SYS   0-15,32-47    0
GPU3    SYS   SYS   SYS    X    16-31,48-63   1"""

DGX1 = """\
        GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7  CPU Affinity  NUMA Affinity
GPU0     X    NV1   NV1   NV2   NV2   SYS   SYS   SYS   0-19,40-59    0
GPU1    NV1    X    NV2   NV1   SYS   NV2   SYS   SYS   0-19,40-59    0
GPU2    NV1   NV2    X    NV2   SYS   SYS   NV1   SYS   0-19,40-59    0
GPU3    NV2   NV1   NV2    X    SYS   SYS   SYS   NV1   0-19,40-59    0
GPU4    NV2   SYS   SYS   SYS    X    NV1   NV1   NV2   20-39,60-79   1
GPU5    SYS   NV2   SYS   SYS   NV1    X    NV2   NV1   20-39,60-79   1
GPU6    SYS   SYS   NV1   SYS   NV1   NV2    X    NV2   20-39,60-79   1
GPU7    SYS   SYS   SYS   NV1   NV2   NV1   NV2    X    20-39,60-79   1"""


def test_the_seeds_own_table():
    assert topology_table(load_node("t4x4")) == SEED


def test_hybrid_cube_mesh():
    assert topology_table(load_node("v100x8")) == DGX1


def test_nvswitch():
    lines = topology_table(load_node("a100x8")).splitlines()
    assert lines[3] == "GPU2    NV12  NV12   X    NV12  NV12  NV12  NV12  NV12  16-31,144-159    1"
    assert len(lines) == 9


def test_small_nodes():
    assert topology_table(load_node("rtx4090x2")).splitlines() == [
        "        GPU0  GPU1  CPU Affinity  NUMA Affinity",
        "GPU0     X    PHB   0-31          0",
        "GPU1    PHB    X    0-31          0",
    ]
    assert topology_table(load_node("h200x1")).splitlines() == [
        "        GPU0  CPU Affinity  NUMA Affinity",
        "GPU0     X    0-15          0",
    ]


def test_chosen_gpus_keep_their_numbers_and_unknown_affinities_their_place():
    node = load_node("t4x4").keeping([3, 1])
    node = replace(node, gpus=(replace(node.gpus[0], cpus=None, numa=None), replace(node.gpus[1], numa=None)))
    assert (
        topology_table(node)
        == "        GPU3  GPU1  CPU Affinity\nGPU3     X    SYS   N/A\nGPU1    SYS    X    0-15,32-47"
    )


def test_no_gpus_gives_the_reason():
    assert topology_table(Machine("m", (), (), (), why_no_gpus="no NVIDIA driver")) == "no NVIDIA driver"
