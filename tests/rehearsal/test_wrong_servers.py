"""A server that answers, but wrongly, or isn't the one that was asked for."""

import pytest

FP16_TP1 = "turbomind-tp1-fp16"
FP16_TP2 = "turbomind-tp2-fp16-nccl-p2p_on"
NARROW = ("--backend=turbomind", "--precision=fp16", "--communicator=nccl", "--p2p=p2p_on")


@pytest.mark.rehearsal("--fault=lost-share", "--gpus=3,2,0", *NARROW)
def test_lost_share_is_wrong_text(rehearsal):
    """Every test that looks at the text fails and names the first wrong token; server and stop are in order."""
    outcomes = rehearsal.outcomes(FP16_TP2)
    assert outcomes.pop("sigterm_ends_it_cleanly") == "passed"
    assert set(outcomes.values()) == {"failed"}
    assert rehearsal.configuration(FP16_TP2)["starts"] == 1
    for check in ("founding_request", "three_canaries", "streamed_equals_plain"):
        assert "differs at token 0: expected 'n0', got " in rehearsal.told(check, FP16_TP2)
    told = rehearsal.told("the_founding_case", FP16_TP2)
    assert "FAILED: wrong text: differs at token 0" in told
    assert f"{FP16_TP2} on GPU2,GPU0, ready in " in told
    line = rehearsal.by_hand(rehearsal.told("founding_request", FP16_TP2))
    assert rehearsal.shown_to(FP16_TP2, line) == [2, 0]
    assert set(rehearsal.outcomes(FP16_TP1).values()) == {"passed"}


@pytest.mark.rehearsal("--fault=wrong-backend", "--gpus=1,0", "--tp=1", "--precision=fp16", "-k=canaries or sigterm")
def test_wrong_backend_is_never_accepted(rehearsal):
    """TurboMind that fell back to PyTorch is an error with lmdeploy's own line; the PyTorch backend itself passes."""
    assert rehearsal.outcomes(FP16_TP1) == {"three_canaries": "set-up", "sigterm_ends_it_cleanly": "set-up"}
    told = rehearsal.told("three_canaries", FP16_TP1)
    assert f"WrongBackend: {FP16_TP1} runs the pytorch backend, turbomind was asked for: its log says: " in told
    assert "Fallback to pytorch engine because" in told
    assert " --backend turbomind " in rehearsal.by_hand(told)
    assert rehearsal.shown_to(FP16_TP1, rehearsal.by_hand(told)) == [1]
    assert set(rehearsal.outcomes("pytorch-tp1-fp16").values()) == {"passed"}
