"""A fabric of real worker processes over real gloo, on an emulated node, that tests may break."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fixtures.collective.exchange import Conductor, Exchange, Participant
from fixtures.collective.fabric import Fabric
from fixtures.collective.nursery import Nursery, Worker
from fixtures.collective.outcome import Outcome
from fixtures.collective.seats import Seat
from fixtures.collective.steps import LIGHT_PEER_SIZES, Step, StepLists
from fixtures.processes.local_tree import LocalTree
from fixtures.processes.proctable import stat_fields
from fixtures.rehearsal.site import RehearsedNode
from fixtures.run import FabricSettings, Run, ServerSettings

NODE = "t4x4"
#: Seconds after which a test's own waiting has failed; far more than a busy machine needs.
LONG = 30.0
#: Seconds that a trial may stand still in tests of hangs; in all others so many that a busy machine makes no hang.
PATIENCE = 0.4


def step(operation: str = "all_reduce", count: int = 1021, repeat: int = 1, iterations: int = 1) -> Step:
    return {
        "operation": operation,
        "dtype": "float32",
        "count": count,
        "in_place": False,
        "iterations": iterations,
        "repeat": repeat,
    }


def by_the_book(operation: str, sent: Sequence[torch.Tensor], rank: int, root: int) -> torch.Tensor:
    """What a rank receives, from what all of them sent, as NCCL's documentation has it."""
    return {
        "all_reduce": lambda: sum(sent),
        "all_gather": lambda: torch.cat(tuple(sent)),
        "reduce_scatter": lambda: sum(sent).view(len(sent), -1)[rank],
        "broadcast": lambda: sent[root],
    }[operation]()


QUICK = [step(), step("measure")]
#: Goes on until somebody ends it: a step for an hour's collectives, after one that ends.
ENDLESS = [step(), step("measure", repeat=10**9)]


def quick_group_steps(operation: str) -> list[Step]:
    """A small and a larger one, where a group's own are two dozen."""
    return [step(operation, iterations=2, repeat=4), step(operation, count=4096, repeat=4)]


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for what no event tells of."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, f"waited {LONG:g} s in vain: {what}"
        time.sleep(0.002)


def lives(pid: int) -> bool:
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX"


class Watched(Conductor):
    """A conductor whose trial a test can look into while it goes on."""

    rig: ClassVar[Rig]
    all_of_them: ClassVar[list[Watched]] = []
    playing: ClassVar[set[Watched]] = set()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.beside: set[Watched] = set()  # trials that were under way when this one began
        self.living: set[str] = set()  # names of the workers that lived then
        self.all_of_them.append(self)

    async def run(self, communicators: int = 1) -> Exchange:
        self.beside = set(self.playing)
        self.living = {worker.name for worker in self.rig.workers().values() if lives(worker.pid)}
        self.playing.add(self)
        try:
            return await super().run(communicators)
        finally:
            self.playing.remove(self)


class BreakableNode(RehearsedNode):
    """A rehearsed node whose collectives and driver tests may break; `collectives` may be replaced."""

    def __init__(self, folder: Path, more: Mapping[str, str]) -> None:
        super().__init__(folder, NODE)
        modules = "tests.unit.collective.breaking", "tests.unit.collective.breaking_cuda"
        object.__setattr__(
            self, "collectives", replace(RehearsedNode.collectives, communicator=modules[0], driver=modules[1])
        )
        object.__setattr__(self, "more", more)

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        return super().environment(outer) | self.more

    def runs_on(self, **backend: Any) -> None:
        """Another backend from the next worker on."""
        object.__setattr__(self, "collectives", replace(self.collectives, **backend))


class Rig:
    """A fabric, and a look at the processes behind it."""

    def __init__(self, folder: Path, python: str = sys.executable, *, serial: bool = False, **outer: str) -> None:
        self.folder = folder
        self.orders = folder / "orders.json"
        self.site = BreakableNode(folder, {"BREAKING": str(self.orders), **outer})
        settings = FabricSettings(pair_timeout=LONG, serial_pairs=serial)
        run = Run(
            self.site, self.site.machine(), (), None, ServerSettings(), folder, folder, python=python, fabric=settings
        )
        steps = StepLists(QUICK, QUICK, quick_group_steps, LIGHT_PEER_SIZES)
        self.fabric = Fabric(run, steps=steps, conductor=Watched)
        self.seats: list[Seat] = self.fabric.seats
        self.break_at()
        Watched.rig = self

    @property
    def nursery(self) -> Nursery:
        assert self.fabric.nursery is not None
        return self.fabric.nursery

    @property
    def process(self) -> LocalTree:
        """The nursery's."""
        assert self.nursery.process is not None
        return self.nursery.process

    def workers(self) -> dict[str, Worker]:
        """By their names: number, seats, arm."""
        return dict(self.nursery.workers)

    def break_at(self, **order: Any) -> None:
        """What breaking.py shall do in the next trials: at one collective of a `rank` (the how many-th `call`) or at
        each: `sleep`, then `error`, or `end` with an exit code."""
        self.orders.write_text(json.dumps(order))

    def begin(
        self, *pairs: tuple[int, int], steps: Sequence[Step] = QUICK, arm: str = "p2p_on", patience: float = LONG
    ) -> None:
        """Sweep pairs, by the numbers of their seats; `patience`: seconds that a trial may stand still."""
        self.fabric.pair_timeout = patience
        self.fabric.steps = replace(self.fabric.steps, pair=list(steps))
        self.fabric.sweep([(self.seats[a], self.seats[b]) for a, b in pairs], arm)

    def outcome(self, a: int, b: int, arm: str = "p2p_on") -> Outcome:
        return self.fabric.pair(self.seats[a], self.seats[b], arm)

    def pair(self, a: int, b: int, *, steps: Sequence[Step] = QUICK, arm: str = "p2p_on") -> Outcome:
        """One pair's trial, whatever was found before."""
        self.fabric.results.clear()
        self.begin((a, b), steps=steps, arm=arm)
        return self.outcome(a, b, arm)

    def group(self, operation: str, model: str, arm: str = "p2p_on", seats: int = 4) -> Outcome:
        return self.fabric.group(self.seats[:seats], operation, model, arm)

    def endless(self, a: int, b: int, arm: str = "p2p_on", patience: float = LONG) -> list[Participant]:
        """Begin a trial that goes on until somebody ends it; its members, once each is in the endless step."""
        before = len(Watched.all_of_them)
        self.begin((a, b), steps=ENDLESS, arm=arm, patience=patience)
        until(lambda: len(Watched.all_of_them) > before, "a trial begins")
        members = Watched.all_of_them[-1].trial.members
        until(lambda: all(1 in member.reached.values() for member in members), "its ranks are in the endless step")
        return members

    def forget(self) -> None:
        """What was found so far, so that the next test may test the same pairs."""
        self.fabric.rest()
        self.fabric.results.clear()
        self.fabric.hung.clear()
        self.fabric.pair_timeout = LONG
        self.break_at()


@pytest.fixture
def watched() -> Iterator[type[Watched]]:
    yield Watched
    Watched.all_of_them.clear()
    assert not Watched.playing


@pytest.fixture(scope="session")
def common_rig() -> Iterator[dict[str, Rig]]:
    """The rig that tests share as long as none of them has ended its nursery: torch's import takes a second."""
    rigs: dict[str, Rig] = {}
    yield rigs
    for rig in rigs.values():
        rig.fabric.close()


@pytest.fixture
def rig(common_rig: dict[str, Rig], watched: type[Watched], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A fabric whose nursery lives; afterwards all of its workers are gone."""
    if not common_rig:
        common_rig["rig"] = Rig(tmp_path_factory.mktemp("fabric"))
    rig = Watched.rig = common_rig["rig"]
    yield rig
    lost = rig.fabric.nursery is None or rig.nursery.problem
    if lost:
        del common_rig["rig"]
        rig.fabric.close()
    else:
        rig.forget()
        assert rig.process.living() == [rig.process.pids[0]]


@pytest.fixture
def make_rig(tmp_path: Path, watched: type[Watched]) -> Iterator[Callable[..., Rig]]:
    """Call it for a fabric of the test's own: Rig's arguments but the folder, of which `below` is the end."""
    made: list[Rig] = []

    def make(*arguments: Any, below: str = ".", **named: Any) -> Rig:
        folder = tmp_path / f"rig{len(made)}" / below
        folder.mkdir(parents=True)
        made.append(Rig(folder, *arguments, **named))
        return made[-1]

    yield make
    for rig in made:
        rig.fabric.close()
