"""The GPUs of a failed server, swept again: which ones, beside what, and how it is told."""

from dataclasses import replace

import pytest

from fixtures.matrix import Cell
from fixtures.verdict.second_look import second_look
from tests.unit.verdict.conftest import TP2, Server


def test_the_pairs_of_its_very_gpus_in_both_arms(make):
    made = make()
    lines, records = second_look(made.pool, TP2, made.fabric)
    assert made.fabric.asked == [([1, 2], ("p2p_on", "p2p_off"), False)]
    pair = "GPU1 (00000000:5E:00.0) and GPU2 (00000000:5F:00.0), link PHB"
    assert lines == [
        "all-reduce over each pair of its GPUs again, after the server was ended:",
        f"hung: {pair}, p2p_on: no progress",
        "    GPU1 is stopped",
        f"pass: {pair}, p2p_off: exact",
    ]
    assert [(one["a"], one["b"], one["arm"], one["status"], one["configuration"]) for one in records] == [
        (1, 2, "p2p_on", "hung", TP2.id),
        (1, 2, "p2p_off", "pass", TP2.id),
    ]


@pytest.mark.parametrize(
    ("server", "lives"),
    [
        pytest.param(Server(TP2, usable=True), True, id="it answered wrongly and lives"),
        pytest.param(Server(TP2, usable=False), False, id="it hangs or is half dead"),
        pytest.param(Server(replace(TP2, precision="awq"), usable=True), False, id="another configuration's lives"),
        pytest.param(None, False, id="it was ended already"),
    ],
)
def test_a_server_that_lives_keeps_its_gpus(make, server, lives):
    made = make()
    made.pool.server = server
    lines, _ = second_look(made.pool, TP2, made.fabric)
    assert made.pool.retired == ([] if lives else [0])
    assert lines[0].endswith("beside the living server:" if lives else "after the server was ended:")
    assert [held for _, _, held in made.fabric.asked] == [lives]


def test_ranks_that_share_a_gpu_have_seats_of_their_own(make):
    """So many as the server has ranks, whatever other configurations have."""
    made = make()
    shared = replace(TP2, shared_gpu=True, gpus=(0,))
    run = made.pool.run
    one = replace(run.machine, gpus=run.machine.gpus[:1])
    made.pool.run = replace(run, machine=one, oversubscribed=True, cells=(Cell(replace(shared, tp=4)),))
    second_look(made.pool, shared, made.fabric)
    assert made.fabric.asked[0][0] == [0, 0]
