"""A whole fabric's records, as its tests hand them over, and the report of a run that had only these."""

from __future__ import annotations

import itertools
from typing import Any

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "many_small", "two_communicators")
ARMS = ("p2p_on", "p2p_off", "p2p_forced")


def measured(
    status: str = "pass", transport: str | None = "SHM/direct", busbw: float | None = 1.234, **more: Any
) -> Any:
    """The fields that say what was found."""
    found = {"status": status, "transport": transport, "busbw_gb_per_s": busbw, "sizes": [4, 65536], "trials": 1}
    return {**found, "words": "exact: 160 results of 20 steps, bit for bit", **more}


def a_pair(a: int = 0, b: int = 1, arm: str = "p2p_on", link: str = "NODE", **found: Any) -> dict[str, Any]:
    return {"a": a, "b": b, "link": link, "arm": arm, **measured(**found)}


def a_group(
    gpus: list[int], operation: str = "all_reduce", model: str = "process", arm: str = "p2p_on", **found: Any
) -> Any:
    return {"gpus": gpus, "operation": operation, "process_model": f"{model}_per_gpu", "arm": arm, **measured(**found)}


def a_peer(a: int = 0, b: int = 1, method: str = "peer_write", status: str = "pass", **more: Any) -> dict[str, Any]:
    found = {"status": status, "sizes": [8, 4 << 20], "trials": 1, "words": "exact"}
    return {"a": a, "b": b, "method": method, **found, **more}


def a_finding(check: str = "shm", level: str = "ok", **more: Any) -> dict[str, Any]:
    return {"check": check, "level": level, "words": f"{check} is well", "consequence": "", "remedy": "", **more}


def a_test(module: str, check: str, parameters: str, outcome: str = "passed", **more: Any) -> dict[str, Any]:
    """A test of the fabric as report.json has it."""
    nodeid = f"tests/multigpu/test_{module}.py::test_{check}[{parameters}]"
    phase = None if outcome == "passed" else "test"
    found = {"outcome": outcome, "phase": phase, "seconds": 0.1, "reason": None if outcome == "passed" else "why"}
    return {"nodeid": nodeid, "configuration": None, "check": check, **found, **more}


def a_report(gpus: int, **lists: Any) -> dict[str, Any]:
    """As much of report.json as the summary reads."""
    machine = {
        "name": "node",
        "driver": "580.95.05",
        "cuda": "13.0",
        "gpus": [{"index": i, "name": "Tesla T4", "bus_id": f"00000000:{i + 16:02X}:00.0"} for i in range(gpus)],
    }
    run = {"rehearsed": False, "oversubscribed": False, "lmdeploy": None, "run": {"fault": None}, "configurations": []}
    parts: dict[str, Any] = {"tests": [], "pairs": [], "groups": [], "peer_access": [], "preflight": []}
    return {"machine": machine, **run, **parts, **lists}


def whole_fabric(gpus: int) -> dict[str, list[dict[str, Any]]]:
    """Everything passes, in all arms."""
    every = range(gpus)
    pairs = [a_pair(a, b, arm) for arm in ARMS for a, b in itertools.combinations(every, 2)]
    groups = [
        a_group(members, operation, model, arm)
        for members in ([*every], [0, 1])
        for model in ("process", "thread")
        for arm in ("p2p_on", "p2p_off", *(["p2p_direct_off"] if model == "thread" else []))
        for operation in OPERATIONS
    ]
    peers = [a_peer(a, b, how) for how in ("peer_write", "cuda_ipc") for a, b in itertools.permutations(every, 2)]
    tests = [a_test("pairs", "all_reduce", f"GPU{r['a']}-GPU{r['b']}-NODE-{r['arm']}") for r in pairs]
    tests += [a_test("groups", "collective", f"{r['operation']}-{i}") for i, r in enumerate(groups)]
    tests += [a_test("peer_access", r["method"], f"{r['a']}-{r['b']}") for r in peers]
    return {"tests": tests, "pairs": pairs, "groups": groups, "peer_access": peers, "preflight": [a_finding()]}
