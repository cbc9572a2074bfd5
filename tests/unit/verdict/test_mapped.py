"""A server that really maps two copies of libnccl: a record on its first test's report."""

import mmap
import os
from types import SimpleNamespace

import pytest

from fixtures.processes.proctable import mapped_files
from fixtures.report.contract import note_of
from fixtures.verdict.given import given_to
from fixtures.verdict.report_hook import pytest_runtest_makereport


@pytest.fixture
def server():
    """One whose only process is this one."""
    return SimpleNamespace(
        usable=True,
        configuration=SimpleNamespace(id="c"),
        process=SimpleNamespace(mapped=lambda: mapped_files([os.getpid()])),
    )


def preflight_of(item):
    """The records of a passed test, once the hook has seen its report."""
    report = SimpleNamespace(when="call", passed=True, failed=False, user_properties=[], sections=[])
    hook = pytest_runtest_makereport(item, SimpleNamespace(excinfo=None))
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(report)
    return list(note_of(report.user_properties).preflight)


def test_two_copies_are_told_once(server, tmp_path):
    config = SimpleNamespace(stash=pytest.Stash())
    item = SimpleNamespace(stash=pytest.Stash(), config=config, user_properties=[])
    given_to(item).server = server
    maps = []
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "libnccl.so.2").write_text(name)
        with open(tmp_path / name / "libnccl.so.2") as file:
            maps.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    [record] = preflight_of(item)
    assert (record["check"], record["level"]) == ("libnccl", "failure")
    assert record["words"].startswith("2 copies are mapped in one process: ")
    item.user_properties.clear()
    assert preflight_of(item) == []
    maps.pop().close()
    config.stash = pytest.Stash()
    assert preflight_of(item) == []
    maps.pop().close()
