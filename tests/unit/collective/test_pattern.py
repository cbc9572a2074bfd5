"""The pattern's sums are exact, a wrong number of addends shows at every element, and no data passes for other data."""

import sys
from pathlib import Path

import pytest
import torch

import fixtures.collective

sys.path.insert(0, str(Path(fixtures.collective.__file__).parent / "under_test"))

from pattern import DTYPES, EXACT_BITS, TABLE, Pattern, bits, finalised, largest_share, poison, wrong_count

WORLD_SIZES = range(2, 17)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Threads of torch wait for each other in loops, which takes long where other processes have the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


MIB = 1 << 19  # elements of bfloat16 in 1 MiB


@pytest.mark.parametrize(
    ("dtype", "world_size", "largest"),
    [
        ("bfloat16", 2, 127),
        ("bfloat16", 127, 2),
        ("float16", 8, 255),
        ("float32", 16, 2**20 - 1),
        ("int32", 1, 2**31 - 1),
    ],
)
def test_largest_share(dtype, world_size, largest):
    assert largest_share(dtype, world_size) == largest


@pytest.mark.parametrize(
    ("dtype", "world_size", "words"),
    [
        ("bfloat16", 128, "128 ranks are too many for exact sums in bfloat16"),
        ("float16", 1024, "1024 ranks are too many"),
        ("float64", 2, "no pattern for the type 'float64'"),
        ("int32", 0, "world size of 0"),
        ("int32", 257, "256 ranks apart"),
    ],
)
def test_what_has_no_exact_sums_is_refused(dtype, world_size, words):
    with pytest.raises(ValueError, match=words):
        Pattern(dtype, world_size, "cpu")


def test_what_is_outside_the_pattern_is_refused():
    pattern = Pattern("int32", 2, "cpu")
    with pytest.raises(ValueError, match="outside the pattern"):
        pattern.share(2, 0, 0, offset=(1 << 30) - 1)
    with pytest.raises(ValueError, match="outside the pattern"):
        pattern.total(1, 0, offset=-1)
    with pytest.raises(ValueError, match="rank 256 is outside"):
        pattern.share(1, 256, 0)


def test_a_share_is_the_documented_hash():
    def word(position, rank, iteration):
        chunk, place = divmod(position, TABLE)
        word = finalised(place) ^ finalised(chunk << 20 | rank << 12 | iteration)
        return (word + 2 * word * word) % 2**32

    def signed_top(word, bits):  # as an arithmetic right shift gives it
        return (word ^ 1 << 31) >> 32 - bits

    assert finalised(1) == 0x514E28B7  # MurmurHash3's own
    narrow, wide = Pattern("bfloat16", 3, "cpu"), Pattern("int32", 3, "cpu")
    for position in (0, 1, 12345, TABLE - 1, TABLE, 5 * TABLE + 77):
        for rank, iteration in ((0, 0), (2, 1), (1, 4095)):
            here = word(position, rank, iteration)
            assert narrow.share(1, rank, iteration, position).item() == 1 + (85 * signed_top(here, 16) >> 16)
            assert wide.share(1, rank, iteration, position).item() == 1 + signed_top(here, 29)
            assert wide.share(1, rank, iteration + 4096, position).item() == 1 + signed_top(here, 29)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_offset_gives_the_same_numbers(dtype):
    pattern = Pattern(dtype, 2, "cpu")
    share, total = pattern.share(TABLE + 1000, 1, 3), pattern.total(TABLE + 1000, 3)
    for offset, count in ((0, 1), (7, 333), (TABLE - 5, 10), (TABLE, 1000), (TABLE + 999, 1), (50, 0)):
        assert torch.equal(pattern.share(count, 1, 3, offset), share[offset : offset + count])
        assert torch.equal(pattern.total(count, 3, offset), total[offset : offset + count])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_sums_are_exact_in_any_order_and_wrong_addends_show_everywhere(dtype, world_size):
    count, exact = 500, 2 ** EXACT_BITS[dtype]
    pattern = Pattern(dtype, world_size, "cpu")
    shares = [pattern.share(count, rank, 9) for rank in range(world_size)]
    wide = torch.stack(shares).to(torch.int64)
    total = pattern.total(count, 9)
    assert total.dtype == shares[0].dtype == getattr(torch, dtype)
    assert wide.min() >= 1
    assert largest_share(dtype, world_size) / 2 * 0.9 < wide.max() <= largest_share(dtype, world_size)
    assert total.to(torch.int64).equal(wide.sum(0))
    assert int(wide.sum(0).max()) < exact
    order = torch.randperm(world_size, generator=torch.Generator().manual_seed(world_size)).tolist()

    def added(ranks):  # in the type itself, rounding at every step
        result = shares[ranks[0]].clone()
        for rank in ranks[1:]:
            result += shares[rank]
        return result

    assert wrong_count(added(order), total) == 0
    assert wrong_count(torch.zeros_like(total), total) == count
    for rank in order:
        assert wrong_count(added([other for other in order if other != rank]), total) == count
        assert wrong_count(added([rank, *order]), total) == count
        assert wrong_count(added([*order, rank]), total) == count


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_doubled_share_rounds_back_to_the_sum(dtype, world_size):
    # Every sum with every share, rounded once. What lies in between is in the test above.
    kind = getattr(torch, dtype)
    sums = torch.arange(world_size, 2 ** EXACT_BITS[dtype], dtype=torch.float32)[:, None]
    doubled = (sums + torch.arange(1, largest_share(dtype, world_size) + 1)).to(kind)
    assert not (doubled == sums.to(kind)).any()


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_no_doubled_share_rounds_back_to_the_sum_in_wide_types(world_size):
    # All of the 16 million sums would take too long: the upper end, where rounding begins, and the lower one.
    largest = largest_share("float32", world_size)
    shares = torch.cat([torch.arange(1, 257), torch.arange(largest - 256, largest + 1)]).to(torch.float64)
    sums = torch.cat([torch.arange(world_size, 1024), torch.arange(2**24 - 1024, 2**24)]).to(torch.float64)[:, None]
    assert not ((sums + shares).to(torch.float32) == sums.to(torch.float32)).any()
    whole = torch.tensor([world_size, 2**30, 2**31 - 1], dtype=torch.int32)[:, None]
    assert not (whole + torch.tensor([1, 2, largest_share("int32", world_size)], dtype=torch.int32) == whole).any()


def agrees_for_eight(one, other):
    """Whether 8 elements that begin at a multiple of 8 are all equal: each run of 15 equal ones has such an eight."""
    same = (one == other)[: one.numel() // 8 * 8]
    return bool((same.view(torch.int64) == 0x0101010101010101).any())


def test_the_search_for_equal_runs_finds_one():
    one = torch.arange(1000, dtype=torch.int16)
    other = -one - 1
    other[93:108] = one[93:108]
    assert agrees_for_eight(one, other)
    other[100] = 0
    assert not agrees_for_eight(one, other)


# World size 1: what all-gather and broadcast send.
@pytest.mark.parametrize("world_size", [1, 2, 4, 8, 16])
def test_no_window_of_1_mib_passes_for_stale_or_shifted_data_in_bfloat16(world_size):
    pattern = Pattern("bfloat16", world_size, "cpu")
    results = [bits(pattern.total(MIB, iteration)) for iteration in range(9)]
    for iteration, result in enumerate(results):
        assert not any(agrees_for_eight(result, earlier) for earlier in results[:iteration])
    result = results[0]
    # Comparing with what belongs further on is comparing what belongs there with this: both directions at once.
    for shift in {2**power + step for power in range(1, 19) for step in (-1, 0, 1)}:
        assert not agrees_for_eight(result[:-shift], result[shift:]), shift
    for shift in range(1, 4097):
        assert not agrees_for_eight(result[:8192], result[shift : shift + 8192]), shift


def test_no_window_of_1_mib_passes_for_another_ranks_in_bfloat16():
    pattern = Pattern("bfloat16", 16, "cpu")
    shares = [bits(pattern.share(MIB, rank, 0)) for rank in range(5)]
    shares.append(bits(pattern.total(MIB, 0)))
    for index, share in enumerate(shares):
        assert not any(agrees_for_eight(share, other) for other in shares[:index])


def test_values_are_spread_evenly():
    # 128 values in 2^18 shares: 2,064 of each, standard deviation 45.
    shares = Pattern("bfloat16", 2, "cpu").share(TABLE, 0, 0).long()
    counts = torch.bincount(shares, minlength=128)[1:]
    assert counts.shape == (127,)
    assert int((counts - TABLE / 127).abs().max()) < 6 * 45


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_no_result_and_no_sum_makes_it_one(dtype):
    pattern = Pattern(dtype, 2, "cpu")
    total, share = pattern.total(1000, 0), pattern.share(1000, 0, 0)
    poisoned = torch.empty_like(total)
    assert poison(poisoned) is poisoned
    assert wrong_count(poisoned, total) == 1000
    assert wrong_count(poisoned, poisoned.clone()) == 0  # NaN, bit for bit
    for summed in (poisoned + total, poisoned + total + share, poisoned + total + 1, poisoned + share):
        assert wrong_count(summed, total) == 1000


def test_comparison_is_bit_for_bit():
    zeros = torch.zeros(5)
    assert wrong_count(-zeros, zeros) == 5
    right = torch.tensor([1.0, float("nan"), 3.0])
    assert wrong_count(right.clone(), right) == 0
    assert wrong_count(torch.tensor([1.0, 2.0, 3.0]), right) == 1


def test_what_cant_be_compared_is_refused():
    with pytest.raises(ValueError, match=r"\(3,\) of torch\.float32 can't be compared with \(4,\)"):
        wrong_count(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match=r"torch\.int32"):
        wrong_count(torch.zeros(3), torch.zeros(3, dtype=torch.int32))
