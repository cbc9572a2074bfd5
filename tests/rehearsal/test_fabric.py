"""A broken path between GPUs: its pair or group is told, nobody else is disturbed, and lmdeploy isn't blamed for it."""

import re

import pytest

from fixtures.rehearsal.nodes import load_node
from tests.rehearsal.conftest import REVERSED

FP16_TP2 = "turbomind-tp2-fp16-nccl"
BUS = {gpu.index: gpu.bus_id for gpu in load_node("a100x8").gpus}
RESULTS = 236  # of a pair on both GPUs: sizes, types, in place or not, two iterations each; six runs measured

# Six GPUs in an order of their own, so 15 pairs, each fault of a pair at another one; with P2P off what differs there.
a_fault_a_pair = pytest.mark.rehearsal(
    "--fault=tests/rehearsal/scenes/a-fault-a-pair.toml",
    "--node=a100x8",
    "--gpus=3,5,1,0,4,2",
    "--pair-timeout=4",
    "-k=p2p_on or p2p_forced or GPU3-GPU5 or GPU0-GPU2 or peer_access",
    "tests/multigpu/test_pairs.py",
    "tests/multigpu/test_peer_access.py",
)
group_hang = pytest.mark.rehearsal(
    "--fault=group-hang",
    "--gpus=3,0,1,2",
    "--pair-timeout=3",
    "-k=p2p_on and all_reduce or peer_access",
    "tests/multigpu/test_pairs.py",
    "tests/multigpu/test_groups.py",
    "tests/multigpu/test_peer_access.py",
)
broken_fabric = pytest.mark.rehearsal(
    "--fault=broken-fabric",
    *REVERSED,
    "--gpus=3,2,1",
    "--backend=turbomind",
    "--communicator=nccl",
    "--tp=2",
    "--precision=fp16",
    "--max-restarts=0",
    "--request-timeout=2",
    "--pair-timeout=2",
    "tests/multigpu/test_requests.py::test_founding_request",
)


@a_fault_a_pair
def test_no_other_pair_is_disturbed(rehearsal):
    """Not even the next ones of GPUs whose workers hung, died or were killed."""
    assert rehearsal.status == 1
    assert rehearsal.not_passed("pairs", "a", "b", "arm") == {
        (1, 0, "p2p_on"): "wrong",
        (1, 2, "p2p_on"): "wrong",
        (3, 2, "p2p_on"): "wrong",
        (3, 4, "p2p_on"): "wrong",
        (5, 4, "p2p_on"): "wrong",
        (5, 0, "p2p_on"): "hung",
        (1, 4, "p2p_on"): "crashed",
        (0, 2, "p2p_on"): "wrong",
        (3, 5, "p2p_off"): "wrong",
        (3, 0, "p2p_forced"): "waived",
    }
    assert rehearsal.not_passed("peer_access", "a", "b", "method") == {
        (a, b, method): status
        for pair, status in (((0, 2), "wrong"), ((0, 3), "waived"))
        for a, b in (pair, pair[::-1])
        for method in ("peer_write", "cuda_ipc")
    }
    assert (len(rehearsal.report["pairs"]), len(rehearsal.report["peer_access"])) == (15 + 2 + 1, 2 * 30)


@a_fault_a_pair
def test_lmdeploy_is_not_blamed(rehearsal):
    """Each failure says that none ran, no configuration has failed, and no pair's record names it."""
    failed = [test for test in rehearsal.report["tests"] if test["outcome"] == "failed"]
    assert len(failed) == 9 + 4
    assert all(test["reason"].startswith("FabricFailure: ") for test in failed)
    # pytest's summary holds each failure's first line here, and all of its lines where CI is set.
    told = rehearsal.output.partition("short test summary info")[0]
    assert told.count("; no lmdeploy ran\n") == len(failed)
    assert {entry["outcome"] for entry in rehearsal.report["configurations"]} == {"skipped"}
    assert not [one for one in rehearsal.report["pairs"] if "lmdeploy" in one["words"]]


@a_fault_a_pair
@pytest.mark.parametrize(
    ("a", "b", "on", "arm", "pattern"),
    [
        pytest.param(1, 0, 1, "p2p_on", r"zeros", id="pair-wrong-zeros"),
        pytest.param(1, 2, 2, "p2p_on", r"stale, the result of iteration \d+", id="pair-wrong-stale"),
        pytest.param(
            3, 2, 3, "p2p_on", r"shifted, holding what belongs 16 elements further on", id="pair-wrong-shifted"
        ),
        pytest.param(3, 4, 4, "p2p_on", r"GPU3's share alone( \(or GPU4's share left out\))?", id="pair-wrong-share"),
        pytest.param(5, 4, 5, "p2p_on", r"GPU4's share doubled", id="pair-wrong-doubled"),
        pytest.param(3, 5, 5, "p2p_off", r"zeros", id="off-arm-wrong"),
    ],
)
def test_wrong_pair_is_told_with_its_pattern(rehearsal, a, b, on, arm, pattern):
    """Both GPUs and their link; on which of them results are wrong, where first, and that all of them look the same."""
    told = rehearsal.told("all_reduce", f"GPU{a}-GPU{b}-NV12-{arm}")
    assert f"FabricFailure: wrong: GPU{a} ({BUS[a]}) and GPU{b} ({BUS[b]}), link NV12, {arm}\n" in told
    words = rehearsal.record("pairs", a=a, b=b, arm=arm)["words"]
    assert re.match(
        rf"\d+ of {RESULTS} results wrong on GPU{on}; first at all_reduce int32 [\w ]+: "
        rf"\d+ of \d+ elements wrong, (at|in one block of \d+ from) \d+: {pattern}; over ",
        words,
    )
    evidence = rehearsal.record("pairs", a=a, b=b, arm=arm)["evidence"]
    assert evidence
    assert "\n".join(evidence) in re.split(r"^-+ evidence -+$", told, flags=re.MULTILINE)[1]
    for line in evidence:
        assert re.fullmatch(rf"GPU{on}: all_reduce .*, iteration \d+: .* elements wrong, .*: {pattern}", line)


@a_fault_a_pair
def test_off_arm_may_be_wrong_alone(rehearsal):
    """The arm without P2P is no truth: the same pair is exact with it."""
    on, off = (rehearsal.record("pairs", a=3, b=5, arm=arm) for arm in ("p2p_on", "p2p_off"))
    assert (on["status"], on["transport"]) == ("pass", "P2P/CUMEM")
    assert (off["status"], off["transport"]) == ("wrong", "SHM")


@a_fault_a_pair
def test_hung_pair_costs_its_deadline_once(rehearsal):
    """One trial, which stood still at its first step: not a deadline for each size."""
    record = rehearsal.record("pairs", a=5, b=0, arm="p2p_on")
    assert record["words"].startswith("no progress for 4 s at all_reduce int32 4 B: all of GPU5, GPU0 are in it; over ")
    assert record["trials"] == 1
    told = rehearsal.told("all_reduce", "GPU5-GPU0-NV12-p2p_on")
    assert f"FabricFailure: hung: GPU5 ({BUS[5]}) and GPU0 ({BUS[0]}), link NV12, p2p_on\n" in told
    for gpu in (0, 5):
        assert f"\nGPU{gpu}: last at all_reduce int32 4 B\n" in told
        assert re.search(rf"^GPU{gpu} \(pid \d+\): sleeping \(state S\)", told, flags=re.MULTILINE)


@a_fault_a_pair
def test_crash_names_the_process_that_died(rehearsal):
    """Its GPU, signal and step; what the other one met of it is a consequence."""
    words = rehearsal.record("pairs", a=1, b=4, arm="p2p_on")["words"]
    assert re.match(
        r"GPU4 \(pid \d+\) was killed by SIGSEGV \(Segmentation fault\) at all_reduce int32 64 KiB; over ", words
    )
    told = rehearsal.told("all_reduce", "GPU1-GPU4-NV12-p2p_on")
    assert f"FabricFailure: crashed: GPU1 ({BUS[1]}) and GPU4 ({BUS[4]}), link NV12, p2p_on\n" in told
    assert re.search(r"^GPU1 \(pid \d+\), afterwards: ", told, flags=re.MULTILINE)
    assert re.search(r"^GPU4 wrote: Fatal Python error: Segmentation fault$", told, flags=re.MULTILINE)


@a_fault_a_pair
def test_bandwidth_never_decides(rehearsal):
    """A pair that loses 20 ms at each 1 MiB is shown as slow as it is, and passes."""
    record = rehearsal.record("pairs", a=5, b=2, arm="p2p_on")
    assert record["status"] == "pass"
    assert record["words"].startswith(f"exact: {RESULTS} results of ")
    assert 0 < record["busbw_gb_per_s"] <= 2**20 / 0.020 / 1e9


@a_fault_a_pair
def test_refused_peer_access(rehearsal):
    """Over shared memory the pair is exact and says why; what needs peer access is waived, not failed."""
    refused = "no peer access between GPU3 and GPU0 (chipset not supported)"
    on, forced = (rehearsal.record("pairs", a=3, b=0, arm=arm) for arm in ("p2p_on", "p2p_forced"))
    assert (on["status"], on["transport"]) == ("pass", "SHM")
    assert on["words"].endswith(f"NCCL chose SHM: {refused}")
    assert (forced["trials"], forced["words"]) == (0, refused)
    peer = rehearsal.record("peer_access", a=3, b=0, method="peer_write")["words"]
    assert peer.startswith(f"{refused}: lmdeploy's cuda-ipc communicator can't work")
    assert f"SKIPPED [1] tests/multigpu/test_pairs.py:10: {refused}\n" in rehearsal.output


@a_fault_a_pair
def test_lying_peer_access(rehearsal):
    """The driver says yes and the data is lost: wrong on both GPUs and in both directions, exact without P2P."""
    on, off = (rehearsal.record("pairs", a=0, b=2, arm=arm) for arm in ("p2p_on", "p2p_off"))
    assert (on["status"], on["transport"]) == ("wrong", "P2P/CUMEM")
    assert on["words"].startswith(
        f"{RESULTS} of {RESULTS} results wrong on GPU0 and GPU2; first at all_reduce int32 4 B"
    )
    assert (off["status"], off["transport"]) == ("pass", "SHM")
    for writer, owner in ((0, 2), (2, 0)):
        for method in ("peer_write", "cuda_ipc"):
            told = rehearsal.told("peer_access", f"GPU{writer}-to-GPU{owner}-{method}")
            where = f"{method} from GPU{writer} ({BUS[writer]}) to GPU{owner} ({BUS[owner]})"
            assert f"FabricFailure: wrong: {where}\n" in told
            words = rehearsal.record("peer_access", a=writer, b=owner, method=method)["words"]
            assert words.startswith(f"what GPU{writer} stored isn't what GPU{owner} reads: 8 bytes: 2 of 2 words wrong")
            assert ": the store never reached the owner; granted but broken: " in words


@group_hang
def test_group_hangs_though_all_its_pairs_pass(rehearsal):
    """In both process models, all four GPUs named; the group of two passes too."""
    assert rehearsal.status == 1
    assert [pair["status"] for pair in rehearsal.report["pairs"]] == ["pass"] * 6
    whole, two = [3, 0, 1, 2], [1, 2]
    four = ", ".join(f"GPU{gpu['index']} ({gpu['bus_id']})" for gpu in rehearsal.report["machine"]["gpus"])
    for model in ("process_per_gpu", "thread_per_gpu"):
        place = {"operation": "all_reduce", "process_model": model, "arm": "p2p_on"}
        assert rehearsal.record("groups", gpus=two, **place)["status"] == "pass"
        record = rehearsal.record("groups", gpus=whole, **place)
        assert (record["status"], record["trials"]) == ("hung", 1)
        assert record["words"].startswith(
            "no progress for 3 s at all_reduce int32 4 B: all of GPU3, GPU0, GPU1, GPU2 are in it; "
        )
        told = rehearsal.told("collective", f"all_reduce-GPU3+0+1+2-{model}-p2p_on")
        assert f"FabricFailure: hung: all_reduce over {four}, {model}, p2p_on\n" in told
        assert "; no lmdeploy ran\n" in told
    assert len(rehearsal.report["groups"]) == 4


@group_hang
def test_peer_access_is_that_of_the_node(rehearsal):
    """GPU3 alone has none, and stands first in this run: what was asked of it is waived, the rest is well."""
    assert rehearsal.not_passed("peer_access", "a", "b", "method") == {
        (a, b, method): "waived"
        for other in (0, 1, 2)
        for a, b in ((3, other), (other, 3))
        for method in ("peer_write", "cuda_ipc")
    }
    assert len(rehearsal.report["peer_access"]) == 24
    assert "peer access: 12 ok, 12 skip\n" in rehearsal.output


@broken_fabric
def test_failed_server_is_told_with_the_fabric_under_it(rehearsal):
    """The pair that the server stood on, again and in both arms, before its log; with P2P off the server answers.

    The same sections in the same order as ever, though the plugins come in another.
    """
    on, off = f"{FP16_TP2}-p2p_on", f"{FP16_TP2}-p2p_off"
    assert rehearsal.status == 1
    told = rehearsal.told("founding_request", on)
    assert f"ServerHung: the server {on} lives but hangs" in told
    section = re.search(rf"^-+ the fabric under {on} -+\n((?s:.*?))^-+ api_server {on}: log -+$", told, re.MULTILINE)
    lines = section[1].splitlines()
    assert lines[0] == "all-reduce over each pair of its GPUs again, after the server was ended:"
    pair = "GPU2 (00000000:5F:00.0) and GPU1 (00000000:5E:00.0), link PHB"
    hung, *evidence, passed = lines[1:]
    assert hung.startswith(
        f"hung: {pair}, p2p_on: no progress for 2 s at all_reduce int32 4 B: all of GPU2, GPU1 are in it"
    )
    assert "    GPU1: last at all_reduce int32 4 B" in evidence
    assert passed.startswith(f"pass: {pair}, p2p_off: exact: ")
    assert rehearsal.shown_to(on, rehearsal.by_hand(told)) == [2, 1]
    fields = ("a", "b", "arm", "status", "configuration")
    found = [tuple(one[field] for field in fields) for one in rehearsal.report["pairs"]]
    assert found == [(2, 1, "p2p_on", "hung", on), (2, 1, "p2p_off", "pass", on)]
    assert f"  again under a failed server: p2p_on 1 HUNG, p2p_off 1 ok: {on}\n" in rehearsal.output
    assert rehearsal.outcomes(off) == {"founding_request": "passed"}
