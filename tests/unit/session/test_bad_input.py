"""Bad input: one line that says what is wrong, exit code 4, and nothing started."""

from __future__ import annotations

import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.rehearsal.nodes import NODES

#: Command line → words of the one line. All but the last few are found without asking anything.
LINES = {
    "--rehearse --node=dgx2": "unknown node 'dgx2'; known: a100x8, h200x1, rtx4090x2, t4x4, v100x8, or a TOML file",
    "--rehearse --node=missing.toml": "missing.toml: No such file",
    "--rehearse --node=asymmetric.toml": "links: asymmetric: GPU0-GPU1 is PIX, GPU1-GPU0 is NODE",
    "--rehearse --node=not-toml.toml": "not valid TOML",
    "--node=t4x4": "--node=t4x4 needs --rehearse",
    "-m multigpu --node=t4x4": "--node=t4x4 needs --rehearse",
    "--fault=hang-first-request": "--fault=hang-first-request needs --rehearse",
    "--rehearse --fault=nonsense": "unknown fault 'nonsense'; known: abort-first-request,",
    "--rehearse --fault=missing.toml": "missing.toml: No such file",
    "--rehearse --fault=not-toml.toml": "not valid TOML",
    "--rehearse --backend=vllm": "--backend=vllm: unknown 'vllm'; known: turbomind, pytorch",
    "--rehearse --backend=": "--backend=: unknown ''",
    "--rehearse --communicator=nccl,gloo": "unknown 'gloo'; known: nccl, cuda-ipc",
    "--rehearse --precision=fp8": "unknown 'fp8'; known: fp16, awq",
    "--rehearse --p2p=off": "unknown 'off'; known: p2p_on, p2p_off, p2p_forced",
    "--rehearse --gpus=9": "--gpus=9: '9' is none of this run's GPUs (0, 1, 2, 3; or one's UUID)",
    "--rehearse --gpus=0,0": "GPU 0 is named twice",
    "--rehearse --gpus=": "--gpus=: '' is none",
    # A fault on GPUs that the run doesn't use could never show.
    "--rehearse --node=a100x8 --gpus=5,6,7 --fault=lying-peer-access": (
        "--fault=lying-peer-access: [[fabric]] 1: node a100x8 with --gpus=5,6,7 has no GPU1"
    ),
    "--rehearse --gpus=1,0 --fault=broken-fabric": "[[fabric]] 1: node t4x4 with --gpus=1,0 has no GPU2",
    "--rehearse --gpus=3,1 --fault=group-hang": "node t4x4 with --gpus=3,1 has no 3 GPUs for ranks_min",
    "--rehearse --node=h200x1 --fault=pair-hang": "--fault=pair-hang: [[fabric]] 1: node h200x1 has no GPU1",
    "--rehearse --gpus=9 --fault=pair-hang": "--gpus=9: '9' is none of this run's GPUs",
    "--rehearse --architecture=opt": "opt",
    "--rehearse --tp=3": "--tp=3: '3' is not a power of two",
    "--rehearse --tp=0": "'0' is not a power of two",
    "--rehearse --tp=²": "'²' is not a power of two",
    f"--rehearse --tp=1{'0' * 5000}": "is not a power of two",
    "--rehearse --node=": "unknown node ''",
    "--node=": "--node= needs --rehearse",
    "--rehearse --fault=": "unknown fault ''",
    "--fault=": "--fault= needs --rehearse",
    "--rehearse --model=": "--model can't go with --rehearse",
    "-m multigpu --lmdeploy-python=": "no such program in PATH",
    "--rehearse --max-restarts=few": "--max-restarts=few: not a whole number",
    "--rehearse --max-restarts=-1": "--max-restarts=-1: must be a number from 0 on",
    "--rehearse --start-timeout=soon": "--start-timeout=soon: not a number",
    "--rehearse --start-timeout=nan": "--start-timeout=nan: must be a number from 0.1 on",
    "--rehearse --request-timeout=0": "--request-timeout=0: must be a number from 0.1 on",
    "--rehearse --stop-timeout=inf": "--stop-timeout=inf: must be",
    "--rehearse --require-gpus=1.5": "--require-gpus=1.5: not a whole number",
    "--rehearse --server-host=1.2.3.4": "--server-host=1.2.3.4: this machine can't listen there",
    "--rehearse --report=": "--report= is empty; leave it out for reports/",
    "--rehearse --server-port=0": "--server-port=0: must be a number from 1 on",
    "--rehearse --server-port=65536": "--server-port=65536: ports end at 65535",
    "--rehearse -n 2 --server-port=65535": "--server-port=65535: ports end at 65535",
    "--rehearse -n 2 --keep-server": "--keep-server can't go with -n",
    "--rehearse --server-host=no.such.host.invalid": "--server-host=no.such.host.invalid: ",
    "--rehearse '--server-args=--log-level \"INFO'": '--server-args=--log-level "INFO: No closing quotation',
    "--rehearse --model=internlm/internlm2-chat-7b": "--model can't go with --rehearse",
    "--rehearse --lmdeploy-python=python3": "--lmdeploy-python can't go with --rehearse",
    "-m multigpu --model=empty-model": "--model=empty-model: the folder has no config.json",
    "-m multigpu --awq-model=./missing": "--awq-model=./missing: no such model folder",
    "-m multigpu --lmdeploy-python=./missing": "missing",
    "-m multigpu --lmdeploy-python=empty-model": "empty-model",
}
#: The interpreter under test has to be asked, and nothing else.
ASKED = {
    "--rehearse --backend=pytorch --communicator=cuda-ipc --tp=2": "the options leave no configuration",
    "-m multigpu --report=not-toml.toml/reports": "--report=",
    # Also where no configuration can run, so that no command line is made of it.
    "--rehearse --node=h200x1 --tp=2 '--server-args=--no-such 1'": "lmdeploy 0.18.0's api_server has no --no-such",
    "--rehearse --server-args=--tp=4": "--server-args can't give --tp",
    "-m multigpu --lmdeploy-python=./fails": "fails",
    "-m multigpu --lmdeploy-python=./without": "lmdeploy",
}


@pytest.fixture
def folder(project):
    """The files that the command lines name."""
    here: Path = project.folder
    (here / "not-toml.toml").write_text("here = and = there")
    node = (NODES / "rtx4090x2.toml").read_text()
    assert node.count("PHB") == 2
    (here / "asymmetric.toml").write_text(node.replace("PHB", "PIX", 1).replace("PHB", "NODE"))
    (here / "empty-model").mkdir()
    # -S: without the installed packages, so without lmdeploy on any machine.
    for name, line in {"fails": "exit 3", "without": f'exec {shlex.quote(sys.executable)} -I -S "$@"'}.items():
        (here / name).write_text(f"#!/bin/sh\n{line}\n")
        (here / name).chmod(0o755)
    return here


def check(inner, line: str, words: str) -> None:
    code, output, errors = inner(*shlex.split(line))
    assert code == pytest.ExitCode.USAGE_ERROR, f"{output}\n{errors}"
    [only] = errors.strip().splitlines()
    assert only.startswith("ERROR: ")
    assert words in only
    assert output == ""
    assert not Path("reports").exists()


@pytest.mark.parametrize(("line", "words"), LINES.items(), ids=[line[:60] for line in LINES])
def test_bad_input(inner, folder, line, words):
    check(inner, line, words)
    assert inner.started == []


@pytest.mark.parametrize(("line", "words"), ASKED.items(), ids=ASKED)
def test_bad_input_that_the_interpreter_tells(inner, folder, line, words):
    check(inner, line, words)
    assert [Path(argv[1]).name for argv in inner.started] == ["describe.py"] * len(inner.started)


def test_bad_input_to_plan(inner, folder):
    """--plan says it as a run would."""
    check(inner, "--plan --rehearse --node=dgx2", "unknown node 'dgx2'")


@pytest.mark.parametrize("offset", [0, 1])
def test_port_taken(inner, offset):
    """The port itself, or with -n that of a later worker."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = f"--server-port={port - offset}: port {port} of 127.0.0.1 is taken"
        check(inner, f"--rehearse --server-port={port - offset} -n {1 + offset}", words)


def test_two_times_the_same_gpu_in_the_environment(inner, this_machine, t4x4, monkeypatch):
    """CUDA refuses such a list, so every server would die of it."""
    this_machine(t4x4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,1")
    check(inner, "-m multigpu", "CUDA_VISIBLE_DEVICES=1,1: GPU 1 is named twice")


def test_gpu_that_the_environment_hides(inner, this_machine, t4x4, monkeypatch):
    """--gpus chooses among what CUDA_VISIBLE_DEVICES leaves."""
    this_machine(t4x4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    check(inner, "-m multigpu --gpus=0", "'0' is none of this run's GPUs (2, 3; or one's UUID)")


def test_gpus_differ_and_the_environment_counts(inner, this_machine, t4x4, monkeypatch):
    """An integer has a meaning only once CUDA_DEVICE_ORDER says so."""
    first, *others = t4x4.gpus
    this_machine(replace(t4x4, gpus=(replace(first, name="NVIDIA A100"), *others)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    check(inner, "-m multigpu", "CUDA_DEVICE_ORDER=PCI_BUS_ID")
