"""`fake_nvml`: a libnvidia-ml.so.1 compiled here, loaded through pynvml's own ctypes calls, answering from a text."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from fixtures.machine.machine import Machine

LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
STATUSES = {"OK": 0, "CNS": 1, "GNS": 2, "TNS": 3, "DR": 4, "NS": 5, "U": 6}
NVLINK_TO_GPU, NVLINK_TO_SWITCH = 0, 2


def mask_words(ranges: str | None) -> dict[int, int]:
    """A CPU list such as "0-15,32-47" as 64-bit words by place."""
    words: dict[int, int] = {}
    for part in (ranges or "").split(",") if ranges else []:
        first, _, last = part.partition("-")
        for bit in range(int(first), int(last or first) + 1):
            words[bit // 64] = words.get(bit // 64, 0) | 1 << bit % 64
    return words


def description(machine: Machine, *, nvswitch: bool = False) -> list[str]:
    """What the library answers for this machine, for fake_nvml.c; with `nvswitch`, NV# means links to switches."""
    assert machine.cuda
    major, minor = machine.cuda.split(".")
    lines = [f"driver {machine.driver}", f"cuda {int(major) * 1000 + int(minor) * 10}"]
    lines += [  # bus ids in lower case: NVML doesn't promise the case
        f"gpu {gpu.uuid} {gpu.bus_id.lower()} {gpu.memory_mib << 20} 0 {450 << 20} -1 0 {gpu.name}"
        for gpu in machine.gpus
    ]
    for i, gpu in enumerate(machine.gpus):
        lines += [f"cpus {i} {place} {word}" for place, word in mask_words(gpu.cpus).items()]
        lines += [f"numa {i} {place} {word}" for place, word in mask_words(gpu.numa).items()]
        ends: list[str] = []
        for j, word in enumerate(machine.links[i]):
            if i == j:
                continue
            lines.append(f"level {i} {j} {LEVELS.get(word, LEVELS['SYS'])}")
            lines += [f"p2p {i} {j} {capability} {STATUSES[machine.peer_words[i][j]]}" for capability in (0, 1)]
            if word.startswith("NV") and nvswitch:
                ends = [f"{NVLINK_TO_SWITCH} 00000000:C1:00.0"] * int(word[2:])
            elif word.startswith("NV"):
                ends += [f"{NVLINK_TO_GPU} {machine.gpus[j].bus_id}"] * int(word[2:])
        lines += [f"nvlink {i} {link} {end}" for link, end in enumerate(ends)]
    return lines


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the compiled library; its folder holds nothing else."""
    if not (gcc := shutil.which("gcc")):
        pytest.skip("no gcc here to compile the fake libnvidia-ml.so.1")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run([gcc, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    return library


@pytest.fixture
def fake_nvml(
    fake_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[list[str]], Path]]:
    """Call it with a description's lines to make that the machine; checks at the end that NVML was closed again."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", lambda name: ctypes.CDLL(str(fake_library.with_name(name))))
    text = tmp_path / "description"

    def become(lines: list[str]) -> Path:
        text.write_text("".join(f"{line}\n" for line in lines))
        monkeypatch.setenv("FAKE_NVML", str(text))
        return text

    yield become
    assert ctypes.CDLL(str(fake_library)).fake_open_count() == 0, "NVML was left open"
