"""A server that hangs, doesn't end, or leaves something behind: told within the deadline, with what can be seen."""

import re

import pytest

from tests.rehearsal.conftest import NO_SWEEP

FP16_TP1 = "turbomind-tp1-fp16"
FP16_TP2 = "turbomind-tp2-fp16-nccl-p2p_on"
PYTORCH_TP2 = "pytorch-tp2-fp16-nccl-p2p_on"
NARROW = ("--precision=fp16", "--communicator=nccl", "--p2p=p2p_on")


@pytest.mark.rehearsal(
    "--fault=hang-first-request",
    "--gpus=3,1,0",
    "--backend=turbomind",
    *NARROW,
    *NO_SWEEP,
    "--request-timeout=2",
    "-k=founding_request or canaries or streamed",
)
def test_hang_at_the_first_request(rehearsal):
    """The request and its age, what other routes say meanwhile, the processes; the next test gets a fresh server."""
    told = rehearsal.told("founding_request", FP16_TP2)
    assert f"ServerHung: the server {FP16_TP2} lives but hangs: POST /v1/chat/completions (讲一个三国故事)" in told
    assert re.search(r"no whole answer within 2 s \(sent 2\.\d s ago\)", told)
    assert "meanwhile GET /v1/models: 200" in told
    assert "meanwhile GET /health: 200" in told
    assert re.search(r"pid \d+: state \w, \d+ threads, .* kernel wait \S+, .* serve api_server ", told)
    assert " serve api_server " in rehearsal.by_hand(told)
    assert rehearsal.shown_to(FP16_TP2, rehearsal.by_hand(told)) == [1, 0]
    expected = {"founding_request": "failed", "three_canaries": "failed", "streamed_equals_plain": "set-up"}
    assert rehearsal.outcomes(FP16_TP2) == expected
    assert set(rehearsal.outcomes(FP16_TP1).values()) == {"passed"}


@pytest.mark.rehearsal(
    "--fault=hang-at-start",
    "--backend=turbomind",
    *NARROW,
    *NO_SWEEP,
    "--start-timeout=2",
    "--max-restarts=0",
    "-k=request",
)
def test_hang_at_start(rehearsal):
    """No progress for --start-timeout: an error that says so, with the processes; then no further server."""
    told = rehearsal.told("founding_request", FP16_TP2)
    assert re.search(
        rf"ServerHung: the server {FP16_TP2} lives but hangs: not ready after \d\.\d s, and no progress"
        r" \(log line, growing memory\) for 2\.\d s; --start-timeout=2\n",
        told,
    )
    assert re.search(r"pid \d+: state \w, .* serve api_server ", told)
    assert set(rehearsal.outcomes(FP16_TP2).values()) == {"set-up"}
    assert "--max-restarts=0" in rehearsal.reason("sixteen_concurrent_requests", FP16_TP2)
    assert set(rehearsal.outcomes(FP16_TP1).values()) == {"passed"}


# The stop asked for by a test, and then the one after the last test.
STOP_AND_CANARIES = ("tests/multigpu/test_stop.py", "tests/multigpu/test_requests.py::test_three_canaries")


@pytest.mark.rehearsal(
    "--fault=ignores-sigterm",
    "--gpus=2",
    "--backend=turbomind",
    "--tp=1",
    *NARROW,
    "--stop-timeout=1",
    *STOP_AND_CANARIES,
)
def test_server_that_ignores_sigterm(rehearsal):
    """SIGKILL after the deadline, told by the test that stops it, and else by the configuration's last test."""
    assert rehearsal.outcomes(FP16_TP1) == {"sigterm_ends_it_cleanly": "failed", "three_canaries": "tear-down"}
    words = "the server wasn't stopped cleanly: SIGTERM didn't end it within 1 s; SIGKILL was needed"
    for check in ("sigterm_ends_it_cleanly", "three_canaries"):
        assert words in rehearsal.reason(check, FP16_TP1)
        told = rehearsal.told(check, FP16_TP1)
        assert re.search(r"pid \d+: state \w, .* serve api_server ", told)
        assert rehearsal.shown_to(FP16_TP1, rehearsal.by_hand(told)) == [2]


@pytest.mark.rehearsal(
    "--fault=orphan-rank",
    "--node=a100x8",
    "--gpus=6,2,1",
    "--backend=pytorch",
    *NARROW,
    *NO_SWEEP,
    *STOP_AND_CANARIES,
)
def test_rank_that_outlives_its_server(rehearsal):
    """The process that is left is named, and ended; a configuration without such ranks passes."""
    assert rehearsal.outcomes(PYTORCH_TP2) == {"sigterm_ends_it_cleanly": "failed", "three_canaries": "tear-down"}
    for check in ("sigterm_ends_it_cleanly", "three_canaries"):
        reason = rehearsal.reason(check, PYTORCH_TP2)
        assert re.search(r"a process outlives the server: pid \d+: state \w, .* serve api_server ", reason)
        line = rehearsal.by_hand(rehearsal.told(check, PYTORCH_TP2))
        assert rehearsal.shown_to(PYTORCH_TP2, line) == [6, 2]
    assert set(rehearsal.outcomes("pytorch-tp1-fp16").values()) == {"passed"}
