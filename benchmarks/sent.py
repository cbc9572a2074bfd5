"""When POSTs are sent, from httpx's own debug log; as a pytest plugin it notes them as moments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import pytest

from benchmarks.stopwatch import note


@contextmanager
def noting_posts(note_time: Callable[[float], None]) -> Iterator[None]:
    """Within it, `note_time(wall clock)` is called for each POST whose last byte the kernel has."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("send_request_body.complete") and self.posting:
                note_time(record.created)
            elif record.getMessage().startswith("send_request_headers.started"):
                self.posting = "b'POST'" in record.getMessage()

        posting = False

    logger, handler = logging.getLogger("httpcore.http11"), Handler()
    former = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(former)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    with noting_posts(lambda when: note("sent", when)):
        return (yield)
