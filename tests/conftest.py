"""What mostly waits for processes of its own begins with the session, some at a time, beside all other tests."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import pytest

AT_A_TIME = 2  # half of them wait for a deadline at any time, and other tests run meanwhile
#: How the names of their threads begin.
THREADS = "ahead"
#: What the outer pytest was given, and the GPUs it may see, are not for the inner one.
OUTER = ("PYTEST_", "CUDA_", "NCCL_")


class Project(Protocol):
    """A folder in which pytest is run."""

    def end(self) -> None:
        """End every process that was started there."""


NOTHING: Mapping[str, Any] = MappingProxyType({})
#: Of a folder, and of the environment of what is started there.
MakeProject = Callable[[Path, Mapping[str, str]], Project]


class Ahead:
    """Work that is begun before somebody asks for what comes of it; each once, in a thread.

    Tests change this process's environment and working directory meanwhile: work uses neither, but `environment`.
    """

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
        self._folder = folders.mktemp("beside")  # here: two threads may not ask for their first at once
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix=THREADS)
        self._begun: dict[Hashable, Future[Any]] = {}

    def begin(self, key: Hashable, work: Callable[[], Any]) -> Future[Any]:
        if key not in self._begun:
            self._begun[key] = self._threads.submit(work)
        return self._begun[key]

    def body(
        self,
        test: Callable[..., Any],
        make: MakeProject,
        variables: Mapping[str, str] = NOTHING,
        parameters: Mapping[str, Any] = NOTHING,
    ) -> Future[Any]:
        """A test's body, or what several tests look at, with a project of its own."""
        return self.begin((test, *sorted(parameters.items())), partial(self._run, test, make, variables, parameters))

    def close(self) -> None:
        """Begin nothing more, and wait for what has been begun."""
        self._threads.shutdown(cancel_futures=True)

    def _run(
        self, test: Callable[..., Any], make: MakeProject, variables: Mapping[str, str], parameters: Mapping[str, Any]
    ) -> Any:
        folder = self._folder / f"{next(self._numbers)}-{test.__name__}"
        folder.mkdir()
        project = make(folder / "project", self.environment | dict(variables))
        try:
            return test(project, **parameters)
        finally:
            project.end()


def beside(make: MakeProject, **variables: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a test that takes a project and its parameters, no fixture: its body begins with the session.

    `variables` are added to the environment of what it starts.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        def test(ahead: Ahead, **parameters: Any) -> None:
            ahead.body(body, make, variables, parameters).result()

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        _, *parameters = inspect.signature(body).parameters.values()
        asked = inspect.Parameter("ahead", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([asked, *parameters])  # type: ignore[attr-defined]
        return pytest.mark.beside.with_args(body, make, variables)(test)

    return decorate


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "beside(body, make, variables): begins with the session; see the decorator")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who asks for what was begun ahead comes last: it has ended by then."""
    items.sort(key=lambda item: item.get_closest_marker("beside") is not None)


@pytest.fixture(scope="session")
def ahead(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ahead]:
    """Begun with the session; by xdist's workers, which don't know who runs what, when a test asks."""
    begun = Ahead(tmp_path_factory)
    if not hasattr(request.config, "workerinput"):
        for item in request.session.items:
            if marker := item.get_closest_marker("beside"):
                begun.body(*marker.args, getattr(getattr(item, "callspec", None), "params", NOTHING))
    yield begun
    begun.close()
