"""What a rank asks of its communicators, call by call, and that no wrong result of any call passes.

The ranks are threads, and what stands for NCCL does each operation by the book, but for one result when told so.
"""

import importlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fixtures.collective
from fixtures.collective.steps import results_of
from tests.unit.collective.conftest import by_the_book

sys.path.insert(0, str(Path(fixtures.collective.__file__).parent / "under_test"))
steps = importlib.import_module("rank_steps")
pattern = importlib.import_module("pattern")

LONG = 20
COUNT, ITERATIONS, REPEAT = 1021, 3, 4
BLOCK = 16
#: Operations that are tested in place and out of place, and those that are always the one or the other.
BOTH = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
OPERATIONS = [*((name, in_place) for name in BOTH for in_place in (False, True))]
OPERATIONS += [("many_small", True), ("two_communicators", True), ("measure", False)]

of_each_operation = pytest.mark.parametrize(("operation", "in_place"), OPERATIONS)
of_each_world = pytest.mark.parametrize("world_size", [1, 2])


@dataclass
class Call:
    """One call of one rank, with what its receive buffer held before and after."""

    operation: str
    communicator: int
    send: torch.Tensor
    receive: torch.Tensor
    root: int
    before: torch.Tensor
    after: torch.Tensor | None = None


class Meeting:
    """Where the ranks of one communicator exchange what they send."""

    def __init__(self, world_size):
        self.sent = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=LONG)

    def exchange(self, rank, send):
        self.sent[rank] = send.clone()
        self.barrier.wait()
        sent = list(self.sent)
        self.barrier.wait()
        return sent


class Communicator:
    """One rank's end; all calls of a rank's communicators go to its list of `calls`.

    `spoilt`: of which of those the result has zeros from which element on; None: of none.
    """

    def __init__(self, number, meeting, rank, calls, spoilt=None):
        self.number, self.meeting, self.rank, self.calls, self.spoilt = number, meeting, rank, calls, spoilt
        self.world_size = len(meeting.sent)

    def collective(self, operation, send, receive, root=0):
        call = Call(operation, self.number, send, receive, root, receive.clone())
        receive.copy_(by_the_book(operation, self.meeting.exchange(self.rank, send), self.rank, root))
        if self.spoilt and self.spoilt[0] == len(self.calls):
            receive[self.spoilt[1] :][:BLOCK] = 0
        call.after = receive.clone()
        self.calls.append(call)

    def synchronize(self):
        pass


def run(operation, in_place, world_size, spoilt=None):
    """What each rank found in one step, and its calls; `spoilt` as above, in the last rank."""
    step = {"operation": operation, "dtype": "float32", "count": COUNT, "in_place": in_place}
    step |= {"iterations": ITERATIONS, "repeat": REPEAT}
    meetings = [Meeting(world_size) for _ in range(2 if operation == "two_communicators" else 1)]
    calls = [[] for _ in range(world_size)]

    def one(rank):
        spoil = spoilt if rank == world_size - 1 else None
        ends = [Communicator(number, meeting, rank, calls[rank], spoil) for number, meeting in enumerate(meetings)]
        return steps.run_steps(ends, [step], torch.device("cpu"), lambda number: None)

    with ThreadPoolExecutor(world_size) as threads:
        found = list(threads.map(one, range(world_size)))
    assert [rank["results"] for rank in found] == [results_of([step], world_size)] * world_size
    return found, calls


def compared(operation, calls):
    """Numbers of the calls whose results are compared: of measured ones each run's last."""
    return [number for number in range(len(calls)) if operation != "measure" or number % REPEAT == REPEAT - 1]


def is_poison(tensor):
    return bool((pattern.bits(tensor) == pattern.poison_bits(tensor.dtype)).all())


def longest_agreement(a, b):
    """Elements of the longest block in which two tensors are equal."""
    longest = current = 0
    for equal in (pattern.bits(a) == pattern.bits(b)).tolist():
        current = current + 1 if equal else 0
        longest = max(longest, current)
    return longest


@of_each_operation
@of_each_world
def test_in_place_means_in_place(operation, in_place, world_size):
    """As NCCL defines it: of all-gather the rank's own part of what it receives, of reduce-scatter of what it sends."""
    found, calls = run(operation, in_place, world_size)
    assert [rank["wrong_results"] for rank in found] == [0] * world_size
    for rank in range(world_size):
        for call in calls[rank]:
            part = rank * COUNT * call.send.element_size()
            sent_at = call.send.data_ptr() - (part if call.operation == "all_gather" else 0)
            received_at = call.receive.data_ptr() - (part if call.operation == "reduce_scatter" else 0)
            if in_place:
                assert sent_at == received_at
            else:
                assert call.send.untyped_storage().data_ptr() != call.receive.untyped_storage().data_ptr()


@of_each_operation
@of_each_world
def test_every_rank_calls_what_the_step_says(operation, in_place, world_size):
    """A broadcast from each root; over two communicators in turn, in the same order on every rank."""
    _, calls = run(operation, in_place, world_size)
    name = operation if operation in BOTH else "all_reduce"
    if operation == "broadcast":
        expected = [(name, 0, root) for root in range(world_size)]
    elif operation == "measure":
        expected = [(name, 0, 0)] * (ITERATIONS + 1) * REPEAT
    elif operation == "two_communicators":
        expected = [(name, row % 2, 0) for row in range(REPEAT)] * ITERATIONS
    else:
        expected = [(name, 0, 0)] * ITERATIONS * (REPEAT if operation == "many_small" else 1)
    assert [[(c.operation, c.communicator, c.root) for c in own] for own in calls] == [expected] * world_size


@of_each_operation
@of_each_world
def test_what_is_received_wasnt_there_before(operation, in_place, world_size):
    """A block that a call doesn't write would show: poison at first and before each measured run, never the result."""
    _, calls = run(operation, in_place, world_size)
    for rank in range(world_size):
        for number, call in enumerate(calls[rank]):
            if operation == "measure":
                assert is_poison(call.before) or number % REPEAT
            elif not in_place:
                assert is_poison(call.before) or number
                assert longest_agreement(call.before, call.after) < BLOCK
            elif operation == "all_gather":
                parts = [part for number, part in enumerate(call.before.split(COUNT)) if number != rank]
                assert all(map(is_poison, parts))


@of_each_operation
@of_each_world
def test_one_wrong_block_in_any_result_shows_once(operation, in_place, world_size):
    """At the buffer's beginning and at its end: of all-gather the first and the last rank's part."""
    _, calls = run(operation, in_place, world_size)
    own = calls[-1]
    for number in compared(operation, own):
        for first in (0, own[number].receive.numel() - BLOCK):
            found, _ = run(operation, in_place, world_size, (number, first))
            assert [rank["wrong_results"] for rank in found] == [0] * (world_size - 1) + [1], (number, first)
            (wrong,) = found[-1]["wrong"]
            assert (wrong["wrong"], wrong["first"], wrong["pattern"]) == (BLOCK, first, "zeros")
