"""What a test's report is made of, by the one hook, in one order."""

from __future__ import annotations

from dataclasses import replace

import pytest

import conftest
from fixtures.preflight.finding import Finding
from fixtures.report.contract import note, note_of
from fixtures.verdict.given import given_to
from fixtures.verdict.report_hook import pytest_runtest_setup
from tests.unit.verdict.conftest import ORDER, TP2


def titles(report):
    """Of the sections that belong to the failure's own text, which alone --junitxml writes out."""
    return [title for title, _, _ in report.longrepr.sections]


def text(report, title):
    return next(text for name, text, _ in report.longrepr.sections if name == title)


def test_a_failing_tests_sections_are_in_one_order(make):
    made = make()
    report = made.report()
    assert titles(report) == ORDER
    assert text(report, "evidence") == "GPU1: last at meeting"
    assert text(report, "repeat it by hand") == "lmdeploy serve"
    assert report.sections == []


@pytest.mark.parametrize(
    ("part", "nothing", "left"),
    [("server", None, ORDER[1::2]), ("fabric", None, ORDER[1:]), ("evidence", (), [ORDER[0], *ORDER[2:]])],
)
def test_what_a_test_wasnt_given_has_no_section(make, part, nothing, left):
    made = make()
    setattr(given_to(made.item), part, nothing)
    assert titles(made.report()) == left


def test_a_failure_in_one_line_has_them_in_the_same_order(make):
    report = make().report(longrepr=False)
    assert [title for title, _ in report.sections] == ORDER


def test_a_test_that_passes_has_none(make):
    made = make()
    report = made.report(None)
    assert (report.sections, made.fabric.asked, made.pool.retired) == ([], [], [])


@pytest.mark.parametrize(
    ("when", "error", "sections"),
    [
        ("call", None, [("preflight: warning", "acs: is on")]),
        ("teardown", None, []),
        ("call", AssertionError, []),
    ],
)
def test_a_finding_is_a_section_where_it_isnt_the_failure(make, when, error, sections):
    made = make()
    given_to(made.item).finding = Finding("warning", "is on", check="acs")
    report = made.report(error, when=when)
    assert report.sections == sections


def test_the_log_is_as_it_was_before_the_second_look_ended_the_server(make):
    made = make()
    assert text(made.report(), ORDER[2]) == "it came up"
    assert made.pool.retired == [0]


def test_what_the_hook_notes_is_in_this_very_report(make):
    """pytest has copied a test's notes before; what earlier phases noted stays."""
    made = make()
    note(made.item, check="x")
    facts = note_of(made.report().user_properties)
    assert (facts.check, [record["status"] for record in facts.pairs]) == ("x", ["hung", "pass"])


def test_a_configurations_gpus_are_swept_once(make):
    made = make()
    assert titles(made.report()) == ORDER
    assert titles(made.report(when="teardown")) == ORDER[1:]
    assert len(made.fabric.asked) == 1


def test_nothing_is_begun_at_ctrl_c(make):
    made = make()
    assert titles(made.report(KeyboardInterrupt)) == ORDER[1:]
    assert titles(made.report()) == ORDER, "it was no look yet"


def test_a_server_on_one_gpu_gets_no_second_look(make):
    made = make(configuration=replace(TP2, tp=1, gpus=(2,)))
    assert titles(made.report())[0] == "evidence"
    assert (made.fabric.asked, made.pool.retired) == ([], [])


def test_where_no_pair_can_be_tested_there_is_no_second_look(make):
    made = make()
    made.pool.run = replace(made.pool.run, machine=replace(made.pool.run.machine, gpus=()))
    assert titles(made.report()) == ORDER[1:]
    assert (made.fabric.asked, made.pool.retired) == ([], [])


def test_another_attempt_is_given_everything_afresh(make):
    """What the first one failed by is no evidence of the second's."""
    made = make()
    pytest_runtest_setup(made.item)
    assert titles(made.report()) == []
    made.give()
    assert titles(made.report())


class Gives:
    """A plugin that gives each test what another was given, and keeps what its report has."""

    def __init__(self, made):
        self.made = made

    def pytest_runtest_setup(self, item):
        given = given_to(item)
        for name, value in vars(given_to(self.made.item)).items():
            setattr(given, name, value)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            self.titles = titles(report)


@pytest.mark.parametrize("order", [1, -1], ids=["as listed", "reversed"])
def test_the_order_of_plugins_doesnt_matter(make, tmp_path, monkeypatch, capsys, order):
    """A whole pytest with all of the suite's plugins."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert 1 == 2\n")
    monkeypatch.chdir(tmp_path)
    made = make()
    plugin = Gives(made)
    listed = [word for name in conftest.pytest_plugins[::order] for word in ("-p", name)]
    assert pytest.main(["-p", "no:cacheprovider", *listed, "test_it.py"], plugins=[plugin]) == 1, capsys.readouterr()
    assert plugin.titles == ORDER
