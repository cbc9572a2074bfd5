"""The nursery: what it can't be, what ends it, and that nothing is left of it."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fixtures.processes.proctable import marked_pids
from tests.unit.collective.conftest import LONG, PATIENCE, lives, until

SHM = Path("/dev/shm")
NCCL = {"communicator": "nccl", "driver": "cuda_driver", "on_gpus": True}
GLOO = {"communicator": "fixtures.rehearsal.gloo", "driver": "fixtures.rehearsal.cuda"}
NOWHERE = {**GLOO, "communicator": "nowhere"}
#: A torch that is imported at once, in which only what the nursery asks is true.
TORCH = """
import types, sys
__version__ = "2.9.0"
version = types.SimpleNamespace(cuda={cuda})
distributed = types.ModuleType("torch.distributed")
distributed.is_nccl_available = lambda: {nccl}
distributed.is_gloo_available = lambda: {gloo}
sys.modules["torch.distributed"] = distributed
"""


def python(folder: Path, script: str) -> str:
    """An interpreter under test."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def with_torch(make_rig, tmp_path):
    """A rig whose interpreter has this code as torch."""

    def make(code: str, below: str = "."):
        (tmp_path / "torch.py").write_text(code)
        return make_rig(below=below, PYTHONPATH=str(tmp_path))

    return make


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('exec python3 -I -S "$@"', "{python}: torch can't be imported: ModuleNotFoundError: No module named 'torch'"),
        ("true", "{python} didn't import torch, it exited with code 0"),
        ("echo not me; exit 3", "{python} didn't import torch, it exited with code 3: not me"),
        ("kill -SEGV $$", "{python} didn't import torch, it was killed by SIGSEGV (Segmentation fault)"),
    ],
)
def test_an_interpreter_that_is_none(make_rig, tmp_path, script, words):
    path = python(tmp_path, script)
    outcome = make_rig(path).pair(0, 2)
    assert (outcome.status, outcome.words) == ("inconclusive", words.format(python=path))


@pytest.mark.parametrize(
    ("name", "words"), [("nowhere", "No such file or directory"), ("file", "Permission denied"), (".", "Permission")]
)
def test_an_interpreter_that_cant_be_started(make_rig, tmp_path, name, words):
    """Told at once, not after the time that a start may take."""
    (tmp_path / "file").touch()
    path = str(tmp_path / name)
    began = time.monotonic()
    outcome = make_rig(path).pair(0, 2)
    assert outcome.status == "inconclusive"
    assert outcome.words.startswith(f"can't start {path}: {words}")
    assert time.monotonic() - began < 5


def test_an_interpreter_that_hangs_at_import(with_torch):
    rig = with_torch("import time; print('looking for a driver', flush=True); time.sleep(3600)")
    rig.fabric.start_deadline = 0.5
    outcome = rig.pair(0, 2)
    assert outcome.status == "inconclusive"
    assert outcome.words.endswith(" hasn't imported torch within 0.5 s: looking for a driver")
    began = time.monotonic()
    assert rig.pair(0, 1).words == outcome.words
    assert time.monotonic() - began < 0.4, "each pair waited for the import again"
    pid = rig.process.pids[0]
    rig.fabric.close()
    assert not lives(pid)


@pytest.mark.parametrize(
    ("modules", "cuda", "nccl", "gloo", "words"),
    [
        (NCCL, None, False, True, "is built without CUDA, so there are no collectives between GPUs"),
        (NCCL, "12.8", False, True, "is built without NCCL"),
        (GLOO, None, True, False, "is built without gloo"),
    ],
)
def test_a_torch_that_lacks_something(with_torch, modules, cuda, nccl, gloo, words):
    rig = with_torch(TORCH.format(cuda=repr(cuda), nccl=nccl, gloo=gloo))
    rig.site.runs_on(**modules)
    outcome = rig.pair(0, 2)
    assert outcome.status == "inconclusive"
    assert outcome.words == f"{sys.executable}: torch 2.9.0 {words}"


def test_an_error_of_several_lines_becomes_one(with_torch):
    rig = with_torch("raise OSError('libcudart.so.12: cannot open shared object file\\n  see https://pytorch.org')")
    words = "torch can't be imported: OSError: libcudart.so.12: cannot open shared object file see https://pytorch.org"
    assert rig.pair(0, 2).words.endswith(words)


def test_a_worker_that_dies_before_it_is_heard_of(with_torch):
    """For each pair, and with what it wrote."""
    dies = "import os; os.register_at_fork(after_in_child=lambda: (os.write(2, b'no memory for this\\n'), os.abort()))"
    rig = with_torch(TORCH.format(cuda=None, nccl=False, gloo=True) + dies)
    words = "no worker for GPU0-p2p_on: its process was killed by SIGABRT (Aborted): no memory for this"
    for pair in ((0, 2), (0, 3)):
        outcome = rig.pair(*pair)
        assert (outcome.status, outcome.words[: len(words)]) == ("inconclusive", words)


def test_a_worker_that_cant_be_prepared_says_why(with_torch):
    rig = with_torch(TORCH.format(cuda=None, nccl=False, gloo=True))
    rig.site.runs_on(**NOWHERE)
    assert rig.pair(0, 2).words == "no worker for GPU0-p2p_on: ModuleNotFoundError: No module named 'nowhere'"


#: Plays the nursery: each worker's end is told before its connection comes, with what it says.
LATE = """
import json, socket, sys, time
def connection(**hello):
    end = socket.socket(socket.AF_UNIX)
    end.connect(sys.argv[2])
    end.sendall(json.dumps(hello).encode() + b"\\n")
    return end
nursery = connection(hello="nursery", error=None, gloo=True, torch="2.9.0")
for line in nursery.makefile():
    order = json.loads(line)
    if name := order.get("fork"):
        nursery.sendall(json.dumps({"ended": name, "code": 1}).encode() + b"\\n")
        time.sleep(0.05)
        with connection(hello="worker", name=name, pid=2**22) as worker:
            worker.sendall(json.dumps({"event": "unusable", "error": "no device"}).encode() + b"\\n")
"""


def test_last_words_that_come_after_the_end(make_rig, tmp_path):
    """The nursery tells a worker's end while the worker's own connection still waits to be accepted."""
    (tmp_path / "late.py").write_text(LATE)
    rig = make_rig(python(tmp_path, f'exec {sys.executable} {tmp_path}/late.py "$@"'))
    assert rig.pair(0, 2).words == "no worker for GPU0-p2p_on: no device"


def test_closed_while_nccl_is_asked_about_a_hang(rig, watched, monkeypatch):
    """That waits for no process of the nursery, which is at an end."""
    asked = threading.Event()

    async def question(self):
        asked.set()
        await asyncio.sleep(3600)

    monkeypatch.setattr(watched, "question", question)
    rig.break_at(rank=0, sleep=3600)
    rig.begin((0, 2), patience=PATIENCE)
    assert asked.wait(LONG)
    rig.fabric.close()
    with pytest.raises(asyncio.CancelledError):
        rig.fabric.results[rig.seats[0], rig.seats[2], "p2p_on"].result(5)


def test_closed_before_and_while_it_starts(with_torch, caplog):
    rig = with_torch("import time; time.sleep(3600)")
    rig.fabric.close()
    files = len(os.listdir("/proc/self/fd"))
    rig.begin((0, 2))
    until(lambda: rig.fabric.nursery and rig.nursery.process and rig.process.pids, "it has been started")
    pid, folder = rig.process.pids[0], rig.nursery.folder
    began = time.monotonic()
    rig.fabric.close()
    assert time.monotonic() - began < 2
    assert not lives(pid)
    assert not folder.exists()
    assert rig.outcome(0, 2).status == "inconclusive"
    assert len(os.listdir("/proc/self/fd")) == files
    gc.collect()
    assert not caplog.records


def test_a_folder_of_any_length(with_torch):
    """A Unix socket's own path ends at 107 bytes."""
    rig = with_torch(TORCH.format(cuda=None, nccl=False, gloo=False), below="d" * 120)
    assert "is built without gloo" in rig.pair(0, 2).words


def test_discarded_workers_leave_no_open_file(rig):
    rig.break_at(rank=0, call=1, end=7)
    rig.pair(0, 2)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert rig.pair(0, 2).status == "crashed"
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, "connections are closed")


def test_a_nursery_that_stands_still_is_waited_for_once(with_torch):
    """Not for each of the pairs, whose workers it should have started."""
    rig = with_torch(TORCH.format(cuda=None, nccl=False, gloo=True))
    rig.site.runs_on(**NOWHERE)
    rig.pair(0, 2)
    rig.nursery.start_deadline = 0.2
    os.kill(rig.process.pids[0], signal.SIGSTOP)
    began = time.monotonic()
    rig.begin((1, 3), (0, 3), (0, 1))
    outcomes = [rig.outcome(*pair) for pair in ((1, 3), (0, 3), (0, 1))]
    assert time.monotonic() - began < 1
    assert [outcome.status for outcome in outcomes] == ["inconclusive"] * 3
    words = "the suite's process that starts workers didn't start one within 0.2 s: it is stopped by a signal (state T)"
    assert outcomes[0].words.startswith(words)


def test_closed_in_the_middle_of_a_sweep(rig, caplog):
    """Everything ends within a second or two, whoever waits is told, and neither process, file nor segment is left."""
    segments = {*SHM.iterdir()}
    members = rig.endless(0, 2)
    marker, folder = rig.process.marker, rig.nursery.folder
    told = []
    waiting = threading.Thread(target=lambda: told.append(rig.outcome(0, 2)))
    waiting.start()
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        rig.fabric.close()
        gc.collect()  # tells of tasks that are left
    assert time.monotonic() - began < 2
    waiting.join(5)
    assert [outcome.status for outcome in told] == ["inconclusive"]
    assert marked_pids(marker) == []
    assert not any(lives(member.worker.pid) for member in members)
    assert not folder.exists()
    assert not list(Path("/tmp").glob("fabric-*"))
    assert {*SHM.iterdir()} <= segments
    assert not caplog.records


def test_killed_from_outside_it_blames_no_pair(rig):
    """Neither the pair under way, whose workers die with it, nor those that come after."""
    members = rig.endless(0, 2)
    pid = rig.process.pids[0]
    os.kill(pid, signal.SIGKILL)
    outcomes = [rig.outcome(0, 2), rig.pair(0, 1), rig.group("all_reduce", "thread_per_gpu")]
    assert [outcome.status for outcome in outcomes] == ["inconclusive"] * 3
    lost = f"the suite's own process that starts workers (pid {pid}) was lost, and all workers with it: "
    assert all(outcome.words.startswith(f"{lost}it was killed by SIGKILL") for outcome in outcomes)
    until(lambda: not any(lives(member.worker.pid) for member in members), "its workers end with it")
