"""A rehearsal's communicators, that break where a test says so: in the file that BREAKING names."""

import json
import os
import time
from pathlib import Path

from fixtures.rehearsal import gloo
from fixtures.rehearsal.gloo import rendezvous, versions

__all__ = ["open_communicators", "rendezvous", "versions"]


def open_communicators(job, rank, device):
    order = json.loads(Path(os.environ["BREAKING"]).read_text())
    communicators = gloo.open_communicators(job, rank, device)
    return [Breaking(one, order) for one in communicators] if order.get("rank") == rank else communicators


class Breaking:
    """Does what it is told at one collective (`call`), or at each, before the others' could be met.

    `wrong_from`: from that call on the last element of each result is one too many.
    """

    def __init__(self, communicator, order):
        self._communicator, self._order, self._calls = communicator, order, 0

    def __getattr__(self, name):
        return getattr(self._communicator, name)

    def collective(self, operation, send, receive, root=0):
        self._calls += 1
        if self._order.get("call", self._calls) == self._calls:
            time.sleep(self._order.get("sleep", 0))
            if "error" in self._order:
                raise {"MemoryError": MemoryError}.get(self._order["error"], RuntimeError)(self._order["error"])
            if "end" in self._order:
                os._exit(self._order["end"])
        self._communicator.collective(operation, send, receive, root)
        if self._calls >= self._order.get("wrong_from", self._calls + 1):
            receive[-1] += 1
