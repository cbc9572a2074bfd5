"""Measuring hosts: hand-made trees, folders instead of /dev/shm, and this very host."""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.interpreter.help_flags import Flags
from fixtures.interpreter.probe import Lmdeploy
from fixtures.machine import shm
from fixtures.machine.facts import UNLIMITED, GpuState, Xid
from fixtures.machine.gather import container_kind, gather, memlock
from fixtures.machine.kernel_log import read
from fixtures.machine.libraries import libnccl_copies, nccl_cuda_majors
from fixtures.machine.nvml import read_machine
from fixtures.machine.reading import run_command
from fixtures.nccl.segments import SEGMENT, bytes_needed
from fixtures.preflight.rules import CHECKS
from fixtures.rehearsal.nodes import load_node
from tests.unit.machine.trees import add_device, nothing, write

T4X4 = load_node("t4x4")
PAIR = replace(T4X4, gpus=T4X4.gpus[:2])
KMSG = (
    "6,{first},0,-;Linux version 6.8\n"
    "4,901,9100000,-;NVRM: Xid (PCI:0000:3B:00): 45, pid=1, name=python3, Ch 8\n SUBSYSTEM=pci\n"
    "4,902,9200000,-;NVRM: Xid (PCI:0000:3B:00): 79, GPU has fallen off the bus.\n"
)


def test_nccl_segment():
    """The size that NCCL prints when a segment can't be had, in the report of a pod with 64 MB."""
    assert SEGMENT == 9_637_888
    assert bytes_needed(1) == 0
    # docker's default has been seen to be too little for two ranks, and is for four.
    assert 64 << 20 < bytes_needed(2) == bytes_needed(4) // 2


def test_a_real_allocation_leaves_nothing(tmp_path):
    found = shm.measure(tmp_path, 8 << 20, tmp_path)
    assert found.refused is None
    assert found.wanted == 8 << 20 <= found.free <= found.total
    assert list(tmp_path.iterdir()) == []


def test_more_than_is_free_is_refused_and_never_tried(tmp_path, monkeypatch):
    """To fill the file system, for however short a time, would break others' programs."""
    monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: pytest.fail("tried"))
    space = os.statvfs(tmp_path)
    found = shm.measure(tmp_path, space.f_blocks * space.f_frsize + (1 << 30), tmp_path)
    assert found.refused == "No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_what_the_file_system_promises_is_not_believed(tmp_path, monkeypatch):
    """A quota or a control group shows only when the space is really asked for."""

    def refuse(descriptor, offset, size):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert shm.measure(tmp_path, 1 << 20, tmp_path).refused == "Disk quota exceeded"
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_size_limit_of_the_kernel_itself(tmp_path):
    """The real call's refusal: no file may grow beyond RLIMIT_FSIZE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        assert shm.refusal(tmp_path, 1 << 20) == "File too large"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_nameless_files(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "O_TMPFILE", os.O_CREAT | os.O_DIRECTORY | os.O_EXCL)
    assert shm.refusal(tmp_path, 1 << 16) is None
    assert shm.refusal(tmp_path / "missing", 1) == "No such file or directory"
    assert list(tmp_path.iterdir()) == []


def test_no_folder(tmp_path):
    assert shm.measure(tmp_path / "shm", 1, tmp_path) is None


def test_stale_files_are_those_that_nobody_has_mapped(tmp_path):
    folder = tmp_path / "dev/shm"
    for name in ("nccl-living", "nccl-stale1", "torch_4711"):
        write(folder, name, "x" * 5000)
    write(tmp_path, "proc/12/maps", "7f00-7f01 rw-s 0000 00:1a 77   /dev/shm/nccl-living\n7f02-7f03 r-xp libc.so.6\n")
    names, size = shm.stale_files(folder, tmp_path / "proc")
    assert names == ("nccl-stale1",)
    assert 5000 <= size <= 1 << 16


def test_what_a_tree_tells(tmp_path):
    add_device(tmp_path, "0000:c1:00.0", vendor="0x10de", **{"class": "0x068000"})
    add_device(tmp_path, "0000:c2:00.0", vendor="0x10de", **{"class": "0x030200"})
    write(tmp_path, "sys/class/iommu/dmar0/x", "")
    write(tmp_path, "sys/class/infiniband/mlx5_0/x", "")
    write(tmp_path, "proc/cmdline", "quiet intel_iommu=on\n")
    write(tmp_path, "proc/cpuinfo", "flags\t\t: fpu hypervisor lahf_lm\n")
    write(tmp_path, "proc/sys/kernel/osrelease", "5.15-microsoft-standard-WSL2\n")
    write(tmp_path, "proc/812/comm", "nv-fabricmanage\n")
    write(tmp_path, "dev/kmsg", KMSG.format(first=0))
    facts = gather(
        PAIR, None, 2, root=tmp_path, environment={}, command=nothing, ask_gpus=lambda gpus: {"u": GpuState("9.0")}
    )
    assert facts.nvswitches == ("0000:c1:00.0",)
    assert facts.iommus == ("dmar0",)
    assert facts.rdma == ("mlx5_0",)
    assert facts.kernel_arguments == "quiet intel_iommu=on"
    assert facts.virtual
    assert facts.kernel == "5.15-microsoft-standard-WSL2"
    assert facts.fabric_manager is True
    assert facts.gpus == {"u": GpuState("9.0")}
    assert facts.shm is None
    assert [xid.number for xid in facts.log.xids] == [45, 79]
    assert "Xid 79 on 0000:3b:00 (GPU0)" in CHECKS["xid"](facts, PAIR).words


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/1/cgroup": "0::/kubepods/besteffort/pod1"}, {}, "kubernetes"),
        ({"proc/1/cgroup": "12:devices:/docker/0123"}, {}, "docker"),
        ({"proc/1/cgroup": "0::/init.scope"}, {}, None),
    ],
)
def test_container(tmp_path, files, environment, kind):
    for path, text in files.items():
        write(tmp_path, path, text)
    assert container_kind(tmp_path, environment) == kind


def test_a_container_may_hide_the_fabric_manager(tmp_path):
    def runs(root):
        return gather(PAIR, None, 2, root=root, environment={}, command=nothing, ask_gpus=lambda g: {}).fabric_manager

    assert runs(tmp_path) is False
    write(tmp_path, ".dockerenv", "")
    assert runs(tmp_path) is None


def test_kernel_log_records(tmp_path):
    write(tmp_path, "dev/kmsg", KMSG.format(first=0))
    log = read(tmp_path, nothing)
    assert (log.source, log.whole, log.driver) == ("/dev/kmsg", True, True)
    assert log.xids[1] == Xid("Xid", 79, "0000:3b:00", "GPU has fallen off the bus.", 9.2)


def test_kernel_log_whose_beginning_is_gone(tmp_path):
    """The journal may have kept it; where there is none, what is left is told as a part."""
    write(tmp_path, "dev/kmsg", KMSG.format(first=900))
    assert read(tmp_path, nothing).whole is False
    journal = "[    3.000001] h kernel: NVRM: Xid (PCI:0000:5E:00): 31, MMU Fault\n"
    log = read(tmp_path, lambda argv: journal if argv[0] == "journalctl" else None)
    assert (log.source, [(xid.number, xid.seconds) for xid in log.xids]) == ("journalctl", [(31, 3.000001)])


def test_kernel_log_of_dmesg_or_of_nobody(tmp_path):
    log = read(tmp_path, lambda argv: "[1.5] usb 1-1: new device\n" if argv[0] == "dmesg" else None)
    assert (log.source, log.driver, log.xids) == ("dmesg", False, ())
    assert "no permission" in read(tmp_path, nothing).why_not


def lmdeploy_in(prefix: Path) -> Lmdeploy:
    site = prefix / "lib/python3.10/site-packages"
    return Lmdeploy(str(prefix / "bin/python"), "0.9.0", Flags({}, {}), folder=str(site / "lmdeploy"))


def test_copies_of_libnccl(tmp_path):
    """The wheel's, one in LD_LIBRARY_PATH, and one that ldconfig knows; a link and its target are one."""
    prefix, root, extra = tmp_path / "venv", tmp_path / "root", tmp_path / "extra"
    site = prefix / "lib/python3.10/site-packages"
    write(site, "nvidia/nccl/lib/libnccl.so.2", "wheel")
    write(site, "nvidia_nccl_cu12-2.27.3.dist-info/METADATA", "")
    write(site, "nvidia_nccl_cu13-2.28.9.dist-info/METADATA", "")
    lmdeploy = lmdeploy_in(prefix)
    assert libnccl_copies(lmdeploy, {}, root) == (str(site / "nvidia/nccl/lib/libnccl.so.2"),)
    assert nccl_cuda_majors(lmdeploy) == (12, 13)
    write(extra, "libnccl.so.2.18.1", "other")
    (extra / "libnccl.so.2").symlink_to("libnccl.so.2.18.1")
    write(root, "etc/ld.so.conf.d/cuda.conf", "# cuda\n/opt/cuda/lib64\n")
    write(root, "opt/cuda/lib64/libnccl.so.2", "third")
    found = libnccl_copies(lmdeploy, {"LD_LIBRARY_PATH": f"{extra}::relative"}, root)
    assert [Path(path).parent.name for path in found] == ["extra", "lib64", "lib"]
    assert libnccl_copies(None, {}, tmp_path / "empty") == ()


def test_memlock(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memlock() == UNLIMITED
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65536, 65536))
    assert memlock() == 65536


def test_programs(tmp_path):
    assert run_command(["no-such-program-here"]) is None
    assert run_command(["false"]) is None
    assert run_command(["echo", "here"]) == "here\n"


def test_this_host():
    """Whatever it is: facts and findings come, and /dev/shm is as it was."""
    machine = read_machine()
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    facts = gather(machine, None, 2)
    findings = [rule(facts, machine) for rule in CHECKS.values()]
    assert [found.check for found in findings] == list(CHECKS)
    assert facts.kernel == os.uname().release
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert not {name for name in after - before if name.startswith("preflight-")}
