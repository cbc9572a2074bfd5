"""Ranks that are threads of one process: none takes memory while another's collective waits for its launch.

On several GPUs with peer access CUDA may make the two wait for each other for ever. Here neither exists, so a stand-in
for NCCL and for what takes memory records the moments at which they would.
"""

import importlib
import sys
import threading
from pathlib import Path

import pytest

import fixtures.collective
from tests.unit.collective.conftest import by_the_book

sys.path.insert(0, str(Path(fixtures.collective.__file__).parent / "under_test"))
worker = importlib.import_module("worker")
steps = importlib.import_module("rank_steps")

RANKS = 3
#: What can't come is waited for so long (s); what can come is there at once.
SHORT = 0.01
LONG = 20


class Device:
    """What CUDA knows: who takes memory, and whose collective waits."""

    def __init__(self):
        self.changed = threading.Condition()
        self.taking = set()
        self.sent = {}  # of the collective that has been launched by some
        self.deadlocks = []

    def take_memory(self, rank):
        """Each rank somewhat longer than the one before: so long that others launch, if nothing keeps them from it."""
        with self.changed:
            self.taking.add(rank)
            self.changed.notify_all()
            if self.changed.wait_for(lambda: self.sent, SHORT * (1 + rank)):
                self.deadlocks.append((rank, set(self.sent)))
            self.taking.discard(rank)

    def launch(self, rank, send, *, waits):
        """What all ranks sent, once all have launched; the last one comes late. Who doesn't wait is done at once."""
        with self.changed:
            self.wait(lambda: rank not in self.sent)
            sent = self.sent
            if len(sent) == RANKS - 1:
                self.changed.wait_for(lambda: self.taking, SHORT)
            sent[rank] = send.clone()
            if len(sent) == RANKS:
                self.sent = {}
            self.changed.notify_all()
            if waits:
                self.wait(lambda: len(sent) == RANKS)
        return [sent[one] for one in sorted(sent)]

    def wait(self, condition):
        assert self.changed.wait_for(condition, LONG)


class Communicator:
    def __init__(self, device, rank):
        self.device, self.rank, self.world_size = device, rank, RANKS

    def collective(self, operation, send, receive, root=0):
        if operation == "broadcast" and self.rank == root:
            self.device.launch(self.rank, send, waits=False)
            receive.copy_(send)
        else:
            receive.copy_(by_the_book(operation, self.device.launch(self.rank, send, waits=True), self.rank, root))

    def synchronize(self):
        pass

    def close(self):
        pass


class Channel:
    def __init__(self):
        self.answers = []

    def send(self, **message):
        self.answers.append(message)


def ask(monkeypatch, device, operation):
    """The last answer of a worker of three threads, asked for two rounds of an operation."""

    class Expectation(steps.Expectation):
        def sent(self, count, iteration):
            device.take_memory(self.rank)
            return super().sent(count, iteration)

        def result(self, count, iteration):
            device.take_memory(self.rank)
            return super().result(count, iteration)

    monkeypatch.setattr(steps, "Expectation", Expectation)
    one = worker.Worker(channel := Channel(), {"devices": [], "communicator": "torch", "driver": ""})
    one.communicators = type("Module", (), {"open_communicators": lambda job, rank, _: [Communicator(device, rank)]})
    step = {"operation": operation, "dtype": "int32", "count": 5, "in_place": False, "iterations": 2, "repeat": 2}
    ranks = [{"rank": rank, "device": rank} for rank in range(RANKS)]
    one.work({"job": 1, "do": "trial", "ranks": ranks, "gpus": [0, 1, 2], "ids": ["0"], "steps": [step]})
    return channel.answers[-1]


@pytest.mark.parametrize(
    "operation", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "many_small", "measure"]
)
def test_no_memory_is_taken_while_a_collective_waits(monkeypatch, operation):
    device = Device()
    answer = ask(monkeypatch, device, operation)
    assert answer["event"] == "done", answer
    assert [rank["wrong"] for rank in answer["ranks"]] == [[]] * RANKS
    assert device.deadlocks == []
