"""One sweep in three ways: the suite's tournament, its workers one pair at a time, processes started for each pair."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.latent import LATENCY_MS
from fixtures.collective.exchange import Conductor, Exchange
from fixtures.collective.fabric import Fabric, Pair
from fixtures.collective.seats import seats_of
from fixtures.collective.steps import pair_steps, step_lists
from fixtures.collective.worker_environment import worker_environment
from fixtures.machine.site import CollectiveBackend
from fixtures.rehearsal.nodes import NODES
from fixtures.rehearsal.site import RehearsedNode
from fixtures.run import FabricSettings, Run, ServerSettings

ARMS = ("p2p_on", "p2p_off")
#: Of a sweep in which a pair is to hang: seconds without progress that end a trial.
PAIR_TIMEOUT = 2.0
#: Into the steps of the pair that is to hang (s).
HANG_AFTER = 0.1


def node_of(gpus: int, folder: Path) -> str:
    """a100x8, or a file in `folder` of a node with so many of its GPUs, every pair of them behind NVSwitches."""
    if gpus == 8:
        return "a100x8"
    head = (NODES / "a100x8.toml").read_text(encoding="utf-8").partition("links =")[0]
    squares = [
        f'{field} = """\n' + "\n".join(" ".join("X" if i == j else word for j in range(gpus)) for i in range(gpus))
        for field, word in (("links", "NV12"), ("peer", "OK"))
    ]
    tables = [
        f'[[gpus]]\nindex = {i}\nuuid = "GPU-{uuid.UUID(int=i + 1)}"\nname = "NVIDIA A100-SXM4-80GB"\n'
        f'bus_id = "00000000:{i + 7:02X}:00.0"\nmemory_mib = 81920'
        for i in range(gpus)
    ]
    path = folder / f"a100x{gpus}.toml"
    path.write_text("\n\n".join([head, *(f'{square}\n"""' for square in squares), *tables]), encoding="utf-8")
    return str(path)


class Sweeps:
    """One emulated node, and what is done on it. `latency_ms`: links that slow, and small data; None: gloo as it is."""

    def __init__(self, gpus: int, folder: Path, latency_ms: float | None) -> None:
        self.folder = folder
        self.site = _Links(folder, node_of(gpus, folder), latency_ms=latency_ms)
        self.machine = self.site.machine()
        self.seats = seats_of(self.machine)
        self.pairs: list[Pair] = list(itertools.combinations(self.seats, 2))
        self.steps = pair_steps(light=latency_ms is not None)
        self.starts: list[float] = []  # s of each sweep until its first trial: mostly the import of torch

    def sweep(self, arms: Sequence[str] = ARMS, *, serial: bool = False, hang: bool = False) -> float:
        """Seconds of a whole sweep as the plugin makes it, from no process at all to none.

        `serial`: one pair at a time. `hang`: in the middle of the first pair's steps one of its workers is stopped
        (SIGSTOP). Exits when the outcomes aren't what they must be.
        """
        begun = time.perf_counter()
        settings = FabricSettings(pair_timeout=PAIR_TIMEOUT if hang else 30.0, serial_pairs=serial)
        run = Run(self.site, self.machine, (), None, ServerSettings(), self.folder, self.folder, fabric=settings)
        fabric = Fabric(
            run, steps=replace(step_lists((), light=False), pair=self.steps), conductor=self._conductor(hang)
        )
        try:
            found = []
            for arm in arms:
                fabric.sweep(self.pairs, arm)
                found += [fabric.pair(a, b, arm) for a, b in self.pairs]
            fabric.rest()
        finally:
            fabric.close()
        seconds = time.perf_counter() - begun
        expected = ["hung" if hang and number == 0 else "pass" for number in range(len(found))]
        for outcome, status in zip(found, expected, strict=True):
            if outcome.status != status:
                sys.exit(f"the sweep isn't what was to be measured: {outcome.status}, not {status}: {outcome.words}")
        return seconds

    def _conductor(self, hang: bool) -> type[Conductor]:
        """Notes when the first trial begins; with `hang` it stops a worker of the first pair on its way."""
        begun, trials = time.perf_counter(), itertools.count()
        first = [seat.index for seat in self.pairs[0]]

        class Noting(Conductor):
            async def run(conductor, communicators: int = 1) -> Exchange:
                if next(trials) == 0:
                    self.starts.append(time.perf_counter() - begun)
                if hang and conductor.gpus == first:
                    worker = conductor.trial.members[1].worker
                    asyncio.get_running_loop().call_later(HANG_AFTER, os.kill, worker.pid, signal.SIGSTOP)
                return await super().run(communicators)

        return Noting

    def fresh(self, pair: Pair, arm: str) -> float:
        """Seconds of one pair in two interpreters that are started for it, side by side."""
        begun = time.perf_counter()
        environment = worker_environment(
            self.site.environment(os.environ), arm, gpu_uuids=[seat.uuid for seat in self.seats]
        )
        job = {
            "gpus": [seat.index for seat in pair],
            "ids": [str(self.folder / uuid.uuid4().hex)],
        }
        ranks = [self._start(rank, {**job, "ranks": [{"rank": rank, "device": 0}]}, environment) for rank in (0, 1)]
        for rank in ranks:
            output, _ = rank.communicate()
            if rank.returncode or json.loads(output)["wrong_results"]:
                sys.exit(f"a rank in a fresh interpreter ended with {rank.returncode}:\n{output}")
        return time.perf_counter() - begun

    def _start(self, rank: int, job: dict[str, object], environment: dict[str, str]) -> subprocess.Popen[str]:
        order = {"communicator": self.site.collectives.communicator, "rank": rank, "job": job, "steps": self.steps}
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fresh_rank", json.dumps(order)],
            env={**environment, "NCCL_DEBUG_FILE": str(self.folder / f"fresh.{rank}.nccl")},
            stdout=subprocess.PIPE,
            text=True,
        )


@dataclass(frozen=True)
class _Links(RehearsedNode):
    """A node whose links may have a latency (ms)."""

    latency_ms: float | None = None

    @property
    def collectives(self) -> CollectiveBackend:
        base = RehearsedNode.collectives
        return base if self.latency_ms is None else replace(base, communicator="benchmarks.latent")

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        own = {} if self.latency_ms is None else {LATENCY_MS: str(self.latency_ms)}
        return super().environment(outer) | own
