"""schema.json itself: the parts that no run fills yet, and what it must refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fixtures.interpreter.help_flags import Flags
from fixtures.interpreter.probe import Lmdeploy
from fixtures.machine.here import Here
from fixtures.machine.machine import Gpu, Machine
from fixtures.matrix import Cell, Configuration
from fixtures.report.run_record import RunRecord
from fixtures.run import Run, ServerSettings
from tests.unit.report.conftest import SCHEMA, check_schema

MEASURED = {
    "arm": "p2p_off",
    "status": "wrong",
    "transport": "SHM",
    "busbw_gb_per_s": 5.2,
    "sizes": [8, 1048576],
    "trials": 3,
    "words": "3 of 1024 elements differ on GPU 1",
}
PAIR = {"a": 0, "b": 1, "link": "NODE", **MEASURED}
GROUP = {"gpus": [0, 1, 2, 3], "operation": "all_reduce", "process_model": "thread_per_gpu", **MEASURED}
PEER = {"a": 1, "b": 0, "method": "cuda_ipc", "status": "waived", "sizes": [], "trials": 0, "words": "no peer access"}
FINDING = {"check": "shm", "level": "ok", "words": "64 GiB free", "consequence": "", "remedy": None}
VERDICT = {
    "class": "p2p-broken",
    "where": "fabric",
    "words": "all-reduce over P2P is wrong between GPU 0 and GPU 1",
    "configuration": "turbomind-tp2-fp16-nccl-p2p_on",
    "tests": ["tests/multigpu/test_server.py::test_founding_request[turbomind-tp2-fp16-nccl-p2p_on]"],
    "evidence": ["bundles/1.tar.gz"],
    "seen": [3, 3],
    "workaround": "NCCL_P2P_DISABLE=1",
}


@pytest.fixture
def report() -> dict[str, Any]:
    """The report of a run that has only begun, on a machine without GPUs."""
    machine = Machine("laptop", (), (), (), why_no_gpus="no NVIDIA driver")
    cell = Cell(Configuration("turbomind", None, 1, "fp16"), "needs 1 GPU, this machine has none: no NVIDIA driver")
    return RunRecord(Run(Here(), machine, (cell,), None, ServerSettings(), Path("reports"))).as_dict()


def test_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_run_without_gpus_or_lmdeploy(report):
    check_schema(report)
    assert report["lmdeploy"] is None
    assert report["configurations"][0]["reason"] == "needs 1 GPU, this machine has none: no NVIDIA driver"


def test_pairs_groups_and_verdicts(report):
    again = {**PAIR, "configuration": "turbomind-tp2-fp16-nccl-p2p_on"}
    check_schema({**report, "pairs": [PAIR, again], "groups": [GROUP], "verdicts": [VERDICT]})
    direct_off = {**GROUP, "arm": "p2p_direct_off"}
    check_schema({**report, "groups": [direct_off], "peer_access": [PEER], "preflight": [FINDING]})


def test_ranks_share_a_gpu_only_where_the_report_says_so(report):
    """The same GPU twice is a mistake elsewhere."""
    shared = {"pairs": [{**PAIR, "b": 0, "link": "X", "ranks": [0, 1]}], "groups": [{**GROUP, "gpus": [0, 0]}]}
    check_schema({**report, **shared, "oversubscribed": True})
    for part, entries in shared.items():
        with pytest.raises(jsonschema.ValidationError):
            check_schema({**report, part: entries})


@pytest.mark.parametrize(
    ("part", "entry", "change"),
    [
        ("pairs", PAIR, {"status": "ok"}),
        ("pairs", PAIR, {"link": "PCI"}),
        ("pairs", PAIR, {"busbw": 5.2}),
        ("groups", GROUP, {"process_model": "threads"}),
        ("pairs", PAIR, {"arm": "p2p_direct_off"}),
        ("pairs", PAIR, {"ranks": []}),
        ("pairs", PAIR, {"configuration": None}),
        ("groups", GROUP, {"configuration": "turbomind-tp2-fp16-nccl-p2p_on"}),
        ("groups", GROUP, {"operation": "all reduce"}),
        ("groups", GROUP, {"arm": "off"}),
        ("peer_access", PEER, {"method": "copy"}),
        ("peer_access", PEER, {"status": "ok"}),
        ("preflight", FINDING, {"level": "error"}),
        ("preflight", FINDING, {"words": ""}),
        ("verdicts", VERDICT, {"class": "broken"}),
        ("verdicts", VERDICT, {"seen": [3]}),
        ("verdicts", VERDICT, {"seen": [3, 3, 3]}),
        ("verdicts", VERDICT, {"where": "gpu"}),
    ],
)
def test_refuses_what_readers_do_not_know(report, part, entry, change):
    with pytest.raises(jsonschema.ValidationError):
        check_schema({**report, part: [{**entry, **change}]})


@pytest.mark.parametrize(("outcome", "reason"), [("skipped", None), ("failed", None), ("passed", "why not")])
def test_reason_belongs_to_what_did_not_pass(report, outcome, reason):
    report["configurations"][0] |= {"outcome": outcome, "reason": reason}
    with pytest.raises(jsonschema.ValidationError):
        check_schema(report)


def test_every_kind_of_link_and_a_gpu(report):
    gpu = Gpu(0, "GPU-1", "NVIDIA H200", "00000000:19:00.0", 143771)
    links = (("X", "NV18", "PIX"), ("PXB", "PHB", "NODE"), ("SYS", "X", "X"))
    lmdeploy = Lmdeploy("/v/python", "0.18.0", Flags({}, {}))
    run = Run(Here(), Machine("h", (gpu,), links, ()), (), lmdeploy, ServerSettings(), Path("reports"))
    made = RunRecord(run).as_dict()
    check_schema(made)
    assert made["machine"]["gpus"] == [
        {"index": 0, "uuid": "GPU-1", "name": "NVIDIA H200", "bus_id": "00000000:19:00.0", "memory_mib": 143771}
    ]
