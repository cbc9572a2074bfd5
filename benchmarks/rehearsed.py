"""What the benchmarks run: the suite itself as a pytest process, and a plain server of a harness that polls."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.stopwatch import MOMENTS, REPEATS
from fixtures.known_answer.layout import ModelSpec
from fixtures.known_answer.model_cache import folder_of
from fixtures.rehearsal.faults import FOLDER as FAULTS
from fixtures.rehearsal.site import ANSWER_TOKENS, ROOT, RehearsedNode

#: What others do: look every half second.
POLL_S = 0.5
CONFIGURATION = ("--backend=turbomind", "--tp=2", "--precision=fp16", "--communicator=nccl", "--p2p=p2p_on")


def run_suite(scene: str, folder: Path, repeats: int, *options: str) -> tuple[Path, str]:
    """Run one scene under pytest; the file of its moments, and pytest's output."""
    file = folder / "moments"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", f"benchmarks/scenes/{scene}.py", "-m", "multigpu", "--rehearse"),
            *("-p", "benchmarks.stopwatch", "-p", "no:cacheprovider", f"--report={folder / 'report'}"),
            *(f"--basetemp={folder / 'tmp'}", f"--max-restarts={repeats}", *CONFIGURATION, *options),
        ],
        cwd=ROOT,
        env={**os.environ, MOMENTS: str(file), REPEATS: str(repeats)},
        capture_output=True,
        text=True,
    )
    return file, ended.stdout + ended.stderr


@contextmanager
def plain_server(folder: Path, port: int, fault: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """The same stand-in server on two GPUs, started as a harness without this suite would."""
    model = folder_of(ModelSpec("llama", "fp16", ANSWER_TOKENS, "small"))
    node = RehearsedNode(folder, "t4x4", str(FAULTS / f"{fault}.toml") if fault else None)
    with open(folder / "plain.log", "ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "lmdeploy", "serve", "api_server", str(model), "--backend", "turbomind"),
                *("--tp", "2", "--server-name", "127.0.0.1", "--server-port", str(port)),
            ],
            env={**node.environment(os.environ), "PYTHONUNBUFFERED": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def await_ready(url: str, interval: float) -> str:
    """Ask for the models every `interval` seconds until they are told; the first one's name."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            name: str = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["id"]
            return name
        time.sleep(interval)
