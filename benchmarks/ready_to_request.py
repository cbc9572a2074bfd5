"""From a server's port that accepts to the first request sent: this suite beside a harness that polls.

Ready: another process tries to connect every millisecond; the first success counts. Sent: httpx has handed the first
POST to the kernel, as its own debug log tells (on a loopback it has arrived then). The suite: a real pytest run, each
test with a fresh server. The poll: the same server, asked for `/v1/models` every 0.5 s from a random moment on.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.rehearsed import POLL_S, await_ready, plain_server, run_suite
from benchmarks.sent import noting_posts
from benchmarks.stopwatch import moments
from benchmarks.table import table
from fixtures.api_server.founding import FOUNDING_REQUEST
from fixtures.processes.ports import port_is_free

GOAL_S = 0.05
PROBER = Path(__file__).with_name("prober.py")


@contextmanager
def probing(port: int, file: Path) -> Iterator[None]:
    """While another process notes when the port accepts."""
    with subprocess.Popen([sys.executable, "-S", str(PROBER), str(port), str(file)], stdin=subprocess.PIPE):
        yield


def first_after(ready: list[float], sent: list[float]) -> list[float]:
    """Seconds from each moment of readiness to the first request sent after it."""
    return [next(moment for moment in sent if moment > start) - start for start in ready]


def suite(folder: Path, port: int, repeats: int) -> list[float]:
    """Seconds from ready to request in one pytest run; exits when that run didn't go as it should."""
    with probing(port, folder / "ready"):
        file, output = run_suite("asks_at_once", folder, repeats, f"--server-port={port}", "-p", "benchmarks.sent")
    ready = moments(folder / "ready", "accepts")
    if len(ready) != repeats or len(moments(file, "passed")) != repeats:
        sys.exit(f"the run isn't what was to be measured:\n{output}")
    return first_after(ready, moments(file, "sent"))


def poll(folder: Path, port: int, repeats: int) -> list[float]:
    """The same for a harness that looks every half second."""
    sent: list[float] = []
    with probing(port, folder / "poll"), noting_posts(sent.append):
        for _ in range(repeats):
            with plain_server(folder, port):
                time.sleep(random.uniform(0, POLL_S))  # a real server's start is long: where the poll is then is chance
                url = f"http://127.0.0.1:{port}"
                body = {**FOUNDING_REQUEST, "model": await_ready(url, POLL_S)}
                httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False).raise_for_status()
    return first_after(moments(folder / "poll", "accepts"), sent)


def unprivileged_port() -> int:
    """A free port below those that the kernel hands out, where a connection attempt could meet itself."""
    return next(port for port in range(20000, 30000) if port_is_free("127.0.0.1", port))


def main() -> None:
    parser = argparse.ArgumentParser(description="the port accepts → the first request is sent")
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    port = unprivileged_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = {"this suite": suite(folder, port, repeats), f"poll every {POLL_S:g} s": poll(folder, port, repeats)}
    print(table("the port accepts → the first request is sent", rows, GOAL_S))


if __name__ == "__main__":
    main()
