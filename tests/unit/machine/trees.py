"""Hand-made /proc, /sys and /dev, with real configuration space bytes."""

from __future__ import annotations

from pathlib import Path

from fixtures.machine.facts import Bridge, Facts, GpuState, KernelLog, PciPath, SharedMemory, Versions
from fixtures.machine.kernel_log import xids_in

FREE_GPU = GpuState(capability="7.5", persistence=True, used_mib=0)


def config_space(acs: int | None) -> bytes:
    """4096 bytes: extended capabilities AER, then (unless None) ACS with this control register, then one more."""
    space = bytearray(4096)
    space[0:4] = bytes.fromhex("de10 1af1".replace(" ", ""))
    chain = [(0x100, 0x0001, 2), (0x148, 0x000D, 1), (0x160, 0x0019, 1)]
    if acs is None:
        del chain[1]
    for place, (offset, capability, version) in enumerate(chain):
        following = chain[place + 1][0] if place + 1 < len(chain) else 0
        space[offset : offset + 4] = (capability | version << 16 | following << 20).to_bytes(4, "little")
        if capability == 0x000D:
            space[offset + 4 : offset + 6] = (0x7F).to_bytes(2, "little")  # ACS Capability: it can all of them
            space[offset + 6 : offset + 8] = acs.to_bytes(2, "little")
    return bytes(space)


def add_device(root: Path, *chain: str, config: bytes | None = None, **files: str) -> Path:
    """The device at the end of a chain of addresses, as sysfs has it: a folder in its bridge's, and a link to it."""
    folder = root.joinpath("sys/devices/pci0000:00", *chain)
    folder.mkdir(parents=True, exist_ok=True)
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    link = links / chain[-1]
    if not link.is_symlink():
        link.symlink_to(Path("../../../devices/pci0000:00", *chain))
    if config is not None:
        (folder / "config").write_bytes(config)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    return folder


def nothing(argv: object) -> None:
    """Stands for running a program: none is here."""


def write(root: Path, path: str, text: str) -> None:
    """A file of the tree."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def log_of(*lines: str) -> KernelLog:
    """A kernel log that begins at boot."""
    return KernelLog(tuple(xids_in(lines)), "dmesg")


def healthy(machine, **changes: object) -> Facts:
    """Facts of a host on which every check is satisfied, with some changed."""
    facts: dict[str, object] = {
        "shm": SharedMemory(64 * 10**9, 64 * 10**9, 154 * 10**6),
        "memlock": -1,
        "versions": Versions("2.8.0", "12.8", "2.27.3", (12,)),
        "libnccl": ("/x/libnccl.so.2",),
        "fabric_manager": False,
        "paths": {gpu.bus_id: PciPath((Bridge(f"port of {gpu.index}", 0),)) for gpu in machine.gpus},
        "kernel_arguments": "quiet",
        "gpus": {gpu.uuid: FREE_GPU for gpu in machine.gpus},
        "kernel": "6.8.0-64-generic",
        "log": log_of(),
    }
    return Facts(**(facts | changes))  # type: ignore[arg-type]
