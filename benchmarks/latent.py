"""A rehearsal's collectives over links with a fixed latency: gloo's, each after a sleep of BENCHMARK_LATENCY_MS.

The functions of fixtures/rehearsal/gloo.py. A sleep takes no CPU time, as a wait for a GPU takes none, so what is
measured is the order in which pairs are tested, not how much gloo a small machine's cores can do at once.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from fixtures.rehearsal import gloo
from fixtures.rehearsal.gloo import rendezvous, versions

__all__ = ["LATENCY_MS", "Latent", "open_communicators", "rendezvous", "versions"]

LATENCY_MS = "BENCHMARK_LATENCY_MS"


class Latent:
    """One rank's end over such a link."""

    def __init__(self, end: Any, seconds: float) -> None:
        self.rank, self.world_size = end.rank, end.world_size
        self._end, self._seconds = end, seconds

    def collective(self, operation: str, send: torch.Tensor, receive: torch.Tensor, root: int = 0) -> None:
        time.sleep(self._seconds)
        self._end.collective(operation, send, receive, root)

    def synchronize(self) -> None:
        self._end.synchronize()

    def close(self) -> None:
        self._end.close()


def open_communicators(job: dict[str, Any], rank: int, device: torch.device) -> list[Latent]:
    """This rank's ends of the job's process groups."""
    seconds = float(os.environ[LATENCY_MS]) / 1e3
    return [Latent(end, seconds) for end in gloo.open_communicators(job, rank, device)]
