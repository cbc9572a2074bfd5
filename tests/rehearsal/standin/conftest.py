"""Real stand-in servers for these tests, each ended with everything it started."""

from __future__ import annotations

import os
import queue
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.known_answer.model_cache import ModelSpec, folder_of
from fixtures.machine.machine import Machine
from fixtures.processes.proctable import MARKER, marked_pids
from fixtures.rehearsal.ledger import Ledger
from fixtures.rehearsal.nodes import NODES, load_node
from tests.unit.known_answer.answers import answer_text

REPO = Path(__file__).parents[3]
TOKENS = 12
DEADLINE = 20.0
QUESTION = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "讲一个三国故事"},
]


class Server:
    """One stand-in process and what it says."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self.marker = environment[MARKER] = uuid.uuid4().hex
        self.model = argv[0]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lmdeploy", "serve", "api_server", *argv],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        )
        self.lines: list[str] = []
        self.news: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.http = httpx.Client(timeout=DEADLINE)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.news.put(text)
        self.news.put(None)

    def await_line(self, pattern: str) -> re.Match[str]:
        """The first new log line that matches; fails when the log ends before."""
        deadline = time.monotonic() + DEADLINE
        while True:
            text = self.news.get(timeout=deadline - time.monotonic())
            assert text is not None, f"the log ended without {pattern!r}:\n{''.join(self.lines)}"
            self.lines.append(text)
            if found := re.search(pattern, text):
                return found

    def ready(self) -> Server:
        """Waits for the port (`--server-port 0`: the one that the log names)."""
        self.url = self.await_line(r"Uvicorn running on (http://[\d.:]+)")[1]
        return self

    def log(self) -> str:
        """The whole log of a server that has ended (with everything that held its output open)."""
        while (text := self.news.get(timeout=DEADLINE)) is not None:
            self.lines.append(text)
        return "".join(self.lines)

    def ended(self) -> int:
        """Waits for its end: the exit code, negative for a signal."""
        return self.process.wait(DEADLINE)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def post(self, route: str = "/v1/chat/completions", timeout: float = DEADLINE, **body: Any) -> httpx.Response:
        body.setdefault("model", self.model)
        if route == "/v1/chat/completions":
            body.setdefault("messages", QUESTION)
        return self.http.post(self.url + route, json=body, timeout=timeout)

    def chat(self, **body: Any) -> str:
        """The answer's text."""
        answer = self.post(**body)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    def others(self) -> list[int]:
        """Living processes of this server but for itself."""
        return [pid for pid in marked_pids(self.marker) if pid != self.process.pid]

    def clean_up(self) -> None:
        self.http.close()
        for pid in marked_pids(self.marker):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(DEADLINE)


Start = Callable[..., Server]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of the small known-answer model by precision."""
    cache = tmp_path_factory.mktemp("models")
    return lambda precision: folder_of(ModelSpec("llama", precision, TOKENS, "small"), cache)


@pytest.fixture(scope="session")
def answer() -> str:
    """What every model here says."""
    return answer_text(ModelSpec("llama", "fp16", TOKENS, "small"))


@pytest.fixture(scope="session")
def node() -> Machine:
    """The machine that the servers believe to be on."""
    return load_node("t4x4")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Who holds GPU memory."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """A stand-in's environment; `version`: which lmdeploy it plays."""

    def make(version: str | None = None, fault: str | None = None, **more: str) -> dict[str, str]:
        node = "t4x4"
        if version:
            text = (NODES / "t4x4.toml").read_text(encoding="utf-8")
            changed = re.sub(r'^lmdeploy = ".*"$', f'lmdeploy = "{version}"', text, flags=re.MULTILINE)
            node = str(tmp_path / "node.toml")
            Path(node).write_text(changed, encoding="utf-8")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "CUDA_", "REHEARSAL_"))}
        kept["PYTHONPATH"] = f"{REPO / 'fixtures/rehearsal/standin'}{os.pathsep}{REPO}"
        kept |= {"REHEARSAL_NODE": node, "REHEARSAL_LEDGER": str(tmp_path / "ledger"), **more}
        if fault:
            kept["REHEARSAL_FAULT"] = fault
        return kept

    return make


@pytest.fixture
def start(models: Callable[[str], Path], environment: Callable[..., dict[str, str]]) -> Iterator[Start]:
    """Starts a server: options as on the command line, then precision, version, fault and more environment by name."""
    servers: list[Server] = []

    def begin(options: str = "", precision: str = "fp16", **settings: Any) -> Server:
        argv = [str(models(precision)), "--server-name", "127.0.0.1", "--server-port", "0", *options.split()]
        servers.append(Server(argv, environment(**settings)))
        return servers[-1]

    yield begin
    for server in servers:
        server.clean_up()


@pytest.fixture
def unused_port() -> int:
    """A TCP port that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
