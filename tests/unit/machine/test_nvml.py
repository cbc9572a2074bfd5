"""The machine, its memory and its processes through pynvml and a compiled stand-in for the driver's library."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from fixtures.machine.nvml import GpuUnreadable, processes_on, read_machine, used_memory_mib
from fixtures.machine.visible import restrict
from fixtures.rehearsal.nodes import load_node, node_names
from tests.unit.machine.conftest import description

T4X4 = load_node("t4x4")
FIRST = T4X4.gpus[0].uuid


def changed(lines: list[str], old: str, new: str) -> list[str]:
    text = "\n".join(lines)
    assert old in text
    return text.replace(old, new).splitlines()


@pytest.mark.parametrize("name", node_names())
def test_reads_back_every_packaged_node(fake_nvml, name):
    node = load_node(name)
    fake_nvml(description(node, nvswitch=name == "a100x8"))
    seen = read_machine()
    assert seen == replace(node, name=seen.name, nccl=None, lmdeploy=None)


def test_finds_the_library_where_the_loader_does(fake_nvml, fake_library):
    fake_nvml(description(T4X4))
    script = "from fixtures.machine.nvml import read_machine; print([gpu.uuid for gpu in read_machine().gpus])"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(fake_library.parent)}
    repository = Path(__file__).parents[3]
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=repository, env=environment, text=True, stdout=subprocess.PIPE
    )
    assert out.stdout.strip() == str([gpu.uuid for gpu in T4X4.gpus])


def test_nvswitch_counts_the_links_of_the_poorer_gpu(fake_nvml):
    lines = description(load_node("a100x8"), nvswitch=True)
    fake_nvml([line for line in lines if not line.startswith(("nvlink 3 10 ", "nvlink 3 11 "))])
    seen = read_machine()
    assert seen.links[3][:5] == ("NV10", "NV10", "NV10", "X", "NV10")
    assert seen.links[0][1] == "NV12"


def test_peer_access_needs_reading_and_writing(fake_nvml):
    fake_nvml([*description(T4X4), "p2p 0 1 1 4", "p2p 0 2 0 5", "p2p 1 2 0 -1"])
    seen = read_machine()
    assert seen.peer_words[0] == ("X", "DR", "NS", "CNS")
    assert seen.peer[0] == (True, False, False, False)
    assert (seen.peer_words[1][2], seen.peer[1][2]) == ("U", None)
    assert (seen.peer_words[1][0], seen.peer[1][0]) == ("OK", True)


def test_an_unknown_path_counts_as_the_farthest(fake_nvml):
    fake_nvml([*description(T4X4), "level 1 2 -1"])
    seen = read_machine()
    assert seen.links[1][2] == seen.links[2][1] == "SYS"
    expected = "the path between 00000000:5E:00.0 and 00000000:5F:00.0 is unknown (Not Supported), taken for SYS"
    assert seen.notes == (expected,)


def test_a_lost_gpu_is_named_and_the_others_keep_their_indices(fake_nvml):
    fake_nvml(
        changed(description(T4X4), f"-1 0 Tesla T4\ngpu {T4X4.gpus[2].uuid}", f"-1 1 Tesla T4\ngpu {T4X4.gpus[2].uuid}")
    )
    seen = read_machine()
    assert [gpu.index for gpu in seen.gpus] == [0, 2, 3]
    assert seen.links[0] == ("X", "NODE", "SYS")
    assert seen.notes == ("GPU 1 can't be used: GPU is lost",)
    assert seen.why_no_gpus is None


def test_all_gpus_lost(fake_nvml):
    fake_nvml(changed(description(T4X4.keeping([0, 1])), "-1 0 Tesla", "-1 1 Tesla"))
    seen = read_machine()
    assert seen.gpus == seen.links == ()
    assert seen.why_no_gpus == "GPU 0 can't be used: GPU is lost; GPU 1 can't be used: GPU is lost"


def test_a_driver_without_gpus(fake_nvml):
    fake_nvml(["driver 580.95.05", "cuda 13000"])
    seen = read_machine()
    assert (seen.why_no_gpus, seen.driver, seen.cuda) == (
        "the NVIDIA driver 580.95.05 sees no GPU",
        "580.95.05",
        "13.0",
    )


def test_cuda_version_in_words(fake_nvml):
    fake_nvml(changed(description(T4X4), "cuda 13000", "cuda 12080"))
    assert read_machine().cuda == "12.8"


def test_no_library(monkeypatch, tmp_path):
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", lambda name: ctypes.CDLL(str(tmp_path / name)))
    seen = read_machine()
    assert (seen.gpus, seen.why_no_gpus) == ((), "no NVIDIA driver: libnvidia-ml.so.1 not found")
    with pytest.raises(GpuUnreadable, match=r"GPU-1: no NVIDIA driver: libnvidia-ml\.so\.1 not found"):
        used_memory_mib(["GPU-1"])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "no NVIDIA driver: the kernel module isn't loaded"),
        (18, "NVIDIA driver half updated: libnvidia-ml.so.1 and the kernel module are of different versions; reboot"),
        (4, "no permission to talk to the NVIDIA driver (/dev/nvidiactl)"),
        (999, "the NVIDIA driver doesn't answer: Unknown Error"),
    ],
)
def test_a_driver_that_does_not_open(fake_nvml, code, words):
    fake_nvml([f"init {code}"])
    assert read_machine().why_no_gpus == words


def test_mig_instances_are_noticed_and_can_be_named(fake_nvml):
    lines = changed(description(load_node("h200x1")), "-1 0 NVIDIA", "1 0 NVIDIA")
    small, big = "MIG-6d6ba3a1-7d2c-5fd9-9c2e-a3ac4f1d9e75", "MIG-0c1a2b3c-5566-5a7b-8c9d-0123456789ab"
    lines += [
        f"instance 0 1 {small} {16 << 30} 0 NVIDIA H200 MIG 1g.18gb",
        f"instance 0 4 {big} {32 << 30} {1 << 20} NVIDIA H200 MIG 2g.35gb",
    ]
    fake_nvml(lines)
    seen = read_machine()
    (gpu,) = seen.gpus
    assert gpu.mig
    assert [(one.uuid, one.name, one.memory_mib) for one in gpu.instances] == [
        (small, "NVIDIA H200 MIG 1g.18gb", 16384),
        (big, "NVIDIA H200 MIG 2g.35gb", 32768),
    ]
    assert restrict(seen, big, None).gpus == (gpu.instances[1],)
    assert used_memory_mib([small, big]) == {small: 0, big: 1}


def test_mig_off_is_not_mig(fake_nvml):
    fake_nvml(changed(description(load_node("h200x1")), "-1 0 NVIDIA", "0 0 NVIDIA"))
    assert not read_machine().gpus[0].mig


def test_used_memory_leaves_out_the_reserve_and_rounds_up(fake_nvml):
    fake_nvml(
        changed(
            description(T4X4), f"00000000:5e:00.0 {15360 << 20} 0", f"00000000:5e:00.0 {15360 << 20} {(7 << 20) + 1}"
        )
    )
    second = T4X4.gpus[1].uuid
    assert used_memory_mib([FIRST, second]) == {FIRST: 0, second: 8}


def test_processes(fake_nvml):
    unknown = 2**64 - 1
    fake_nvml([*description(T4X4), f"process 0 900 {5 << 20}", "process 0 80 1", f"process 0 81 {unknown}"])
    assert processes_on(FIRST) == [(80, 1), (81, None), (900, 5)]
    assert processes_on(T4X4.gpus[1].uuid) == []


def test_questions_on_a_gpu_that_does_not_answer(fake_nvml):
    fake_nvml(changed(description(T4X4.keeping([0])), "-1 0 Tesla", "-1 1 Tesla"))
    with pytest.raises(GpuUnreadable, match=f"^{FIRST}: GPU is lost$"):
        used_memory_mib([FIRST])
    with pytest.raises(GpuUnreadable, match="GPU-none: Not Found"):
        processes_on("GPU-none")
