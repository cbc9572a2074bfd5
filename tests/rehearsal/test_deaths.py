"""A server that dies: its test fails with the account of the death, and nobody else's does."""

import re
import subprocess

import pytest

from tests.rehearsal.conftest import NO_SWEEP

FP16_TP1 = "turbomind-tp1-fp16"
AWQ_TP1 = "turbomind-tp1-awq"
FP16_TP2 = "turbomind-tp2-fp16-nccl-p2p_on"
AWQ_TP2 = "turbomind-tp2-awq-nccl-p2p_on"
PYTORCH_TP2 = "pytorch-tp2-fp16-nccl-p2p_on"
NARROW = ("--communicator=nccl", "--p2p=p2p_on")

abort_first_request = pytest.mark.rehearsal(
    "--fault=abort-first-request",
    "--gpus=3,2,1",
    "--backend=turbomind",
    *NARROW,
    *NO_SWEEP,
    "-k=founding or canaries or survives",
)
crash_at_start = pytest.mark.rehearsal(
    "--fault=crash-at-start",
    "--node=a100x8",
    "--gpus=6,2,1",
    "--backend=turbomind",
    "--precision=fp16",
    *NARROW,
    *NO_SWEEP,
    "tests/multigpu/test_requests.py",
)
killed_from_outside = pytest.mark.rehearsal(
    "--backend=turbomind",
    "--tp=1",
    "--precision=fp16",
    "--max-restarts=3",
    "tests/rehearsal/scenes/killed_from_outside.py",
)


@abort_first_request
def test_abort_is_told_by_the_test_that_met_it(rehearsal):
    """Signal, phase, request in flight and its age, log, and the command that repeats it."""
    assert rehearsal.status == 1
    told = rehearsal.told("founding_request", FP16_TP2)
    assert re.search(rf"ServerDied: the server {FP16_TP2} \(pid \d+\) killed by SIGABRT \(Aborted\)", told)
    assert "(Aborted) while serving 1 request\n" in told
    assert re.search(r"in flight: POST /v1/chat/completions \(讲一个三国故事\), for \d+\.\d\d s", told)
    assert re.search(rf"^-+ api_server {FP16_TP2}: log -+$", told, flags=re.MULTILINE)
    assert "Uvicorn running on" in told
    assert re.search(r"# lmdeploy 0\.18\.0, torch \S+, NCCL \S+, driver \S+, CUDA \S+", told)
    assert " serve api_server " in rehearsal.by_hand(told)
    assert rehearsal.shown_to(FP16_TP2, rehearsal.by_hand(told)) == [2, 1]
    assert "SIGABRT (Aborted)" in rehearsal.reason("founding_request", FP16_TP2)


@abort_first_request
def test_configurations_without_the_fault_pass(rehearsal):
    """AWQ lives, on one GPU and on two, and so does fp16 on one."""
    for configuration in (FP16_TP1, AWQ_TP1, AWQ_TP2):
        assert set(rehearsal.outcomes(configuration).values()) == {"passed"}
        assert rehearsal.configuration(configuration)["outcome"] == "passed"
    assert rehearsal.configuration(FP16_TP2)["outcome"] == "failed"


@abort_first_request
def test_restarts_end(rehearsal):
    """The next test gets a fresh server; with --max-restarts=1 spent, the others are errors that say so, no skips."""
    outcomes = rehearsal.outcomes(FP16_TP2)
    assert [outcomes.pop(check) for check in ("founding_request", "three_canaries")] == ["failed", "failed"]
    assert outcomes.pop("the_founding_case") == "failed"
    assert set(outcomes.values()) == {"set-up"}
    assert rehearsal.configuration(FP16_TP2)["starts"] == 2
    assert "--max-restarts=1" in rehearsal.reason("process_survives", FP16_TP2)
    told = rehearsal.told("process_survives", FP16_TP2)
    assert re.search(r"loss 1: .*SIGABRT.*\n.*loss 2: .*SIGABRT", told)


@abort_first_request
def test_founding_case_has_both_in_one_report(rehearsal):
    """fp16 on two GPUs died, AWQ on one answered."""
    told = rehearsal.told("the_founding_case", FP16_TP2)
    assert re.search(rf"{FP16_TP2} on GPU2,GPU1, ready in .*\n.*FAILED: .*killed by SIGABRT \(Aborted\)", told)
    assert re.search(rf"{AWQ_TP1} on GPU3, ready in .*\n.*answered in \d", told)
    sections = re.findall(r"^-+ (api_server .*: log|repeat it by hand) -+$", told, flags=re.MULTILINE)
    assert sections == [f"api_server {FP16_TP2}: log", "repeat it by hand"], "of the one that failed"


@crash_at_start
def test_crash_at_start_is_told_with_its_last_words(rehearsal):
    """Exit code, phase, and the NCCL error among the last log lines; the configuration on one GPU passes."""
    told = rehearsal.told("founding_request", FP16_TP2)
    assert re.search(rf"ServerDied: the server {FP16_TP2} \(pid \d+\) exited with code 1 while starting\n", told)
    assert re.search(r"last useful log lines:\n( {4}.*\n)* {4}.*RuntimeError: NCCL error \S+nccl\.cu:527", told)
    assert set(rehearsal.outcomes(FP16_TP2).values()) == {"set-up"}
    assert set(rehearsal.outcomes(FP16_TP1).values()) == {"passed"}


@crash_at_start
def test_repeated_by_hand_it_happens_again(rehearsal):
    """The line under "repeat it by hand", pasted into a shell, gives the same crash."""
    line = rehearsal.by_hand(rehearsal.told("founding_request", FP16_TP2))
    assert rehearsal.shown_to(FP16_TP2, line) == [6, 2]
    again = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30)
    assert again.returncode == 1
    assert "nccl.cu:527 'unhandled cuda error" in again.stderr + again.stdout


@pytest.mark.rehearsal(
    "--fault=exit-zero", "--gpus=2,0", "--backend=turbomind", "--tp=1", "--precision=fp16", "--max-restarts=0", *NARROW
)
def test_exit_with_code_0_is_a_death(rehearsal):
    """Any exit while serving is a failure; no restarts allowed: the very next test is an error."""
    told = rehearsal.told("founding_request", FP16_TP1)
    assert "exited with code 0 while serving 1 request; any exit while serving is a failure" in told
    assert rehearsal.shown_to(FP16_TP1, rehearsal.by_hand(told)) == [2]
    outcomes = rehearsal.outcomes(FP16_TP1)
    assert outcomes.pop("founding_request") == "failed"
    assert set(outcomes.values()) == {"set-up"}
    assert rehearsal.configuration(FP16_TP1)["starts"] == 1


@pytest.mark.rehearsal("--fault=tests/rehearsal/scenes/rank-aborts.toml", "--gpus=2,0,1", "--backend=pytorch", *NARROW)
def test_fault_of_the_users_own(rehearsal):
    """A rank that aborts at the third request: its test fails, by the server's exit and the rank's signal."""
    assert rehearsal.outcomes(PYTORCH_TP2)["founding_request"] == "passed"
    assert rehearsal.outcomes(PYTORCH_TP2)["three_canaries"] == "failed"
    told = rehearsal.told("three_canaries", PYTORCH_TP2)
    assert re.search(rf"ServerDied: the server {PYTORCH_TP2} \(pid \d+\) .* while serving 1 request\n", told)
    assert re.search(r"in flight: POST /v1/chat/completions \(Are you alive\?, max_tokens 1\), for \d", told)
    assert re.search(r"rank: pid \d+ \(\S+\) killed by SIGABRT \(Aborted\)", told)
    assert rehearsal.shown_to(PYTORCH_TP2, rehearsal.by_hand(told)) == [2, 1]
    assert set(rehearsal.outcomes("pytorch-tp1-fp16").values()) == {"passed"}


@killed_from_outside
def test_killed_from_outside_between_requests(rehearsal):
    """The test that was running fails at once, though it asked for nothing; the next one gets a fresh server."""
    told = rehearsal.told("killed_while_nothing_is_asked", FP16_TP1)
    assert re.search(r"ServerDied: .* killed by SIGKILL \(Killed\) while between requests\n", told)
    assert "in flight" not in told
    assert rehearsal.outcomes(FP16_TP1)["after_it"] == "passed"
    seconds = {test["check"]: test["seconds"] for test in rehearsal.report["tests"]}
    assert seconds["killed_while_nothing_is_asked"] < 10  # its own pause is 30 s


@killed_from_outside
def test_killed_from_outside_between_tests(rehearsal):
    """No test ran: the next one of the configuration tells of it before it begins, or the last one after it ended."""
    outcomes = rehearsal.outcomes(FP16_TP1)
    assert outcomes["killed_after_its_end"] == "passed"
    assert outcomes["next"] == "set-up"
    assert "killed by SIGKILL (Killed) while between requests" in rehearsal.reason("next", FP16_TP1)
    assert outcomes["next_but_one"] == "passed"
    assert outcomes["last"] == "tear-down"
    assert "killed by SIGKILL (Killed) while between requests" in rehearsal.reason("last", FP16_TP1)
    assert rehearsal.configuration(FP16_TP1)["starts"] == 3
