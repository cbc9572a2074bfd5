"""Sizes as people write and read them, and the steps of pairs and groups."""

import pytest

from fixtures.collective.steps import (
    MIB,
    busbw_gb_per_s,
    group_steps,
    pair_steps,
    parse_sizes,
    size_words,
    sizes_of,
    step_words,
)
from fixtures.collective.under_test.operations import OPERATIONS
from fixtures.errors import BadInput


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("64M", (64 * MIB,)), ("64MiB, 256m", (64 * MIB, 256 * MIB)), ("4096,4K", (4096,)), ("1G", (1024 * MIB,))],
)
def test_sizes_are_parsed(text, sizes):
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "64X", "-1", "0", "1.5M", "3", "64M,", "M"])
def test_bad_sizes_are_said(text):
    with pytest.raises(BadInput, match=r"^--pair-sizes=.* is no size; e\.g\. 64M,256M"):
        parse_sizes(text)


@pytest.mark.parametrize("text", ["2000G", "64M,999999999999999G"])
def test_sizes_that_no_gpu_holds_are_said(text):
    with pytest.raises(BadInput, match=r"^--pair-sizes=.*'(2000|9+)G' is more than any GPU holds$"):
        parse_sizes(text)


@pytest.mark.parametrize(
    ("size", "words"),
    [(4, "4 B"), (4084, "4084 B"), (4096, "4 KiB"), (MIB - 2, "1 MiB - 2 B"), (MIB, "1 MiB"), (MIB + 4, "1 MiB + 4 B")],
)
def test_sizes_in_words(size, words):
    assert size_words(size) == words


def test_a_pair_gets_every_size_in_every_type():
    """1 element, an odd number, 4 KiB, 64 KiB, 1 MiB and one to each side, in place and not, and what is asked for."""
    steps = [step for step in pair_steps([64 * MIB]) if step["operation"] == "all_reduce"]
    assert len(steps) == 4 * 8 * 2
    for dtype, width in (("int32", 4), ("float16", 2), ("bfloat16", 2), ("float32", 4)):
        for in_place in (False, True):
            counts = [s["count"] for s in steps if (s["dtype"], s["in_place"]) == (dtype, in_place)]
            assert {1, 4096 // width, 65536 // width, 64 * MIB // width} < set(counts)
            assert {MIB // width - 1, MIB // width, MIB // width + 1} < set(counts)
            assert any(count % 2 for count in counts if 1 < count < 4096)


def test_measured_is_the_largest_size():
    (measured,) = [step for step in pair_steps([64 * MIB]) if step["operation"] == "measure"]
    assert measured["count"] * 4 == 64 * MIB
    assert 64 * MIB in sizes_of(pair_steps([64 * MIB]))


def test_bus_bandwidth_is_nccl_tests_formula():
    """1 MiB in 1 ms over 4 ranks: 2 * 3 / 4 times the algorithm's bandwidth."""
    assert busbw_gb_per_s(pair_steps(), 1e-3, 4) == pytest.approx(1.048576 * 1.5)
    assert busbw_gb_per_s(pair_steps(), 1e-3, 2) == pytest.approx(1.048576)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_group_gets_all_its_operations(operation):
    steps = group_steps(operation)
    assert {step["operation"] for step in steps} - {"measure"} == {operation}
    assert all(operation in step_words(step) for step in steps if step["operation"] != "measure")


def test_a_step_in_words():
    assert step_words(pair_steps()[1]) == "all_reduce int32 4 B in place"
