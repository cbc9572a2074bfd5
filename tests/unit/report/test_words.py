"""Names read from node ids, lines cut from failures, and notes on tests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fixtures.report.contract import TestNote, note, note_of
from fixtures.report.names import check_of, configuration_of, plain_nodeid
from fixtures.report.phases import LONGEST_REASON, combined, one_line, phase_result

IDS = ["turbomind-tp1-fp16", "turbomind-tp2-fp16-cuda_ipc", "turbomind-tp2-fp16-cuda_ipc-shared_gpu"]


@pytest.mark.parametrize(
    ("nodeid", "configuration"),
    [
        ("t.py::test_x[turbomind-tp1-fp16]", IDS[0]),
        ("t.py::test_x[turbomind-tp1-fp16]@turbomind-tp1-fp16", IDS[0]),
        ("t.py::test_x[turbomind-tp1-fp16-16]", IDS[0]),
        ("t.py::test_x[long-turbomind-tp2-fp16-cuda_ipc-shared_gpu]", IDS[2]),
        ("t.py::test_x[turbomind-tp2-fp16-cuda_ipc]", IDS[1]),
        ("t.py::test_x[turbomind-tp1-fp161]", None),
        ("t.py::test_x", None),
        ("turbomind-tp1-fp16.py::test_x[a]", None),
    ],
)
def test_configuration_of_a_node_id(nodeid, configuration):
    assert configuration_of(nodeid, IDS) == configuration


def test_group_behind_a_node_id_is_left_out():
    assert plain_nodeid("a@b/t.py::test_x[p]@group-1") == "a@b/t.py::test_x[p]"
    assert plain_nodeid("a@b/t.py::test_x[me@home]") == "a@b/t.py::test_x[me@home]"


def test_check_is_the_function_without_prefix_and_number():
    assert check_of("t.py::test_02_three_canaries[x]@x") == "three_canaries"
    assert check_of("t.py::TestServer::test_stops") == "stops"
    assert check_of("t.py::test_16_at_once") == "at_once"


def test_one_line_of_a_failure():
    assert one_line("\n  \x1b[31mdied\x1b[0m: SIGABRT\x00 \nmore") == "died: SIGABRT"
    assert len(one_line("x" * 1000)) == LONGEST_REASON
    assert one_line(" \n") == ""


def test_notes_of_several_phases_add_up_and_leave_earlier_copies_alone():
    item = SimpleNamespace(user_properties=[("other", 1)])
    note(item, configuration_id="c", gpus=(0, 1))
    after_set_up = list(item.user_properties)
    note(item, ready_s=2.5, starts=2)
    assert note_of(item.user_properties) == TestNote("c", [0, 1], 2.5, 2)
    assert note_of(after_set_up) == TestNote("c", [0, 1])
    assert [name for name, _ in item.user_properties] == ["other", "multigpu"]
    assert note_of([("other", 1)]) == TestNote()


def test_note_refuses_what_cannot_cross_to_the_controller():
    with pytest.raises(TypeError):
        note(SimpleNamespace(user_properties=[]), check=object())


def test_note_refuses_a_fact_that_nobody_reads():
    with pytest.raises(TypeError, match="colour"):
        note(SimpleNamespace(user_properties=[]), colour="red")


def report(when, outcome, longrepr=None, **more):
    """A pytest report of one phase, as far as the outcome rules look at it."""
    return SimpleNamespace(when=when, outcome=outcome, longrepr=longrepr, duration=1.5, **more)


def test_first_failure_is_the_tests_reason():
    phases = [report("setup", "passed"), report("call", "failed", "died"), report("teardown", "failed", "left over")]
    result = combined([phase_result(phase) for phase in phases])
    assert (result.outcome, result.phase, result.reason, result.seconds) == ("failed", "test", "died", 4.5)


def test_skip_and_expected_failure_say_why():
    skipped = phase_result(report("setup", "skipped", ("t.py", 3, "Skipped: no GPU")))
    assert (skipped.outcome, skipped.reason) == ("skipped", "no GPU")
    expected = phase_result(report("call", "skipped", "trace", wasxfail="issue 12"))
    assert expected.reason == "expected failure: issue 12"
    assert phase_result(report("call", "skipped", "trace", wasxfail="")).reason == "expected failure"


def test_failure_without_words_still_has_a_reason():
    assert phase_result(report("call", "failed", "")).reason == "failed without words"
