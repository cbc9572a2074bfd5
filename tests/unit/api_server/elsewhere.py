"""A Site of the tests' own: two GPUs that are nowhere, on which a short program of this machine plays the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from fixtures.interpreter.probe import Lmdeploy
from fixtures.known_answer.layout import ModelSpec
from fixtures.machine.facts import Facts, SharedMemory
from fixtures.machine.leases import lock_gpus
from fixtures.machine.machine import Gpu, Machine
from fixtures.machine.site import CollectiveBackend, Cpu
from fixtures.processes.ending import Exit
from fixtures.processes.local_tree import LocalTree
from fixtures.processes.tree import Member
from tests.unit.api_server.conftest import answering


class Elsewhere:
    """`program` makes the server of a port; `used` says how much of a GPU is in use."""

    label, rehearsed, physical_gpus, collectives = "elsewhere:", False, 2, CollectiveBackend()

    def __init__(self, folder: Path, program: Callable[[int], Member] = answering) -> None:
        self.folder, self.program = folder, program
        self.used: dict[str, int] = {}

    def settled(self, folder: Path) -> Elsewhere:
        return self

    def machine(self) -> Machine:
        gpus = tuple(Gpu(index, f"GPU-{index}", "Far", f"00000000:0{index}:00.0", 1024) for index in (0, 1))
        return Machine("far", gpus, links=(("X", "PHB"), ("PHB", "X")), peer=((True, True), (True, True)))

    def facts(self, machine: Machine, lmdeploy: Lmdeploy | None, ranks: int) -> Facts:
        return Facts()

    def shared_memory(self, wanted: int) -> SharedMemory:
        return SharedMemory(wanted, wanted, wanted)

    def cpu(self) -> Cpu:
        return Cpu("AuthenticAMD", "x86_64")

    def model_spec(self, architecture: str, precision: str) -> ModelSpec:
        return ModelSpec(architecture, precision, 40, "small")

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        return dict(outer)

    def used_mib(self, uuids: Iterable[str]) -> dict[str, int]:
        return {uuid: self.used.get(uuid, 0) for uuid in uuids}

    def lease(self, uuids: Iterable[str]) -> ExitStack:
        return lock_gpus(self.folder, uuids)

    def start(
        self,
        members: Sequence[Member],
        log: Path,
        cwd: Path,
        on_exit: Callable[[Exit], None],
        *,
        temporary: str | None = None,
    ) -> LocalTree:
        (asked,) = members
        port = int(asked.argv[asked.argv.index("--server-port") + 1])
        return LocalTree([self.program(port)], log, cwd, on_exit, temporary=temporary)
