"""The best-linked group."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.machine.groups import best_group
from fixtures.machine.machine import PCIE_LINKS, Gpu, Machine
from fixtures.machine.visible import choose
from fixtures.rehearsal.nodes import load_node

#: Every word that occurs below, best first; its place is its cost.
SCALE = ["NV4", "NV2", "NV1", *PCIE_LINKS]


def machine_of(count: int, words: dict[tuple[int, int], str]) -> Machine:
    links = tuple(tuple("X" if i == j else words[min(i, j), max(i, j)] for j in range(count)) for i in range(count))
    gpus = tuple(Gpu(i, f"GPU-{i}", "T", f"00000000:{i:02X}:00.0", 1) for i in range(count))
    return Machine("m", gpus, links, peer=())


@pytest.mark.parametrize(
    ("node", "size", "group"),
    [
        ("t4x4", 1, (0,)),
        ("t4x4", 2, (1, 2)),
        ("t4x4", 3, (0, 1, 2)),
        ("t4x4", 4, (0, 1, 2, 3)),
        ("v100x8", 2, (0, 3)),
        ("v100x8", 4, (0, 1, 2, 3)),
        ("a100x8", 4, (0, 1, 2, 3)),
        ("rtx4090x2", 2, (0, 1)),
        ("h200x1", 1, (0,)),
    ],
)
def test_packaged_nodes(node, size, group):
    assert best_group(load_node(node), size) == group


def test_the_seeds_own_choice():
    assert best_group(choose(load_node("t4x4"), "0,1"), 2) == (0, 1)


def test_indices_in_the_machines_own_order():
    assert best_group(choose(load_node("t4x4"), "3,2,1"), 2) == (2, 1)


@pytest.mark.parametrize("size", [0, -1, 5])
def test_impossible_sizes(size):
    with pytest.raises(ValueError, match=f"no group of {size} among 4 GPUs"):
        best_group(load_node("t4x4"), size)


@st.composite
def machines(draw):
    count = draw(st.integers(1, 6))
    return machine_of(count, {pair: draw(st.sampled_from(SCALE)) for pair in combinations(range(count), 2)})


@settings(deadline=None)  # the machine may be busy
@given(machines(), st.data())
def test_no_group_has_a_better_worst_link(machine, data):
    size = data.draw(st.integers(1, len(machine.gpus)))
    group = best_group(machine, size)
    assert len(set(group)) == size

    def worst(members: tuple[int, ...]) -> int:
        return max((SCALE.index(machine.links[i][j]) for i, j in combinations(members, 2)), default=0)

    assert worst(group) == min(worst(other) for other in combinations(range(len(machine.gpus)), size))


@pytest.mark.parametrize(
    ("plain", "better"),
    [
        (["PHB", "PHB", "PHB"], ["PIX", "PHB", "PIX"]),
        (["PIX", "PHB", "PIX"], ["NV1", "PHB", "PIX"]),
        (["NV1", "PHB", "NV1"], ["NV2", "PHB", "NV1"]),
    ],
)
@settings(deadline=None)
@given(order=st.permutations(range(6)))
def test_between_equal_worst_links_the_sum_decides(plain, better, order):
    """Two triangles whose worst link is PHB, far from each other, wherever they stand."""
    words = dict.fromkeys(combinations(range(6), 2), "SYS")
    words.update(zip(combinations(sorted(order[:3]), 2), plain, strict=True))
    words.update(zip(combinations(sorted(order[3:]), 2), better, strict=True))
    assert best_group(machine_of(6, words), 3) == tuple(sorted(order[3:]))


def test_a_tempting_neighbour_does_not_spoil_the_group():
    """Each GPU of the best three has a nearer neighbour that is far from the other two."""
    words = dict.fromkeys(combinations(range(6), 2), "SYS")
    words.update(dict.fromkeys(combinations((1, 3, 5), 2), "PXB"))
    words.update(dict.fromkeys([(0, 1), (2, 3), (4, 5)], "PIX"))
    assert best_group(machine_of(6, words), 3) == (1, 3, 5)


def test_beyond_sixteen_gpus_an_island_is_still_found():
    odd = {pair: "NV4" if sum(pair) % 2 == 0 and pair[0] % 2 else "SYS" for pair in combinations(range(20), 2)}
    assert best_group(machine_of(20, odd), 8) == (1, 3, 5, 7, 9, 11, 13, 15)
