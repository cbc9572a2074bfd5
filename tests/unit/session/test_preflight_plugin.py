"""pytest -m multigpu on emulated hosts: what fails, what is told, and what never happens."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

import fixtures.session.preflight_plugin as plugin
from fixtures.preflight.rules import CHECKS
from fixtures.rehearsal.nodes import NODES, load_facts, load_node, node_names
from tests.conftest import beside
from tests.unit.session.conftest import Project

BAD_HOST = """
[host]
shm_total_mib = 64
shm_free_mib = 3
memlock_kib = 64
rdma = ["mlx5_0"]
libnccl = ["/a/libnccl.so.2", "/b/libnccl.so.2"]
acs = [0, 1, 2]
iommu = "DMA"
xid = [
    "NVRM: Xid (PCI:0000:3B:00): 79, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:5F:00): 45, Ch 1",
    "NVRM: Xid (PCI:0000:5F:00): 79, GPU has fallen off the bus.",
]
busy_mib = [8000, 0, 9000]
persistence = false
container = "docker"
"""
#: Of that host's GPUs, in the order of --gpus=2,1: GPU0 has the same faults, and nobody asked for it.
NAMED = {
    "acs": "ACS is on between GPU2-GPU1: bridges 0000:02:01.0 (SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+), "
    "0000:01:01.0 (SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+)",
    "iommu": "the IOMMU translates for GPU2, GPU1 (group type DMA)",
    "xid": "Xid 79 on 0000:5f:00 (GPU2): GPU has fallen off the bus (first by cause, and 2 more; the rehearsed log)",
    "busy": "in use already: GPU2 9000 MiB by rehearsed (pid 4711)",
    "persistence": "persistence mode is off: GPU2, GPU1",
}
LEVELS = {
    "shm": "failure",
    "memlock": "warning",
    "versions": "ok",
    "libnccl": "warning",
    "fabric": "ok",
    "acs": "warning",
    "iommu": "warning",
    "equal_gpus": "ok",
    "mig": "ok",
    "wsl": "ok",
    "container": "info",
    "xid": "failure",
    "busy": "warning",
    "persistence": "info",
}


@beside(Project)
def test_a_bad_host(project):
    """Failures fail with a line each for what, consequence and remedy; warnings and infos pass and are told."""
    text = (NODES / "t4x4.toml").read_text()
    (project.folder / "bad.toml").write_text(text + BAD_HOST)
    options = ("--rehearse", "--node=./bad.toml", "--gpus=2,1", "-m", "multigpu", "-raP")
    code, output = project.run(*options, "tests/multigpu/test_preflight.py")
    assert code == 1, output
    failed, passed = [name for name, level in LEVELS.items() if level == "failure"], len(LEVELS) - 2
    assert f"2 failed, {passed} passed" in output
    assert set(re.findall(r"^FAILED .*\[(\w+)\]", output, re.M)) == set(failed)
    told = re.findall(r"^  (failure|warning|info): (\w+): ", output, re.M)
    assert {check: level for level, check in told} == {c: level for c, level in LEVELS.items() if level != "ok"}
    assert [level for level, _ in told] == sorted((level for level, _ in told), key="failure warning info".index)
    sections = Counter(re.findall(r"^-+ preflight: (\w+) -+$", output, re.M))
    assert sections == Counter(level for level in LEVELS.values() if level != "failure"), "of the tests that pass"
    failure = output.partition("test_preflight[shm]")[2]
    assert "shm: /dev/shm has 3 MB of 67 MB free, NCCL may need 77 MB: No space left on device" in failure
    assert "consequence: NCCL fails at start" in failure
    assert "remedy: docker --shm-size=16g or --ipc=host" in failure
    report = json.loads(project.report_json.read_text())
    assert {test["outcome"] for test in report["tests"]} == {"passed", "failed"}
    assert {finding["check"]: finding["level"] for finding in report["preflight"]} == LEVELS
    assert {f["check"]: f["words"] for f in report["preflight"] if f["check"] in NAMED} == NAMED
    assert not project.processes()


@pytest.mark.parametrize("node", node_names())
def test_the_nodes_are_healthy(node):
    """By default a rehearsal's host has nothing to warn of."""
    machine = load_node(node)
    facts = load_facts(node, len(machine.gpus))
    found = {check: rule(facts, machine).level for check, rule in CHECKS.items()}
    assert {check for check, level in found.items() if level not in ("ok", "info")} == set()


def test_workers_take_what_the_controller_gathered(this_run, monkeypatch):
    """Under xdist the host is looked at once, before any worker has started a server."""
    asked = []
    monkeypatch.setattr(plugin, "facts_of", lambda run: asked.append(run) or load_facts("t4x4", 4))
    config = Config({plugin.RUN: this_run})
    node = Node(config)
    plugin.pytest_configure_node(node)
    worker = Config({plugin.RUN: this_run}, workerinput=node.workerinput)
    assert plugin._facts(worker, this_run) == load_facts("t4x4", 4)
    assert len(asked) == 1


class Config:
    def __init__(self, stash, **more):
        self.stash = stash
        vars(self).update(more)


class Node:
    def __init__(self, config):
        self.config, self.workerinput = config, {}
