"""A sweep over every pair of an emulated node, in both arms: the tournament beside simpler harnesses.

- tournament: the suite's own sweep, n / 2 pairs side by side.
- one pair at a time: the same living workers, as with `--serial-pairs`.
- fresh processes: one pair at a time; for each pair and arm two interpreters are started, which import torch and do the
  very same steps. Unless `--full`, a sample of pairs, evenly chosen, is run, and the time scaled to all of them.

Each time is a whole sweep's, from no process to none. The three take turns, `--repeats` times.

Gloo's collectives cost CPU time, so pairs side by side gain no more than the machine's cores allow. `--latency-ms=5`
gives links with a fixed latency, and small data, instead: that measures the schedule. `--hang` measures something else:
what a pair that hangs adds to a sweep of one arm.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import fmean, median

from benchmarks.sweeps import ARMS, PAIR_TIMEOUT, Sweeps
from benchmarks.table import ratio, spread

TOURNAMENT, SERIAL, FRESH = "tournament", "one pair at a time", "fresh processes"


def compare(sweeps: Sweeps, repeats: int, sample: int | None) -> dict[str, list[float]]:
    """Seconds of whole sweeps in the three ways. `sample`: so many pairs in fresh processes a time; None: all."""
    cases = [(pair, arm) for arm in ARMS for pair in sweeps.pairs]
    size = len(cases) if sample is None else min(sample, len(cases))
    fresh = FRESH if size == len(cases) else f"{FRESH}, scaled from {size} of {len(cases)}"
    rows: dict[str, list[float]] = {TOURNAMENT: [], SERIAL: [], fresh: []}
    for turn in range(repeats):
        rows[TOURNAMENT].append(sweeps.sweep())
        rows[SERIAL].append(sweeps.sweep(serial=True))
        chosen = [cases[(turn + number * len(cases) // size) % len(cases)] for number in range(size)]
        rows[fresh].append(fmean(sweeps.fresh(pair, arm) for pair, arm in chosen) * len(cases))
    return rows


def hang(sweeps: Sweeps, repeats: int) -> dict[str, list[float]]:
    """Seconds of a sweep of one arm, without and with a pair that hangs."""
    rows: dict[str, list[float]] = {"clean": [], "one pair hangs": []}
    for _ in range(repeats):
        rows["clean"].append(sweeps.sweep(ARMS[:1]))
        rows["one pair hangs"].append(sweeps.sweep(ARMS[:1], hang=True))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="a sweep over every pair of an emulated node")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, help="links with this latency, small data")
    parser.add_argument("--sample", type=int, default=6, help="pairs in fresh processes, a turn")
    parser.add_argument("--full", action="store_true", help="all pairs in fresh processes")
    parser.add_argument("--hang", action="store_true", help="what one hung pair adds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sweeps = Sweeps(given.gpus, Path(name), given.latency_ms)
        links = "gloo" if given.latency_ms is None else f"small data, {given.latency_ms:g} ms a collective"
        what = f"{len(sweeps.pairs)} pairs of {given.gpus} GPUs, {links}"
        if given.hang:
            rows = hang(sweeps, given.repeats)
            clean, hung = map(median, rows.values())
            print(spread(f"sweep of {what}, one arm", rows))
            print(f"one hung pair adds {hung - clean:.1f} s; its deadline is {PAIR_TIMEOUT:g} s without progress")
            return
        rows = compare(sweeps, given.repeats, None if given.full else given.sample)
    print(spread(f"sweep of {what}, {len(ARMS)} arms", rows))
    for slow in list(rows)[1:]:
        print(ratio(rows, slow, TOURNAMENT))
    start, *sweep = map(median, (sweeps.starts, rows[SERIAL], rows[TOURNAMENT]))
    later = [seconds - start for seconds in sweep]
    print(f"{SERIAL} to {TOURNAMENT} after the start, {start:.1f} s until torch is imported: {later[0] / later[1]:.1f}")


if __name__ == "__main__":
    main()
