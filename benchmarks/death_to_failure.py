"""From a server's death to its test's failure: this suite beside a harness that polls.

The suite: a real pytest run. Each test's request hangs in the stand-in server (fault `hang-first-request`) until
another process kills that server by SIGKILL or SIGABRT at a random moment. Measured from the kill until pytest has the
failed test's report. The poll: the same server and request, `Popen.poll()` every 0.5 s, until it tells of the end.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

from benchmarks.rehearsed import POLL_S, await_ready, plain_server, run_suite
from benchmarks.stopwatch import moments
from benchmarks.table import table
from fixtures.api_server.founding import FOUNDING_REQUEST
from fixtures.processes.ports import free_ports

FAULT = "hang-first-request"
GOAL_S = 0.1
KILLER = Path(__file__).with_name("killer.py")


def suite(folder: Path, repeats: int) -> list[float]:
    """Seconds from death to failure in one pytest run; exits when that run didn't go as it should."""
    file, output = run_suite("dies_during_request", folder, repeats, f"--fault={FAULT}")
    killed, failed = moments(file, "killed"), moments(file, "failed")
    if len(killed) != repeats or len(failed) != repeats or output.count("ServerDied: ") < repeats:
        sys.exit(f"the run isn't what was to be measured:\n{output}")
    return [end - start for start, end in zip(killed, failed, strict=True)]


def poll(folder: Path, repeats: int) -> list[float]:
    """The same for a harness that looks every half second."""
    seconds = []
    for repeat in range(repeats):
        [port] = free_ports("127.0.0.1", 1)
        file = folder / f"killed-{repeat}"
        with plain_server(folder, port, FAULT) as process:
            url = f"http://127.0.0.1:{port}"
            model = await_ready(url, 0.01)
            threading.Thread(target=ask, args=(url, model), daemon=True).start()
            name, delay = ("SIGKILL", "SIGABRT")[repeat % 2], random.uniform(0.2, 0.7)
            command = [sys.executable, "-S", str(KILLER), str(process.pid), name, str(delay), str(file)]
            with subprocess.Popen(command):
                while process.poll() is None:
                    time.sleep(POLL_S)
                seen = time.time()
        seconds.append(seen - moments(file, "killed")[0])
    return seconds


def ask(url: str, model: str) -> None:
    """A request that ends with the server."""
    body = {**FOUNDING_REQUEST, "model": model}
    with contextlib.suppress(httpx.TransportError):
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
        sys.exit(f"the request wasn't to be answered: {answer.status_code} {answer.text}")


def main() -> None:
    parser = argparse.ArgumentParser(description="death of the server → its test has failed")
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = {"this suite": suite(folder, repeats), f"poll every {POLL_S:g} s": poll(folder, repeats)}
    print(table("death of the server → its test has failed", rows, GOAL_S))


if __name__ == "__main__":
    main()
