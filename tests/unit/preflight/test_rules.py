"""Rules on hand-made facts: the level, and in the words what a person must know."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from fixtures.machine.facts import Bridge, FabricState, Facts, KernelLog, PciPath, SharedMemory, User, Versions
from fixtures.machine.libraries import mapped_libnccl
from fixtures.preflight.rules import CHECKS
from fixtures.preflight.rules_host import finding_for_mapped
from fixtures.processes.proctable import mapped_files
from fixtures.rehearsal.nodes import load_node
from tests.unit.machine.trees import FREE_GPU, healthy, log_of

T4X4, A100X8, RTX = load_node("t4x4"), load_node("a100x8"), load_node("rtx4090x2")
ALONE = load_node("h200x1")
MIXED = replace(T4X4, gpus=(*T4X4.gpus[:3], replace(T4X4.gpus[3], name="NVIDIA L4")))
SLICED = replace(T4X4, gpus=(*T4X4.gpus[:3], replace(T4X4.gpus[3], mig=True)))
MB = 10**6
#: Two GPUs of one switch (its upstream port shared), the other two each under a root port.
PLX = "0000:3a:00.0"


def paths(*registers: int | None, kind: str | None = None) -> dict[str, PciPath]:
    shared = Bridge(PLX, 0x1D)  # whatever is set above where two GPUs meet doesn't touch their traffic
    chains = [(shared, Bridge(f"0000:3b:0{place}.0", bits)) for place, bits in enumerate(registers[:2])]
    chains += [(Bridge(f"0000:a{place}:00.0", bits),) for place, bits in enumerate(registers[2:])]
    return {gpu.bus_id: PciPath(chain, kind) for gpu, chain in zip(T4X4.gpus, chains, strict=False)}


def gpus(machine=T4X4, **changes):
    return {gpu.uuid: replace(FREE_GPU, **changes) for gpu in machine.gpus}


def fabric(state: str, error: str | None = None):
    return gpus(A100X8, fabric=FabricState(state, error))


CASES = [
    # check, machine, changed facts, level, words that must be among those told
    ("shm", T4X4, {}, "ok", "154"),
    ("shm", T4X4, {"shm": None}, "failure", "/dev/shm doesn't exist"),
    (
        "shm",
        T4X4,
        {"shm": SharedMemory(67108864, 67108864, 154 * MB, "No space left on device")},
        "failure",
        "67 MB of 67 MB free, NCCL may need 154 MB: No space left on device",
    ),
    (
        "shm",
        T4X4,
        {"shm": SharedMemory(67108864, 9, 77 * MB, "No space left on device", ("nccl-aB3dEf",), 57 * MB)},
        "failure",
        "/dev/shm/nccl-aB3dEf and its like: remove them",
    ),
    ("shm", T4X4, {"shm": SharedMemory(9**12, 9**12, MB, None, ("nccl-a", "nccl-b"), MB)}, "warning", "2 nccl-* files"),
    ("shm", T4X4, {"shm": SharedMemory(200 * MB, 200 * MB, 154 * MB)}, "warning", "perhaps not for a second one"),
    ("memlock", T4X4, {}, "ok", "unlimited"),
    ("memlock", T4X4, {"memlock": 65536}, "info", "64 KiB"),
    ("memlock", T4X4, {"memlock": 65536, "rdma": ("mlx5_0",)}, "warning", "mlx5_0"),
    ("memlock", T4X4, {"memlock": None}, "info", "can't be known"),
    ("versions", T4X4, {}, "ok", "driver 580.95.05 (CUDA 13.0)"),
    ("versions", T4X4, {"versions": None}, "info", "no lmdeploy"),
    ("versions", T4X4, {"versions": Versions("2.9", None)}, "info", "torch's CUDA unknown"),
    ("versions", T4X4, {"versions": Versions("2.8", "12.8", "2.27", (13,))}, "warning", "nvidia-nccl-cu13"),
    ("versions", T4X4, {"versions": Versions("3.0", "13.2")}, "info", "minor version compatibility"),
    ("versions", T4X4, {"versions": Versions("4.0", "14.0")}, "failure", "driver of a newer branch"),
    (
        "versions",
        replace(T4X4, driver="515.86.01", cuda="11.7"),
        {},
        "failure",
        "CUDA 12 needs driver 525.60.13 or newer",
    ),
    ("versions", replace(T4X4, driver="515.86.01", cuda="12.8"), {}, "info", "cuda-compat"),
    ("libnccl", T4X4, {}, "ok", "/x/libnccl.so.2"),
    ("libnccl", T4X4, {"libnccl": ()}, "info", "no libnccl"),
    ("libnccl", T4X4, {"libnccl": ("/a/libnccl.so.2", "/b/libnccl.so.2")}, "warning", "/a/libnccl.so.2, /b/libnccl"),
    ("fabric", T4X4, {}, "ok", "no NVSwitch in sight"),
    ("fabric", A100X8, {}, "failure", "nv-fabricmanager doesn't run"),
    ("fabric", A100X8, {"fabric_manager": True}, "ok", "no fabric state"),
    ("fabric", A100X8, {"fabric_manager": None, "container": "docker"}, "info", "not in sight in this container"),
    ("fabric", A100X8, {"virtual": True}, "info", "in this virtual machine"),
    ("fabric", T4X4, {"nvswitches": ("0000:c1:00.0",)}, "failure", "error 802"),
    ("fabric", A100X8, {"gpus": fabric("completed")}, "ok", "no proof"),
    ("fabric", A100X8, {"gpus": fabric("not started")}, "failure", "error 802"),
    (
        "fabric",
        A100X8,
        {"gpus": fabric("in progress"), "fabric_manager": True},
        "failure",
        "GPU7: fabric registration in",
    ),
    ("fabric", A100X8, {"gpus": fabric("completed", "Insufficient Resources")}, "failure", "Insufficient Resources"),
    ("fabric", A100X8, {"gpus": fabric("not supported"), "fabric_manager": True}, "ok", "NVSwitch"),
    ("fabric", ALONE, {"gpus": gpus(ALONE, fabric=FabricState("not started"))}, "failure", "GPU0"),
    (
        "acs",
        T4X4,
        {"paths": paths(0, 0, 0, 0)},
        "warning",
        "between GPU0-GPU2, GPU0-GPU3, GPU1-GPU2, GPU1-GPU3: bridges",
    ),
    ("acs", T4X4, {}, "ok", "off on every bridge"),
    ("acs", RTX, {"paths": paths(0, 0)}, "info", "a virtual machine or container hides"),
    ("acs", A100X8, {"paths": {}}, "ok", "no two GPUs"),
    ("acs", ALONE, {"paths": {}}, "ok", "no two GPUs"),
    ("acs", T4X4, {"paths": {}}, "info", "GPU0-GPU1"),
    ("iommu", T4X4, {}, "ok", "off"),
    (
        "iommu",
        T4X4,
        {"kernel_arguments": "iommu=pt quiet", "paths": paths(0, 0, 0, 0, kind="identity")},
        "ok",
        "iommu=pt",
    ),
    ("iommu", T4X4, {"paths": paths(0, 0, 0, 0, kind="DMA-FQ")}, "warning", "translates for GPU0, GPU1, GPU2, GPU3"),
    ("iommu", A100X8, {"paths": {A100X8.gpus[0].bus_id: PciPath((), "DMA")}}, "info", "P2P isn't concerned"),
    ("iommu", T4X4, {"iommus": ("dmar0",)}, "info", "dmar0"),
    ("iommu", T4X4, {"virtual": True}, "info", "the host's can't be seen"),
    ("iommu", T4X4, {"kernel_arguments": None}, "info", "can't be known"),
    ("equal_gpus", T4X4, {}, "ok", "Tesla T4, 15360 MiB, sm 7.5"),
    ("equal_gpus", MIXED, {}, "warning", "GPU3: NVIDIA L4"),
    ("mig", T4X4, {}, "ok", "off"),
    ("mig", SLICED, {}, "warning", "on: GPU3"),
    ("wsl", T4X4, {}, "ok", "6.8.0"),
    ("wsl", T4X4, {"kernel": "5.15.167.4-microsoft-standard-WSL2"}, "warning", "cuda-ipc"),
    ("wsl", T4X4, {"kernel": None}, "info", "can't be read"),
    ("container", T4X4, {}, "info", "none in sight"),
    ("container", T4X4, {"container": "kubernetes"}, "info", "kubernetes"),
    ("busy", T4X4, {}, "ok", "nobody else"),
    ("busy", T4X4, {"gpus": {}}, "info", "GPU0, GPU1, GPU2, GPU3"),
    ("busy", T4X4, {"gpus": gpus(used_mib=9000)}, "warning", "GPU0 9000 MiB by nobody in sight"),
    ("busy", T4X4, {"gpus": gpus(used_mib=5, users=(User(7, "python3", 5),))}, "warning", "python3 (pid 7)"),
    ("busy", T4X4, {"gpus": gpus(used_mib=5, users=(User(7, None, 5),) * 6)}, "warning", "and 2 more"),
    ("persistence", T4X4, {}, "ok", "on"),
    ("persistence", T4X4, {"gpus": gpus(persistence=False)}, "info", "off: GPU0"),
    ("persistence", T4X4, {"gpus": {}}, "info", "doesn't tell"),
    ("xid", T4X4, {}, "ok", "no Xid"),
    ("xid", T4X4, {"log": KernelLog(why_not="no permission")}, "info", "no permission"),
    ("xid", T4X4, {"log": KernelLog((), "/dev/kmsg", driver=False)}, "info", "no line of the NVIDIA driver"),
    ("xid", T4X4, {"log": KernelLog((), "/dev/kmsg", whole=False)}, "info", "beginning is overwritten"),
]


@pytest.mark.parametrize(
    ("check", "machine", "changes", "level", "words"),
    CASES,
    ids=[f"{case[0]}-{case[3]}-{n}" for n, case in enumerate(CASES)],
)
def test_rule(check, machine, changes, level, words):
    found = CHECKS[check](healthy(machine, **changes), machine)
    assert (found.check, found.level) == (check, level), found.text
    assert words in found.text
    if level in ("warning", "failure"):
        assert found.consequence
        assert found.remedy


@pytest.mark.parametrize("check", CHECKS)
def test_of_an_unknown_host_nothing_is_ok_but_what_the_machine_tells(check):
    """What can't be known is never silently ok."""
    found = CHECKS[check](Facts(), T4X4)
    assert found.level != "ok" or check in ("equal_gpus", "mig", "fabric"), found.text


def test_acs_names_the_pairs_and_the_bridge_that_they_pass():
    """Of two GPUs behind one switch only its downstream ports count; what is above is passed by neither."""
    facts = healthy(T4X4, paths=paths(0x05, 0, 0, 0))
    only = replace(T4X4, gpus=T4X4.gpus[:2])
    found = CHECKS["acs"](facts, only)
    assert found.words == "ACS is on between GPU0-GPU1: bridges 0000:3b:00.0 (SrcValid+ ReqRedir+)"
    assert "setpci -s 0000:3b:00.0 ECAP_ACS" in found.remedy
    clean = CHECKS["acs"](healthy(T4X4, paths=paths(0, 0, 0, 0)), only)
    assert clean.level == "ok"
    unread = CHECKS["acs"](healthy(T4X4, paths=paths(None, 0, 0, 0), acs_source="needs root"), only)
    assert (unread.level, unread.words) == ("info", "not known for GPU0-GPU1: needs root")


OURS, OTHER = "PCI:0000:5e:00", "PCI:0000:99:00"


@pytest.mark.parametrize(
    ("lines", "level", "words"),
    [
        # Consequences stand before their cause in the log, and after it: the cause is told either way.
        (
            [
                f"[ 9.1] NVRM: Xid ({OURS}): 45, pid=1, name=x, Ch 8",
                f"[ 9.2] NVRM: Xid ({OURS}): 79, GPU has fallen off",
            ],
            "failure",
            "Xid 79 on 0000:5e:00 (GPU1) 9 s after boot: GPU has fallen off the bus (first by cause, and 1 more",
        ),
        (
            [
                "[ 5.0] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 46 sourcequeue",
                f"[ 5.1] NVRM: Xid ({OURS}): 62, 1234",
                f"[ 5.2] NVRM: Xid ({OURS}): 45, pid=9, name=VLLM::Worker",
            ],
            "failure",
            "SXid 24007 on 0000:c1:00 5 s after boot: Fatal, Link 46",
        ),
        ([f"NVRM: Xid ({OURS}): 13, Graphics Exception", f"NVRM: Xid ({OURS}): 31, MMU Fault"], "warning", "Xid 31 on"),
        (["x: SXid (PCI:0000:c1:00.0): 19084, Non-fatal, Link 1"], "warning", "SXid 19084"),
        ([f"NVRM: Xid ({OTHER}): 79, GPU has fallen off the bus."], "warning", "none of this run's GPUs"),
        (
            [f"NVRM: Xid ({OTHER}): 79, gone", f"NVRM: Xid ({OURS}): 43, pid=1"],
            "warning",
            "Xid 43 on 0000:5e:00 (GPU1)",
        ),
        (["NVRM: Xid (PCI:00000000:5E:00.0): 119, Timeout"], "failure", "(GPU1)"),
    ],
)
def test_xids(lines, level, words):
    found = CHECKS["xid"](healthy(T4X4, log=log_of(*lines)), T4X4)
    assert found.level == level, found.text
    assert words in found.words


def test_mapped_libraries(tmp_path):
    """Links and hard links to one file are one copy; two files in one process are a failure."""
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    (tmp_path / "link").symlink_to("one")
    (tmp_path / "hard").hardlink_to(tmp_path / "one")
    same = [str(tmp_path / name) for name in ("one", "link", "hard", "one")]
    assert finding_for_mapped(same).level == "ok"
    both = finding_for_mapped([*same, str(tmp_path / "two")])
    assert both.level == "failure"
    assert "2 copies" in both.words
    assert finding_for_mapped(["/nowhere/libnccl.so.2"]).level == "ok"
    assert finding_for_mapped([]).level == "info"


def test_what_a_process_has_mapped(tmp_path):
    """Of real processes: the one with two different files counts, a copy under two names is one."""
    for name, text in (("a", "1"), ("b", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "libnccl.so.2").write_text(text)
    (tmp_path / "b" / "libnccl.so.2.28.9").hardlink_to(tmp_path / "b" / "libnccl.so.2")
    code = (
        "import mmap, sys\n"
        "files = [open(path) for path in sys.argv[1:]]\n"
        "kept = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files]\n"
        "print(); sys.stdin.read()"
    )
    files = [str(tmp_path / name) for name in ("a/libnccl.so.2", "b/libnccl.so.2", "b/libnccl.so.2.28.9")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([sys.executable, "-c", code, *files[1:]], **pipes) as one,
        subprocess.Popen([sys.executable, "-c", code, *files], **pipes) as two,
    ):
        one.stdout.readline(), two.stdout.readline()
        gone = 2**22 + 1  # beyond the largest pid
        assert len(mapped_libnccl(mapped_files([one.pid, gone])[0].values())) == 1
        assert mapped_libnccl(mapped_files([two.pid, one.pid])[0].values()) == tuple(files[:2])
        one.stdin.close(), two.stdin.close()
    assert mapped_libnccl(mapped_files([gone])[0].values()) == ()
