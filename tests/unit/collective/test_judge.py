"""What was seen of a trial, in a status and words: hand-made trials of each kind."""

from types import SimpleNamespace

import pytest

from fixtures.collective.exchange import Exchange, Participant
from fixtures.collective.judge import judge
from fixtures.processes.proctable import process_state
from tests.unit.collective.conftest import step

STEPS = [step(), step("all_gather"), step("measure", count=2**18, iterations=2)]  # five results a rank
WARNING = "\nhost:71:71 [1] transport/p2p.cc:273 NCCL WARN Cuda failure 'invalid argument'\n"
RAS = """\
NCCL version 2.28.9 compiled with CUDA 13.0

Errors
======

INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 1 managed by process 71 on node host

"""


@pytest.fixture
def member():
    """Call it with a rank (or several) and what is known of it."""

    def make(*ranks, output="", **known):
        worker = SimpleNamespace(pid=70 + ranks[0], wrote=lambda: [line for line in output.splitlines() if line])
        return Participant(worker, ranks, tuple(f"GPU{rank}" for rank in ranks), **known)

    return make


def found(rank, *, wrong=(), seconds=()):
    return [{"rank": rank, "results": 5, "wrong": list(wrong), "wrong_results": len(wrong), "seconds": list(seconds)}]


def error(rank, text, time, kind="failed"):
    return {"rank": rank, "error": text, "kind": kind, "time": time}


def test_pass_has_the_median_of_the_runs(member):
    members = [member(0, found=found(0, seconds=[1e-3, 9.0])), member(1, found=found(1, seconds=[1e-3]))]
    outcome = judge(Exchange(STEPS, members, "done"))
    assert (outcome.status, outcome.words) == ("pass", "exact: 10 results of 3 steps, bit for bit")
    assert outcome.busbw_gb_per_s == pytest.approx(2**20 / 1e-3 / 1e9)


def test_a_rank_that_compared_less_passes_nothing(member):
    """Whatever kept it from comparing: nothing wrong was found where nobody looked."""
    less = [{**found(1)[0], "results": 4}]
    outcome = judge(Exchange(STEPS, [member(0, found=found(0)), member(1, found=less)], "done"))
    assert outcome.status == "inconclusive"
    assert outcome.words == "GPU1 compared 4 of 5 results: a fault of the suite's own worker"
    outcome = judge(Exchange(STEPS, [member(0, 1, found=found(0))], "done"))
    assert (outcome.status, outcome.words.partition(" of")[0]) == ("inconclusive", "GPU1 compared 0")


def test_wrong_names_the_gpu_and_the_first_step(member):
    one = {"step": 1, "iteration": 2, "words": "16 of 2042 wrong from 0 on: zeros"}
    outcome = judge(Exchange(STEPS, [member(0, found=found(0)), member(1, found=found(1, wrong=[one, one]))], "done"))
    words = "2 of 10 results wrong on GPU1; first at all_gather fp32 4084 B: 16 of 2042 wrong from 0 on: zeros"
    assert (outcome.status, outcome.words, outcome.culprits) == ("wrong", words, ("GPU1",))
    assert outcome.evidence[0] == "GPU1: all_gather fp32 4084 B, iteration 2: 16 of 2042 wrong from 0 on: zeros"


def test_wrong_tells_ranks_by_their_gpus(member):
    """Rank 0 of a pair may be any GPU."""
    words = "all wrong: rank 0's share alone (or rank 1's share left out)"
    one = {"step": 1, "iteration": 2, "words": words}
    members = [member(0, found=found(0)), member(1, found=found(1, wrong=[one]))]
    members[0].names, members[1].names = ("GPU3",), ("GPU4",)
    outcome = judge(Exchange(STEPS, members, "done"))
    told = "all wrong: GPU3's share alone (or GPU4's share left out)"
    assert outcome.words == f"1 of 10 results wrong on GPU4; first at all_gather fp32 4084 B: {told}"
    assert outcome.evidence == (f"GPU4: all_gather fp32 4084 B, iteration 2: {told}",)


def test_hung_names_who_is_behind(member):
    members = [member(0, reached={0: 1}, state="sleeping"), member(1, reached={1: 0}, state="running")]
    outcome = judge(Exchange(STEPS, members, "hung", seconds_still=30.0, ras=[RAS]))
    assert outcome.status == "hung"
    assert outcome.words == (
        "no progress for 30 s at all_gather fp32 4084 B: "
        "GPU1 didn't get beyond all_reduce fp32 4084 B, while GPU0 was at all_gather fp32 4084 B"
    )
    assert outcome.culprits == ("GPU1",)
    assert "GPU1 (pid 71): running" in outcome.evidence
    (ras,) = [line for line in outcome.evidence if "RAS" in line]
    assert ras == "NCCL's RAS: rank 1 (GPU 1, process 71) is missing"


def test_hung_blames_nobody_where_all_wait(member):
    members = [member(0, 1, reached={0: 1, 1: 1}), member(2, reached={2: 1})]
    outcome = judge(Exchange(STEPS, members, "hung", seconds_still=30.0, ras=[]))
    assert outcome.words == "no progress for 30 s at all_gather fp32 4084 B: all of GPU0, GPU1, GPU2 are in it"
    assert outcome.culprits == ()
    assert "NCCL's RAS: no answer" in outcome.evidence


def test_a_rank_that_is_done_hangs_nobody(member):
    members = [member(0, reached={0: 3}, found=found(0)), member(1, reached={1: 3})]
    outcome = judge(Exchange(STEPS, members, "hung", seconds_still=30.0))
    assert outcome.words.startswith("no progress for 30 s at closing the communicator")


@pytest.mark.parametrize(
    ("code", "how"), [(-11, "was killed by SIGSEGV (Segmentation fault)"), (7, "exited with code 7")]
)
def test_died_says_how_and_where_and_what_it_wrote(member, code, how):
    """The threads of one process: where the hindmost was."""
    dead = member(0, 1, reached={0: 2, 1: 1}, code=code, output="Fatal Python error\n\n  in ncclAllGather\n")
    other = member(2, reached={2: 2}, error=error(2, "NcclError: remote", 1.0))
    outcome = judge(Exchange(STEPS, [dead, other], "died"))
    assert (outcome.status, outcome.culprits) == ("crashed", ("GPU0", "GPU1"))
    assert outcome.words == f"GPU0+GPU1 (pid 70) {how} at all_gather fp32 4084 B"
    assert outcome.evidence == (
        "GPU2 (pid 72), afterwards: NcclError: remote",
        "GPU0+GPU1 wrote: Fatal Python error",
        "GPU0+GPU1 wrote:   in ncclAllGather",
    )


def test_failed_tells_the_first_error_by_the_clock(member):
    """And what NCCL warned of."""
    members = [
        member(0, reached={0: 1}, error=error(0, "NcclError: remote process exited", 5.2)),
        member(1, 2, reached={1: 1, 2: 0}, error=error(2, "NcclError: unhandled cuda error", 5.1)),
    ]
    outcome = judge(Exchange(STEPS, members, "failed", logs=["", WARNING]))
    words = "GPU2 (pid 71) at all_reduce fp32 4084 B: NcclError: unhandled cuda error; NCCL: "
    assert outcome.words.startswith(words)
    assert "Cuda failure 'invalid argument'" in outcome.words
    assert (outcome.status, outcome.culprits) == ("crashed", ("GPU2",))


def test_out_of_memory_wins_over_an_earlier_error(member):
    members = [
        member(0, reached={0: 0}, error=error(0, "NcclError: remote process exited", 5.0)),
        member(1, reached={1: 0}, error=error(1, "OutOfMemoryError: CUDA out of memory", 5.1, "out_of_memory")),
    ]
    outcome = judge(Exchange(STEPS, members, "failed"))
    assert outcome.status == "inconclusive"
    assert outcome.words == "GPU1 (pid 71) at all_reduce fp32 4084 B: OutOfMemoryError: CUDA out of memory"


def test_a_process_that_is_gone_has_no_state():
    assert process_state(2**22 + 1) == "gone"
