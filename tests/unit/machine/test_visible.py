"""The caller's CUDA_VISIBLE_DEVICES, and --gpus inside it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.errors import BadInput
from fixtures.machine.machine import Gpu, Machine
from fixtures.machine.visible import choose, restrict
from fixtures.rehearsal.nodes import load_node

T4X4 = load_node("t4x4")
UUIDS = [gpu.uuid for gpu in T4X4.gpus]
MIXED = replace(T4X4, gpus=(*T4X4.gpus[:3], replace(T4X4.gpus[3], name="NVIDIA L4")))
MIG = "MIG-6d6ba3a1-7d2c-5fd9-9c2e-a3ac4f1d9e75"
OLD_MIG = f"MIG-{UUIDS[1]}/1/0"
SLICED = replace(
    T4X4,
    gpus=(
        T4X4.gpus[0],
        replace(
            T4X4.gpus[1],
            mig=True,
            instances=tuple(Gpu(1, uuid, "1g.5gb", T4X4.gpus[1].bus_id, 4864, mig=True) for uuid in (MIG, OLD_MIG)),
        ),
        *T4X4.gpus[2:],
    ),
)


def indices(machine: Machine) -> list[int]:
    return [gpu.index for gpu in machine.gpus]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2, 0", [2, 0]),
        (UUIDS[3], [3]),
        (f"{UUIDS[2]},{UUIDS[1]}", [2, 1]),
        (UUIDS[1][:12], [1]),
        (f"3,{UUIDS[0]}", [3, 0]),
    ],
)
def test_what_cuda_sees(visible, expected):
    seen = restrict(T4X4, visible, None)
    assert indices(seen) == expected
    assert seen.notes == ()
    assert seen.why_no_gpus is None


@pytest.mark.parametrize(
    ("visible", "expected", "ignored"),
    [
        ("1,7,2", [1], "7"),
        ("0,2,-1,1", [0, 2], "-1"),
        ("1,,2", [1], ""),
        (f"1,GPU-,{UUIDS[2]}", [1], "GPU-"),
        ("1,x,1", [1], "x"),
        ("1,²", [1], "²"),
        (f"0,{MIG}", [0], MIG),
    ],
)
def test_the_list_ends_at_the_first_entry_that_names_no_gpu(visible, expected, ignored):
    seen = restrict(SLICED, visible, None)
    assert indices(seen) == expected
    assert seen.notes == (
        f"CUDA_VISIBLE_DEVICES={visible}: CUDA can't add {ignored!r} and ignores it and what follows",
    )


@pytest.mark.parametrize(
    ("visible", "why"),
    [
        ("", "CUDA_VISIBLE_DEVICES is set and empty, which hides every GPU"),
        ("-1", "CUDA_VISIBLE_DEVICES=-1: '-1' names no GPU of this machine, which hides every GPU"),
        (
            "NoDevFiles",
            "CUDA_VISIBLE_DEVICES=NoDevFiles: 'NoDevFiles' names no GPU of this machine, which hides every GPU",
        ),
    ],
)
def test_everything_hidden(visible, why):
    seen = restrict(T4X4, visible, None)
    assert (seen.gpus, seen.links, seen.peer, seen.why_no_gpus) == ((), (), (), why)


def test_an_ambiguous_beginning_names_nothing():
    twins = replace(T4X4, gpus=(*T4X4.gpus[:3], replace(T4X4.gpus[3], uuid=UUIDS[0][:-1] + "0")))
    assert restrict(twins, UUIDS[0][:12], None).gpus == ()
    assert indices(restrict(twins, UUIDS[0], None)) == [0]


@pytest.mark.parametrize("word", ["GPU-", "G", "gpu"])
def test_too_short_a_beginning_names_nothing_even_on_one_gpu(word):
    alone = load_node("h200x1")
    assert restrict(alone, word, None).gpus == ()
    assert indices(restrict(alone, alone.gpus[0].uuid[:5], None)) == [0]


@pytest.mark.parametrize("visible", ["1,1", f"1,{UUIDS[1]}", f"{UUIDS[1]},{UUIDS[1][:12]}"])
def test_twice(visible):
    with pytest.raises(BadInput, match=r"GPU 1 is named twice, which CUDA refuses$"):
        restrict(T4X4, visible, None)


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST"])
def test_integers_need_bus_order_where_gpus_differ(order):
    with pytest.raises(
        BadInput, match=r"^CUDA_VISIBLE_DEVICES=3: this machine's GPUs differ, .*PCI_BUS_ID; set it, or give"
    ):
        restrict(MIXED, "3", order)
    assert indices(restrict(MIXED, "3", "PCI_BUS_ID")) == [3]
    assert indices(restrict(MIXED, UUIDS[3], order)) == [3]
    assert indices(restrict(T4X4, "3", order)) == [3]


@pytest.mark.parametrize("uuid", [MIG, OLD_MIG])
def test_a_mig_instance_hides_everything_else(uuid):
    seen = restrict(SLICED, uuid, None)
    assert [(gpu.uuid, gpu.index, gpu.memory_mib, gpu.mig) for gpu in seen.gpus] == [(uuid, 1, 4864, True)]
    assert (seen.links, seen.peer, seen.notes) == ((("X",),), ((True,),), ())
    more = restrict(SLICED, f"{uuid},0", None)
    assert more.gpus == seen.gpus
    assert more.notes == (f"CUDA_VISIBLE_DEVICES={uuid},0: CUDA uses the first MIG instance only",)


def test_a_machine_without_gpus_keeps_its_own_reason():
    bare = Machine("m", (), (), (), why_no_gpus="no NVIDIA driver")
    assert restrict(bare, "0", None) == restrict(bare, "", None) == bare
    with pytest.raises(BadInput, match=r"^--gpus=0: there is no GPU to choose: no NVIDIA driver$"):
        choose(bare, "0")


@pytest.mark.parametrize(
    ("words", "expected"), [("0,1", [0, 1]), ("2,1", [2, 1]), (UUIDS[3], [3]), (f"{UUIDS[3][:12]}, 1", [3, 1])]
)
def test_choose(words, expected):
    chosen = choose(T4X4, words)
    assert indices(chosen) == expected
    assert chosen.links[0][-1] == ("X" if len(expected) == 1 else T4X4.links[expected[0]][expected[-1]])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("3", "--gpus=3: '3' is none of this run's GPUs (2, 0; or one's UUID)"),
        ("", "--gpus=: '' is none of this run's GPUs (2, 0; or one's UUID)"),
        ("0,", "--gpus=0,: '' is none of this run's GPUs (2, 0; or one's UUID)"),
        (UUIDS[1], f"--gpus={UUIDS[1]}: '{UUIDS[1]}' is none of this run's GPUs (2, 0; or one's UUID)"),
        ("0,2,0", "--gpus=0,2,0: GPU 0 is named twice"),
    ],
)
def test_choose_only_among_the_visible(words, complaint):
    with pytest.raises(BadInput) as caught:
        choose(restrict(T4X4, "2,0", None), words)
    assert str(caught.value) == complaint


@settings(deadline=None)  # the machine may be busy
@given(st.permutations(range(8)), st.integers(1, 8), st.data())
def test_every_pair_keeps_its_link_and_peer_words(order, count, data):
    whole = load_node("v100x8")
    kept = order[:count]
    words = [data.draw(st.sampled_from([str(i), whole.gpus[i].uuid, whole.gpus[i].uuid[:12]])) for i in kept]
    seen = restrict(whole, ",".join(words), None)
    assert indices(seen) == kept
    assert choose(whole, ",".join(words)) == seen
    for a, i in enumerate(kept):
        for b, j in enumerate(kept):
            assert (seen.links[a][b], seen.peer[a][b], seen.peer_words[a][b]) == (
                whole.links[i][j],
                whole.peer[i][j],
                whole.peer_words[i][j],
            )


@settings(deadline=None)
@given(st.lists(st.sampled_from(["0", "1", "3", "9", "-1", "x", UUIDS[2], UUIDS[2][:12], "GPU-"]), min_size=1))
def test_any_list_is_a_prefix_of_known_gpus_or_a_complaint(words):
    try:
        seen = restrict(T4X4, ",".join(words), None)
    except BadInput:
        assert len(set(words)) < len(words) or {UUIDS[2], UUIDS[2][:12]} <= set(words)
        return
    known = {"0": 0, "1": 1, "3": 3, UUIDS[2]: 2, UUIDS[2][:12]: 2}
    assert indices(seen) == [known[word] for word in words[: len(seen.gpus)]]
    assert words[len(seen.gpus) :][:1] in ([], *([word] for word in words if word not in known))
    assert bool(seen.gpus) == (seen.why_no_gpus is None)
