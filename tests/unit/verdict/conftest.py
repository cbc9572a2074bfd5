"""A test that has been given all there is: a server on two GPUs, its pool, a fabric, evidence; and pytest's report."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fixtures.collective.outcome import Outcome
from fixtures.matrix import Configuration
from fixtures.processes.log import Line, LogBook
from fixtures.verdict.given import given_to
from fixtures.verdict.report_hook import pytest_runtest_makereport
from tests.unit.preflight.conftest import this_run  # noqa: F401  a fixture

TP2 = Configuration("turbomind", "nccl", 2, "fp16", "p2p_on", gpus=(2, 1))
ORDER = [f"the fabric under {TP2.id}", "evidence", f"api_server {TP2.id}: log", "repeat it by hand"]


class Server:
    """One that has written a line."""

    def __init__(self, configuration, usable=True):
        self.configuration, self.usable = configuration, usable
        log = LogBook()
        log.add([Line(0.0, 0, "it came up")])
        self.process = SimpleNamespace(log=log, mapped=lambda: ({}, []))


class Pool:
    """Of one server, which writes when it is ended."""

    def __init__(self, run, server):
        self.run, self.server, self.retired = run, server, []

    def retire(self, deadline):
        self.retired.append(deadline)
        if self.server:
            self.server.process.log.add([Line(1.0, 0, "it was ended")])
        self.server = None


class Fabric:
    """What was asked of it; with P2P each pair hangs."""

    def __init__(self):
        self.asked = []

    def check(self, seats, arms, *, held):
        self.asked.append(([seat.index for seat in seats], tuple(arms), held))
        hung = Outcome("hung", "no progress", evidence=["GPU1 is stopped"])
        return [(tuple(seats), arm, hung if arm == "p2p_on" else Outcome("pass", "exact")) for arm in arms]


class Made:
    """The test's item, and what its parts were asked."""

    def __init__(self, run, configuration=TP2, usable=False):
        self.item = SimpleNamespace(stash=pytest.Stash(), user_properties=[], config=SimpleNamespace())
        self.item.config.stash = pytest.Stash()
        self.fabric, self.server = Fabric(), Server(configuration, usable)
        self.pool = Pool(run, self.server)
        self.give()

    def give(self):
        given = given_to(self.item)
        given.server, given.pool, given.fabric = self.server, self.pool, lambda run: self.fabric
        given.evidence, given.by_hand = ["GPU1: last at meeting"], lambda: "lmdeploy serve"

    def report(self, error=AssertionError, *, when="call", longrepr=True):
        """The report of a phase that raised this, after the hook; None: that passed."""

        def phase():
            if error:
                raise error

        call = pytest.CallInfo.from_call(phase, when, reraise=None)
        text = call.excinfo.getrepr() if longrepr and call.excinfo else "in one line" if call.excinfo else None
        outcome = "failed" if error else "passed"
        report = pytest.TestReport("t", ("t", 0, "t"), {}, outcome, text, when, user_properties=[])
        hook = pytest_runtest_makereport(self.item, call)
        next(hook)
        with pytest.raises(StopIteration) as ended:
            hook.send(report)
        assert ended.value.value is report
        return report


@pytest.fixture
def make(this_run):  # noqa: F811
    """Makes a test's item; `usable`: whether its server is, `configuration`: the server's."""
    return lambda **more: Made(this_run, **more)
