"""Reading the fault catalogue and files of the user's own."""

from __future__ import annotations

import pytest

from fixtures.errors import BadInput
from fixtures.rehearsal.fault import Conditions, Situation
from fixtures.rehearsal.faults import fault_names, list_faults_text, load_fault

GOOD = 'description = "x"\naction = "hang"\nat = "start"\n'


def test_catalogue():
    names = fault_names()
    server = {"abort-first-request", "crash-at-start", "exit-zero", "hang-at-start", "hang-first-request"}
    server |= {"ignores-sigterm", "lost-share", "orphan-rank", "wrong-backend"}
    assert server < set(names)
    assert {name for name in names if not load_fault(name).fabric} == server
    lines = list_faults_text().splitlines()
    assert [line.split()[0] for line in lines] == names
    assert all(load_fault(name).description in line for name, line in zip(names, lines, strict=True))


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(
        BadInput, match="unknown fault 'lost-rank'; known: abort-first-request, broken-fabric, crash-at-start"
    ):
        load_fault("lost-rank")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("description = ", "not valid TOML"),
        ('action = "hang"\nat = "start"', "'description' is missing"),
        (GOOD + "ranks = 1", "unknown field 'ranks'; known: description"),
        (GOOD + 'rank = "last"', "'rank' is 'last', must be a whole number"),
        (GOOD + "rank = true", "'rank' is True, must be a whole number"),
        (GOOD + "request = 0", "'request' is 0, must be 1 or more"),
        (GOOD.replace("hang", "explode"), "'action' is 'explode', must be one of abort, hang"),
        (GOOD.replace("start", "shutdown"), "'hang' can only happen at start, first_request, request"),
        (GOOD + '[when]\nbackend = "vllm"', "'when.backend' is 'vllm', must be one of turbomind, pytorch"),
        (GOOD + "[when]\ntp = 2", "unknown field 'when.tp'; known: backend, tp_min"),
    ],
)
def test_bad_files(tmp_path, text, words):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_fault(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        load_fault(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        (Conditions(), True),
        (Conditions(backend="turbomind", tp_min=2, precision="fp16", communicator="nccl", p2p=True), True),
        (Conditions(backend="pytorch"), False),
        (Conditions(tp_min=4), False),
        (Conditions(precision="awq"), False),
        (Conditions(communicator="cuda-ipc"), False),
        (Conditions(p2p=False), False),
    ],
)
def test_conditions(conditions, holds):
    assert conditions.hold_in(Situation("turbomind", 2, "fp16", "nccl", p2p=True)) is holds
