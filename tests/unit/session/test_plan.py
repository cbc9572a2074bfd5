"""--plan and --list-faults: text, and nothing started."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fixtures.collective.under_test.operations import OPERATIONS
from fixtures.rehearsal.faults import fault_names
from fixtures.rehearsal.nodes import load_node, node_names


def commands(text: str) -> dict[str, list[str]]:
    """The plan's command lines by configuration id, as a shell would split them; several members' lines together."""
    blocks = re.findall(r"^# (\S+)\n((?:(?!#).+\n?)+)", text, re.MULTILINE)
    return {name: shlex.split(lines) for name, lines in blocks}


def table(text: str) -> dict[str, str]:
    """What the plan's table says to each configuration: GPUs, or `skipped: REASON`."""
    rows = re.findall(r"^((?:turbomind|pytorch)-tp\S+) +(.+)$", text, re.MULTILINE)
    return dict(rows)


@pytest.mark.parametrize("node", node_names())
def test_plan_of_a_node(inner, node):
    code, text, errors = inner("--plan", "--rehearse", f"--node={node}", "--tp=1,2,8")
    assert (code, errors) == (0, "")
    machine = load_node(node)
    assert text.startswith(f"REHEARSAL, machine {node}: driver {machine.driver}, CUDA {machine.cuda}, NCCL ")
    assert f"lmdeploy {machine.lmdeploy} (" in text.splitlines()[0]
    rows, lines = table(text), commands(text)
    have = len(machine.gpus)
    for name, what in rows.items():
        size = int(re.findall(r"-tp(\d+)-", name)[0])
        if size > have:
            assert what == f"skipped: needs {size} GPUs, this machine has {have}; try --oversubscribe"
            assert name not in lines
        elif not what.startswith("skipped: "):  # an old lmdeploy may lack a flag
            assert len(what.split(",")) == size
            uuids = [machine.gpus[int(index)].uuid for index in what.split(",")]
            assert f"CUDA_VISIBLE_DEVICES={','.join(uuids)}" in lines[name]
            assert lines[name][lines[name].index("--tp") + 1] == str(size)
            assert f"REHEARSAL_NODE={node}" in lines[name]
    assert f"{len(lines)} of {len(rows)} configurations can run here" in text
    # The interpreter under test was asked once; no server, no report.
    assert [Path(argv[1]).name for argv in inner.started] == ["describe.py"]
    assert not Path("reports").exists()


def test_plan_of_the_seed(inner):
    """The seed's machine and default matrix: ids in full, in order, best-linked GPUs."""
    _, text, _ = inner("--plan", "--rehearse")
    assert table(text) == {
        "turbomind-tp1-fp16": "0",
        "turbomind-tp1-awq": "0",
        "turbomind-tp2-fp16-nccl-p2p_on": "1,2",
        "turbomind-tp2-fp16-nccl-p2p_off": "1,2",
        "turbomind-tp2-awq-nccl-p2p_on": "1,2",
        "turbomind-tp2-awq-nccl-p2p_off": "1,2",
        "turbomind-tp2-fp16-cuda_ipc": "1,2",
        "turbomind-tp2-awq-cuda_ipc": "1,2",
        "pytorch-tp1-fp16": "0",
        "pytorch-tp2-fp16-nccl-p2p_on": "1,2",
        "pytorch-tp2-fp16-nccl-p2p_off": "1,2",
    }
    assert "11 of 11 configurations can run here" in text
    lines = commands(text)
    assert list(lines) == list(table(text))
    assert "NCCL_P2P_DISABLE=1" in lines["turbomind-tp2-fp16-nccl-p2p_off"]
    assert not [word for word in lines["turbomind-tp2-fp16-nccl-p2p_on"] if word.startswith("NCCL_P2P")]
    ipc = lines["turbomind-tp2-fp16-cuda_ipc"]
    assert ipc[ipc.index("--communicator") + 1] == "cuda-ipc"


def test_plan_with_the_seeds_own_gpus(inner):
    """The seed ran on GPUs 0 and 1."""
    _, text, _ = inner("--plan", "--rehearse", "--gpus=0,1", "--backend=pytorch", "--tp=2")
    assert table(text) == {"pytorch-tp2-fp16-nccl-p2p_on": "0,1", "pytorch-tp2-fp16-nccl-p2p_off": "0,1"}


def test_plan_with_gpus_in_an_order_of_ones_own(inner):
    """One GPU is the first one; two are the best linked of those given, in the order given; servers see them so."""
    uuids = {gpu.index: gpu.uuid for gpu in load_node("t4x4").gpus}
    _, text, _ = inner("--plan", "--rehearse", "--gpus=3,2,1", "--backend=pytorch", "--p2p=p2p_on")
    assert table(text) == {"pytorch-tp1-fp16": "3", "pytorch-tp2-fp16-nccl-p2p_on": "2,1"}
    for name, indices in {"pytorch-tp1-fp16": [3], "pytorch-tp2-fp16-nccl-p2p_on": [2, 1]}.items():
        assert f"CUDA_VISIBLE_DEVICES={','.join(uuids[index] for index in indices)}" in commands(text)[name]
    words = " ".join(text.split())
    assert "3 pairs (2 SYS, 1 PHB)" in words
    assert "2 groups (GPU3+2+1, GPU2+1)" in words
    assert "6 ordered pairs x peer_write, cuda_ipc waived without peer access: 8" in words


def test_plan_shows_what_the_server_gets(inner):
    """Port, host, more arguments and fault are in the command line."""
    arguments = ["--server-port=4321", "--server-host=0.0.0.0", "--server-args=--log-level INFO"]
    _, text, _ = inner("--plan", "--rehearse", "--tp=1", "--backend=pytorch", "--fault=exit-zero", *arguments)
    [line] = commands(text).values()
    for flag, value in {"--server-port": "4321", "--server-name": "0.0.0.0", "--log-level": "INFO"}.items():
        last = max(place for place, word in enumerate(line) if word == flag)  # which is the one argparse takes
        assert line[last + 1] == value
    [fault] = [word for word in line if word.startswith("REHEARSAL_FAULT=")]
    assert Path(fault.partition("=")[2]).name == "exit-zero.toml"


def test_plan_with_as_many_workers_as_cores(inner):
    """xdist makes a number of `auto` late; the ports of all workers are checked nevertheless."""
    code, _, errors = inner("--plan", "--rehearse", "-n", "auto", "--server-port=65536")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "ports end at 65535" in errors


def test_plan_that_is_oversubscribed(inner):
    """One GPU: tp 2 shares it and says so; P2P arms of the same thing stand once."""
    _, text, _ = inner("--plan", "--rehearse", "--node=h200x1", "--oversubscribe", "--backend=turbomind", "--tp=2")
    rows = table(text)
    assert list(rows) == [
        "turbomind-tp2-fp16-nccl-shared_gpu",
        "turbomind-tp2-awq-nccl-shared_gpu",
        "turbomind-tp2-fp16-cuda_ipc-shared_gpu",
        "turbomind-tp2-awq-cuda_ipc-shared_gpu",
    ]
    assert rows["turbomind-tp2-fp16-nccl-shared_gpu"] == rows["turbomind-tp2-awq-nccl-shared_gpu"] == "0"


#: Options, and what a plan with them must say of the fabric beside the counts of the tests.
FABRICS = {
    ("--rehearse",): (
        "6 pairs (2 NODE, 3 SYS, 1 PHB) x p2p_on, p2p_off, p2p_forced",
        "p2p_forced: only where p2p_on is seen not to use P2P, known at run time: at most 3",
        "p2p_forced: waived without peer access: 3",
        "2 groups (GPU0+1+2+3, GPU1+2)",
        f"x {', '.join(OPERATIONS)}",
        "x thread_per_gpu: p2p_on, p2p_off, p2p_direct_off",
        "12 ordered pairs x peer_write, cuda_ipc waived without peer access: 12",
        "again when a server on several GPUs fails: the pairs among its GPUs, p2p_on, p2p_off",
    ),
    ("--rehearse", "--node=a100x8", "--tp=1", "--p2p=p2p_off", "--serial-pairs"): (
        "28 pairs (28 NV12) x p2p_off one at a time",
        "1 group (GPU0+1+2+3+4+5+6+7)",
    ),
    ("--rehearse", "--p2p=p2p_forced"): (
        "6 pairs (2 NODE, 3 SYS, 1 PHB) x p2p_forced side by side, in rounds p2p_forced: waived without peer access: 3",
        "p2p_forced: waived without peer access: GPU0+1+2+3 peer access",
    ),
    ("--rehearse", "--node=h200x1", "--oversubscribe", "--tp=2,4"): (
        "6 pairs of 4 ranks, same GPU, over sockets x p2p_on, p2p_off side by side",
        "2 groups (GPU0.0+0.1+0.2+0.3, GPU0.0+0.1), same GPU, over sockets",
        "thread_per_gpu: waived: one process can't have two NCCL ranks on one GPU",
        "12 ordered pairs, same GPU x",
    ),
    ("--rehearse", "--node=h200x1"): (
        "fabric skipped: pairs and groups need 2 GPUs, this machine has 1; try --oversubscribe",
    ),
    ("--rehearse", "--node=h200x1", "--oversubscribe", "--p2p=p2p_forced"): (
        "pairs skipped: P2P can't be forced between ranks on one GPU",
        "groups skipped: P2P can't be forced between ranks on one GPU",
    ),
}
#: A part of the plan, and the module of its tests.
FABRIC_PARTS = {"preflight": "preflight", "pairs": "pairs", "groups": "groups", "peer access": "peer_access"}


def test_plan_of_the_fabric(inner, project, monkeypatch):
    """As many tests of each part as a run with the same options collects; lines fit the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = [(*options, "-m", "multigpu") for options in FABRICS]
    for (options, words), (_, nodeids) in zip(FABRICS.items(), project.collect(lines), strict=True):
        _, text, _ = inner("--plan", *options)
        fabric = text.partition("\nconfiguration ")[0].rpartition("\n\n")[2]
        assert max(map(len, fabric.splitlines())) <= 80
        said = " ".join(fabric.split())
        for part, module in FABRIC_PARTS.items():
            tests = [name for name in nodeids if f"/test_{module}.py" in name and "[no_pair" not in name]
            found = re.search(rf"^{part} +(\d+) tests?: ", fabric, re.MULTILINE)
            assert (int(found[1]) if found else 0) == len(tests), (options, part)
        for told in words:
            assert told in said
        assert ("known at run time" in said) == (options == ("--rehearse",))


def test_plan_without_gpus(inner, monkeypatch):
    """The fabric says why it is skipped, as each of its tests would."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, text, _ = inner("--plan")
    assert code == 0
    assert re.search(r"^fabric +skipped: no GPU to use: ", text, re.MULTILINE)
    assert "\npairs" not in text


def test_list_faults(inner):
    """A line each: the name, and what it does."""
    code, text, errors = inner("--list-faults")
    assert (code, errors) == (0, "")
    assert [line.split()[0] for line in text.splitlines()] == fault_names()
    assert all(len(line.split()) > 3 for line in text.splitlines())
    assert inner.started == []
