"""Ten thousand random corruptions are all detected, and what they show is named."""

import random
import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch

import fixtures.collective

sys.path.insert(0, str(Path(fixtures.collective.__file__).parent / "under_test"))

from diagnosis import BLOCK, explain
from expectation import Expectation
from operations import COLLECTIVES
from pattern import DTYPES, bits, poison, wrong_count

CORRUPTIONS = 10_000
NAMED_EVERY = 5  # naming takes 20 times as long as counting
ITERATION = 5


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Threads of torch wait for each other in loops, which takes long where other processes have the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Case:
    """One rank's side of one operation, with its data at hand."""

    def __init__(self, operation, dtype, world_size, count):
        self.count = count
        self.expectation = Expectation(operation, dtype, world_size, rank=world_size - 1, device="cpu")
        self.right = self.expectation.result(count, ITERATION)
        self.stale = [self.expectation.result(count, ITERATION - back) for back in (1, 2)]
        offset = self.expectation.offset(count)
        self.shares, self.old_shares = (
            [self.expectation.pattern.share(count, rank, iteration, offset) for rank in range(world_size)]
            for iteration in (ITERATION, ITERATION - 1)
        )

    def explain(self, got):
        return self.expectation.explain(got, self.count, ITERATION)

    def corrupted(self, kind, at, rng):
        """The right result corrupted at the elements `at` (a slice), and what must be found."""
        got, right = self.right.clone(), self.right
        rank = rng.randrange(len(self.shares))
        facts = {"rank": rank}
        if kind == "zeros":
            got[at], facts = 0, {}
        elif kind == "never_written":
            poison(got[at])
            facts = {}
        elif kind == "stale":
            back = rng.choice((1, 2))
            got[at], facts = self.stale[back - 1][at], {"iteration": ITERATION - back}
        elif kind == "shifted":
            size = right.numel()
            shifts = range(-at.start, size - at.stop + 1)  # those that reach no further than the buffer
            shift = rng.choice([s for s in (rng.choice(shifts), rng.choice((-1, 1))) if s and s in shifts] or [0])
            if not shift:  # a block as long as the buffer: all of it turned
                shift = rng.randrange(1, size // 2)
            got[at], facts = right.roll(-shift)[at], {"shift": shift}
        elif kind == "flipped_bit":
            bit = rng.randrange(8 * right.element_size())
            at = slice(at.start, at.start + 1)
            bits(got)[at] ^= torch.tensor(1).bitwise_left_shift(bit).to(bits(got).dtype)
            facts = {"bit": bit}
        elif kind == "share":
            if not self.expectation.declared.adds:  # the first rank's is right there
                rank = facts["rank"] = 1 + rng.randrange(len(self.shares) - 1)
            got[at] = self.shares[rank][at]
        elif kind == "left_out":
            got[at] = (right - self.shares[rank])[at]
            if len(self.shares) == 2:  # what is left is the other rank's share
                kind, facts = "share", {"rank": 1 - rank}
        elif kind == "doubled":
            order = rng.sample(range(len(self.shares)), len(self.shares))
            order.insert(rng.randrange(len(order)), rank)
            sums = self.shares[order[0]].clone()
            for addend in order[1:]:
                sums += self.shares[addend]
            got[at] = sums[at]
        else:
            got[at] = (right - self.shares[rank] + self.old_shares[rank])[at]
            facts["iteration"] = ITERATION - 1
        return got, {"pattern": kind, **facts}


ADDING = [operation for operation, declared in COLLECTIVES.items() if declared.adds]
SUMS = ("left_out", "doubled", "stale_share")
KINDS = ("zeros", "never_written", "stale", "shifted", "flipped_bit", "share", *SUMS)
case = lru_cache(maxsize=None)(Case)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ten_thousand_corruptions_are_detected_and_named(dtype):
    rng = random.Random(f"corruptions {dtype}")
    for number in range(CORRUPTIONS // len(DTYPES)):
        here = case(rng.choice(ADDING), dtype, rng.choice((2, 3, 4)), rng.choice((16, 17, 255, 4099)))
        length = min(here.count, BLOCK + int(rng.expovariate(1 / 100)))
        start = rng.randrange(here.count - length + 1)
        got, found = here.corrupted(rng.choice(KINDS), slice(start, start + length), rng)
        wrong = wrong_count(got, here.right)
        assert wrong > 0, (number, found)
        if number % NAMED_EVERY == 0:
            told = here.explain(got)
            assert told["wrong"] == wrong
            assert found.items() <= told.items(), (number, told)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("operation", "kind"),
    [(operation, kind) for operation in COLLECTIVES for kind in KINDS if kind not in SUMS or operation in ADDING],
)
def test_each_pattern_of_each_operation(operation, dtype, kind):
    here = case(operation, dtype, 4, 300)
    got, facts = here.corrupted(kind, slice(100, 180), random.Random(7))
    told = here.explain(got)
    assert facts.items() <= told.items()
    assert told["blocks"] == 1
    assert 100 <= told["first"] <= told["last"] < 180
    assert told["block"] == told["last"] - told["first"] + 1


def test_right_results_are_exact():
    for operation in COLLECTIVES:
        here = case(operation, "bfloat16", 4, 300)
        told = here.explain(here.right.clone())
        assert told == {
            "wrong": 0,
            "first": None,
            "last": None,
            "block": 0,
            "blocks": 0,
            "pattern": "none",
            "words": "exact",
        }


def test_words_name_block_pattern_and_rank():
    here = case("all_reduce", "float32", 3, 4099)
    got = here.right.clone()
    got[1024:2048] = here.shares[2][1024:2048]
    told = here.explain(got)
    assert (
        told["words"] == "1024 of 4099 elements wrong, in one block of 1024 from 1024: rank 2's share alone (its own)"
    )
    got[3000:3100] = here.shares[2][3000:3100]
    told = here.explain(got)
    assert (told["wrong"], told["first"], told["last"], told["block"], told["blocks"]) == (1124, 1024, 3099, 1024, 2)
    assert "in 2 blocks between 1024 and 3099, the first of 1024" in told["words"]


def test_with_two_ranks_a_share_alone_is_the_other_left_out():
    here = case("all_reduce", "float32", 2, 255)
    got = here.right.clone()
    got[100:200] = here.shares[0][100:200]
    assert here.explain(got)["words"].endswith("rank 0's share alone (or rank 1's share left out)")


def test_elements_right_by_chance_end_no_block():
    here = case("all_reduce", "bfloat16", 4, 4099)
    told = here.explain(here.stale[0].clone())
    assert told["wrong"] < 4099  # neighbouring iterations agree somewhere
    assert (told["pattern"], told["blocks"]) == ("stale", 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_patterns_side_by_side_are_told_apart(dtype):
    # Peer reads that give zeros, in a ring of two: half of the buffer is never added to, the other never arrives.
    here = case("all_reduce", dtype, 2, 4099)
    got = here.right.clone()
    got[:2000] = 0
    got[2000:] = here.shares[1][2000:]
    told = here.explain(got)
    assert told["pattern"] == "mixed"
    assert told["words"].endswith("rank 1's share alone (its own) (2099 elements), zeros (2000 elements)")
    bits(got)[10:20] = 3
    assert here.explain(got)["words"].endswith("zeros (1990 elements), 10 others")


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_shows_no_pattern_is_other_with_its_values(dtype):
    here = case("all_reduce", dtype, 4, 255)
    got = here.right.clone()
    got[60:80] = torch.arange(3, 43, 2)
    told = here.explain(got)
    assert told["pattern"] == "other"
    assert f"at 60 got {got[60].item()}, expected {here.right[60].item()}; at 61 got" in told["words"]
    assert told["words"].count("expected") == 4


def test_a_few_wrong_elements_are_not_explained_by_chance():
    # Two elements of many suspects' values: no part of a mixture, since each explains too few.
    here = case("all_reduce", "bfloat16", 4, 255)
    got = here.right.clone()
    got[60], got[90] = here.stale[0][60], here.shares[0][90]
    assert here.explain(got)["pattern"] == "other"


def test_a_single_wrong_element_with_one_bit_is_a_flip_whatever_else_has_that_value():
    right = torch.arange(1, 101, dtype=torch.int32)
    got = right.clone()
    got[9] = 8  # of 10, and also what belongs two elements before
    assert explain(got, right)["words"] == "1 of 100 elements wrong, at 9: bit 1 flipped"


def test_a_whole_buffer_turned_is_a_shift_by_the_smaller_way():
    here = case("all_gather", "bfloat16", 4, 255)
    assert here.explain(here.right.roll(1))["shift"] == -1
    assert here.explain(here.right.roll(-1))["shift"] == 1
    told = here.explain(here.right.roll(300))
    assert told["words"].endswith("shifted, holding what belongs 300 elements before")


def test_a_far_shift_in_a_large_buffer_is_found():
    here = case("all_reduce", "bfloat16", 2, (1 << 19) + 1)
    got = here.right.clone()
    got[1000:1016] = here.right[500_001:500_017]
    assert here.explain(got)["shift"] == 499_001


def test_all_of_a_large_buffer_is_explained():
    here = case("all_reduce", "bfloat16", 2, (1 << 19) + 1)
    got = here.stale[1].clone()
    told = here.explain(got)
    assert (told["pattern"], told["iteration"], told["blocks"]) == ("stale", ITERATION - 2, 1)
    got[-300_000:-200_000] = 0
    assert here.explain(got)["words"].endswith("zeros (100000 elements)")


def test_each_shift_that_fits_is_named():
    right = torch.cat([torch.arange(100), torch.arange(40, 60), torch.arange(100, 200)]).to(torch.int32)
    got = right.clone()
    got[:20] = right[40:60]
    told = explain(got, right)
    assert told["shift"] == 40
    assert told["words"].endswith("40 elements further on (or shifted, holding what belongs 100 elements further on)")


def test_another_ranks_part_is_named():
    here = case("reduce_scatter", "float16", 4, 255)
    got = here.expectation.pattern.total(255, ITERATION, offset=1 * 255)  # rank 3 holds rank 1's part
    told = here.explain(got)
    assert (told["pattern"], told["rank"], told["shift"]) == ("shifted", 1, -510)


THE_FOUR = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


def test_what_each_operation_sends_and_delivers():
    world, count, step = 3, 100, 2
    sides = {op: [Expectation(op, "float16", world, rank, "cpu", root=1) for rank in range(world)] for op in THE_FOUR}
    sent = {op: [side.sent(count, step) for side in ranks] for op, ranks in sides.items()}
    for rank in range(world):
        result = {op: sides[op][rank].result(count, step) for op in THE_FOUR}
        assert result["all_reduce"].equal(sum(sent["all_reduce"]))
        assert result["all_gather"].equal(torch.cat(sent["all_gather"]))
        assert result["reduce_scatter"].equal(sum(sent["reduce_scatter"]).view(world, count)[rank])
        assert result["broadcast"].equal(sent["broadcast"][1])
    # What isn't added may have all of the type's exact range.
    assert sides["all_gather"][0].pattern.largest == sides["broadcast"][0].pattern.largest == 2047
    assert sides["all_reduce"][0].pattern.largest == sides["reduce_scatter"][0].pattern.largest == 2047 // 3
    with pytest.raises(ValueError, match="unknown operation 'all_alone'"):
        Expectation("all_alone", "float16", 2, 0, "cpu")
