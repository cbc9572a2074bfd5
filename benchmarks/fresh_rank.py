"""One rank of one pair in an interpreter of its own, as a harness without living workers runs it.

`python -m benchmarks.fresh_rank ORDER`: ORDER is JSON with `communicator` (a module), `rank`, `job` and `steps`, as a
worker gets them. Prints what the rank found, as JSON; the steps and the comparison are the suite's own.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import torch

UNDER_TEST = Path(__file__).parents[1] / "fixtures" / "collective" / "under_test"


def main(order: str) -> None:
    sys.path.insert(0, str(UNDER_TEST))
    run_steps = importlib.import_module("rank_steps").run_steps
    given = json.loads(order)
    torch.set_num_threads(1)  # as in a worker
    cpu = torch.device("cpu")
    communicators = importlib.import_module(given["communicator"]).open_communicators(given["job"], given["rank"], cpu)
    print(json.dumps(run_steps(communicators, given["steps"], cpu, lambda step: None)))


if __name__ == "__main__":
    main(sys.argv[1])
