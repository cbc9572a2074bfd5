"""--plan and --list-faults: text, and nothing started."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

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
            assert what == f"skipped: needs {size} GPUs, this machine has {have}"
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


def test_list_faults(inner):
    """A line each: the name, and what it does."""
    code, text, errors = inner("--list-faults")
    assert (code, errors) == (0, "")
    assert [line.split()[0] for line in text.splitlines()] == fault_names()
    assert all(len(line.split()) > 3 for line in text.splitlines())
    assert inner.started == []
