"""The PCI tree above each GPU: real configuration space bytes, chains of bridges, lspci's words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.machine.facts import Bridge, PciPath
from fixtures.machine.gather import gather
from fixtures.machine.pci import acs_control, acs_words, parse_lspci
from fixtures.preflight.rules import CHECKS
from fixtures.rehearsal.nodes import load_node
from tests.unit.machine.trees import add_device, config_space, nothing, write

T4X4 = load_node("t4x4")
PAIR = replace(T4X4, gpus=T4X4.gpus[:2])


@pytest.mark.parametrize("acs", [0x00, 0x01, 0x1D, 0x5F])
def test_acs_register_of_a_configuration_space(acs):
    assert acs_control(config_space(acs)) == acs


def test_configuration_spaces_without_acs():
    assert acs_control(config_space(None)) == 0
    assert acs_control(config_space(0x1D)[:256]) == 0  # conventional PCI
    assert acs_control(config_space(0x1D)[:64]) is None  # what the kernel shows without root
    assert acs_control(b"") is None
    assert acs_control(config_space(None)[:256] + bytes(4096 - 256)) == 0
    assert acs_control(b"\xff" * 4096) == 0  # fallen off the bus
    loop = bytearray(4096)
    loop[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert acs_control(bytes(loop)) == 0


def test_acs_words():
    assert acs_words(0x1D) == "SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+"


def test_lspci():
    text = (
        "0000:3a:00.0 PCI bridge: PLX\n\tCapabilities: [f24 v1] Access Control Services\n"
        "\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+\n"
        "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ DirectTrans-\n"
        "0000:3b:00.0 3D controller: NVIDIA\n\tCapabilities: <access denied>\n0000:3c:00.0 Host bridge\n"
    )
    assert parse_lspci(text) == {"0000:3a:00.0": 0x0D, "0000:3b:00.0": None, "0000:3c:00.0": 0}


def test_paths_up_to_the_root(tmp_path):
    """Both GPUs behind one switch: its upstream port is shared, and one downstream port redirects."""
    add_device(tmp_path, "0000:3a:00.0", config=config_space(0x1D))
    for bus, acs in (("3b", 0x1D), ("5d", 0)):
        add_device(tmp_path, "0000:3a:00.0", f"0000:{bus}:08.0", config=config_space(acs))
    chains = [("0000:3a:00.0", f"0000:{one}:08.0", f"0000:{two}:00.0") for one, two in (("3b", "3b"), ("5d", "5e"))]
    for chain in chains:
        gpu = add_device(tmp_path, *chain, config=config_space(0))
        write(tmp_path, "sys/kernel/iommu_groups/7/type", "DMA-FQ\n")
        (gpu / "iommu_group").symlink_to(tmp_path / "sys/kernel/iommu_groups/7")
    facts = gather(PAIR, None, 2, root=tmp_path, environment={}, command=nothing, ask_gpus=lambda gpus: {})
    shared = Bridge("0000:3a:00.0", 0x1D)
    assert facts.paths == {
        "00000000:3B:00.0": PciPath((shared, Bridge("0000:3b:08.0", 0x1D)), "DMA-FQ"),
        "00000000:5E:00.0": PciPath((shared, Bridge("0000:5d:08.0", 0)), "DMA-FQ"),
    }
    assert CHECKS["acs"](facts, PAIR).words == (
        "ACS is on between GPU0-GPU1: bridges 0000:3b:08.0 (SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+)"
    )
    assert CHECKS["iommu"](facts, PAIR).level == "warning"


def test_registers_that_only_lspci_may_read(tmp_path):
    for port, gpu in (("3a", "3b"), ("5d", "5e")):
        add_device(tmp_path, f"0000:{port}:00.0", config=config_space(0x1D)[:64])
        add_device(tmp_path, f"0000:{port}:00.0", f"0000:{gpu}:00.0", config=config_space(0)[:64])
    asked = []

    def lspci(argv):
        asked.append(argv[0])
        return "0000:3a:00.0 PCI bridge\n\tACSCtl: SrcValid+\n0000:5d:00.0 PCI bridge\n" if argv[0] == "lspci" else None

    def ask(command):
        return gather(PAIR, None, 2, root=tmp_path, environment={}, command=command, ask_gpus=lambda gpus: {})

    told = ask(lspci)
    assert "lspci" in asked
    assert [bridge.acs for path in told.paths.values() for bridge in path.bridges] == [1, 0]
    assert told.acs_source is None
    unknown = ask(nothing)
    assert CHECKS["acs"](unknown, PAIR).level == "info"
    assert "without root" in CHECKS["acs"](unknown, PAIR).words
