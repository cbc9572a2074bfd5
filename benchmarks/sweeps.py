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
from collections.abc import Sequence
from pathlib import Path

from benchmarks.latent import LATENCY_MS
from fixtures.collective.crew import Crew
from fixtures.collective.fabric import Fabric, Pair
from fixtures.collective.outcome import Outcome
from fixtures.collective.seats import PROCESS_PER_GPU, Seat, seats_of
from fixtures.collective.steps import Step, pair_steps
from fixtures.collective.worker_environment import worker_environment
from fixtures.rehearsal.nodes import NODES, load_node
from fixtures.run import rehearsal_environment

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
        node = node_of(gpus, folder)
        self.machine = load_node(node)
        self.seats = seats_of(self.machine)
        self.pairs: list[Pair] = list(itertools.combinations(self.seats, 2))
        self.outer = {**os.environ, **rehearsal_environment(node, None)}
        self.communicator, self.steps = "fixtures.rehearsal.gloo", pair_steps()
        if latency_ms is not None:
            self.communicator, self.steps = "benchmarks.latent", pair_steps(light=True)
            self.outer[LATENCY_MS] = str(latency_ms)
        self.starts: list[float] = []  # s of each sweep until torch was imported

    def sweep(self, arms: Sequence[str] = ARMS, *, serial: bool = False, hang: bool = False) -> float:
        """Seconds of a whole sweep as the plugin makes it, from no process at all to none.

        `serial`: one pair at a time. `hang`: in the middle of the first pair's steps one of its workers is stopped
        (SIGSTOP). Exits when the outcomes aren't what they must be.
        """
        begun = time.perf_counter()
        fabric = _Fabric(self, serial=serial, hang=self.pairs[0] if hang else None)
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

    def fresh(self, pair: Pair, arm: str) -> float:
        """Seconds of one pair in two interpreters that are started for it, side by side."""
        begun = time.perf_counter()
        environment = worker_environment(self.outer, arm, gpu_uuids=[seat.uuid for seat in self.seats])
        job = {
            "gpus": [seat.index for seat in pair],
            "world_size": 2,
            "ids": [str(self.folder / uuid.uuid4().hex)],
        }
        ranks = [self._start(rank, {**job, "ranks": [{"rank": rank, "device": 0}]}, environment) for rank in (0, 1)]
        for rank in ranks:
            output, _ = rank.communicate()
            if rank.returncode or json.loads(output)["wrong_results"]:
                sys.exit(f"a rank in a fresh interpreter ended with {rank.returncode}:\n{output}")
        return time.perf_counter() - begun

    def _start(self, rank: int, job: dict[str, object], environment: dict[str, str]) -> subprocess.Popen[str]:
        order = {"communicator": self.communicator, "rank": rank, "job": job, "steps": self.steps}
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fresh_rank", json.dumps(order)],
            env={**environment, "NCCL_DEBUG_FILE": str(self.folder / f"fresh.{rank}.nccl")},
            stdout=subprocess.PIPE,
            text=True,
        )


class _Fabric(Fabric):
    """The suite's fabric over the benchmark's links, with one pair that hangs where it is asked for."""

    def __init__(self, sweeps: Sweeps, *, serial: bool, hang: Pair | None) -> None:
        timeout = 30.0 if hang is None else PAIR_TIMEOUT
        super().__init__(
            sweeps.machine,
            sweeps.seats,
            sys.executable,
            sweeps.outer,
            sweeps.folder / "gpus",
            pair_timeout=timeout,
            serial=serial,
        )
        self._modules = (sweeps.communicator, self._modules[1])
        self._pair_steps = sweeps.steps
        self._hang, self._starts = hang, sweeps.starts

    async def _crew_of(self, arm: str) -> Crew:
        begun, first = time.perf_counter(), self._nursery is None
        crew = await super()._crew_of(arm)
        if first:
            self._starts.append(time.perf_counter() - begun)
        return crew

    async def _pair(self, crew: Crew, a: Seat, b: Seat, steps: Sequence[Step]) -> Outcome:
        if (a, b) == self._hang:
            members = await crew.members((a, b), PROCESS_PER_GPU)
            asyncio.get_running_loop().call_later(HANG_AFTER, os.kill, members[1].worker.pid, signal.SIGSTOP)
        return await super()._pair(crew, a, b, steps)
