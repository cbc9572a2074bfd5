"""Two ranks on one GPU: the launcher and the two nodes that a run with one GPU needs, rehearsed."""

import pytest

RUN = ("--node=a100x8", "--gpus=6", "--oversubscribe", "--tp=2", "--backend=turbomind", "--precision=fp16")


@pytest.mark.rehearsal(*RUN)
def test_one_gpu_serves_two_ranks(rehearsal):
    """Over NCCL as two nodes and over cuda-ipc in one process, all exact, and labelled wherever one looks."""
    assert rehearsal.status == 0
    for configuration in ("turbomind-tp2-fp16-nccl-shared_gpu", "turbomind-tp2-fp16-cuda_ipc-shared_gpu"):
        assert set(rehearsal.outcomes(configuration).values()) == {"passed"}
        assert rehearsal.configuration(configuration)["gpus"] == [6]
    assert rehearsal.report["oversubscribed"]
    assert "OVERSUBSCRIBED: the path between GPUs is not tested; no verdict on the fabric" in rehearsal.output
    assert not rehearsal.left
