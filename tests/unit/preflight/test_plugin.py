"""pytest -m multigpu on emulated hosts: what fails, what is told, and what never happens."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

import fixtures.preflight.plugin as plugin
from fixtures.matrix import Cell, Configuration
from fixtures.preflight.facts import SharedMemory
from fixtures.preflight.rules import CHECKS
from fixtures.preflight.shm import SEGMENT, bytes_needed
from fixtures.rehearsal.nodes import NODES, load_facts, load_node, node_names
from fixtures.run import Run, ServerSettings
from tests.unit.run.conftest import Project

BAD_HOST = """
[host]
shm_total_mib = 64
shm_free_mib = 3
memlock_kib = 64
rdma = ["mlx5_0"]
libnccl = ["/a/libnccl.so.2", "/b/libnccl.so.2"]
acs = [0, 1]
iommu = "DMA"
xid = ["NVRM: Xid (PCI:0000:02:00): 45, Ch 1", "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."]
busy_mib = [0, 9000]
persistence = false
container = "docker"
"""
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


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path / "project")
    yield made
    made.end()


@pytest.fixture
def bad_node(project):
    text = (NODES / "rtx4090x2.toml").read_text()
    (project.folder / "bad.toml").write_text(text + BAD_HOST)
    return project


def test_a_bad_host(bad_node):
    """Failures fail with a line each for what, consequence and remedy; warnings and infos pass and are told."""
    code, output = bad_node.run("--rehearse", "--node=./bad.toml", "-m", "multigpu", "tests/multigpu/test_preflight.py")
    assert code == 1, output
    failed, passed = [name for name, level in LEVELS.items() if level == "failure"], len(LEVELS) - 2
    assert f"2 failed, {passed} passed" in output
    assert set(re.findall(r"^FAILED .*\[(\w+)\]", output, re.M)) == set(failed)
    [section] = re.findall(
        r"^=+ preflight \(REHEARSAL: the emulated host of node bad\) =+$(.*?)^[=F]", output, re.M | re.S
    )
    told = re.findall(r"^(failure|warning|info) (\w+): ", section, re.M)
    assert (
        dict((check, level) for level, check in told)
        | dict.fromkeys(re.findall(r"\w+", section.rpartition("ok: ")[2]), "ok")
        == LEVELS
    )
    assert [level for level, _ in told] == sorted((level for level, _ in told), key="failure warning info".index)
    failure = output.partition("test_preflight[shm]")[2]
    assert "shm: /dev/shm has 3 MB of 67 MB free, NCCL may need 77 MB: No space left on device" in failure
    assert "consequence: NCCL fails at start" in failure
    assert "remedy: docker --shm-size=16g or --ipc=host" in failure
    report = json.loads(bad_node.report_json.read_text())
    assert {test["outcome"] for test in report["tests"]} == {"passed", "failed"}
    assert not bad_node.processes()


@pytest.mark.parametrize("node", node_names())
def test_the_nodes_are_healthy(node):
    """By default a rehearsal's host has nothing to warn of."""
    machine = load_node(node)
    facts = load_facts(node, len(machine.gpus))
    assert facts.rehearsed
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


@pytest.fixture
def this_run(tmp_path):
    machine = replace(load_node("t4x4"), rehearsed=False)
    return Run(machine, (), None, ServerSettings(), tmp_path)


def test_the_largest_group_counts(this_run):
    """All GPUs, or more ranks than GPUs where they share one; a cell that can't run makes no group."""
    eight = Configuration("turbomind", "nccl", 8, "fp16", gpus=(0,), shared_gpu=True)
    assert plugin.ranks_of(this_run) == 4
    assert plugin.ranks_of(replace(this_run, cells=(Cell(eight, "can't"),))) == 4
    assert plugin.ranks_of(replace(this_run, cells=(Cell(eight),))) == 8


def test_shm_problem(this_run, tmp_path, monkeypatch):
    """For the collectives: one line, or None."""
    sizes = []

    def measured(refused):
        def measure(folder, wanted, proc):
            sizes.append((str(folder), wanted))
            return SharedMemory(67_108_864, 67_108_864, wanted, refused)

        return measure

    monkeypatch.setattr(plugin, "measure", measured("No space left on device"))
    assert plugin.shm_problem(this_run) == (
        "/dev/shm has 67 MB of 67 MB free, NCCL may need 154 MB: No space left on device"
    )
    monkeypatch.setattr(plugin, "measure", measured(None))
    assert plugin.shm_problem(this_run) is None
    assert sizes == [("/dev/shm", bytes_needed(4))] * 2
    assert bytes_needed(4) > 16 * SEGMENT
    monkeypatch.setattr(plugin, "measure", lambda folder, wanted, proc: None)
    assert plugin.shm_problem(this_run) == "/dev/shm doesn't exist"
    (tmp_path / "full.toml").write_text((NODES / "t4x4.toml").read_text() + "\n[host]\nshm_free_mib = 0\n")
    rehearsed = replace(this_run, machine=replace(this_run.machine, rehearsed=True), node=str(tmp_path / "full.toml"))
    assert "0 MB of 68719 MB free" in str(plugin.shm_problem(rehearsed))
    assert plugin.shm_problem(replace(rehearsed, node="t4x4")) is None
