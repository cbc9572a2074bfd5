"""A death in words, and which lines of a log are worth a person's time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fixtures.api_server import harmless
from fixtures.api_server.death import Death, RequestInFlight
from fixtures.api_server.ready import wait_until_ready
from fixtures.known_answer.layout import ModelSpec
from fixtures.known_answer.model_cache import folder_of
from fixtures.processes.ending import Exit, exit_words
from fixtures.processes.local_tree import ROOT
from fixtures.processes.log import Line, LogBook
from fixtures.processes.ports import free_ports
from fixtures.processes.proctable import stat_fields
from fixtures.processes.tree import Member
from fixtures.rehearsal.site import RehearsedNode
from tests.unit.api_server.conftest import Launch
from tests.unit.processes.conftest import LONG, line_with, member, until


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (1, "exited with code 1"),
        (-6, "killed by SIGABRT (Aborted)"),
        (-9, "killed by SIGKILL (Killed)"),
        (-11, "killed by SIGSEGV (Segmentation fault)"),
        (-7, "killed by SIGBUS (Bus error)"),
        (-40, "killed by signal 40"),
        (134, "exited with code 134, which stands for SIGABRT (Aborted)"),
        (128, "exited with code 128"),
        (255, "exited with code 255"),
    ],
)
def test_exit_words(code: int, words: str) -> None:
    assert exit_words(code) == words


def test_a_death_in_full() -> None:
    death = Death(
        configuration="turbomind-tp2-fp16-nccl-shared_gpu",
        exit=Exit(1, 42, -6, 0.0),
        phase="serving 1 request",
        members=2,
        in_flight=[RequestInFlight("POST /v1/chat/completions (hi)", 1.234)],
        ranks=["pid 41 (python) lives"],
        last_lines=["terminate called"],
    )
    assert death.words() == (
        "node 1 of the server's 2 turbomind-tp2-fp16-nccl-shared_gpu (pid 42) killed by SIGABRT (Aborted)"
        " while serving 1 request\n"
        "  in flight: POST /v1/chat/completions (hi), for 1.23 s\n"
        "  rank: pid 41 (python) lives\n"
        "  last useful log lines:\n"
        "    terminate called"
    )


def test_a_plain_exit_while_serving_is_a_failure_and_a_log_may_explain_nothing() -> None:
    words = Death("x", Exit(0, 1, 0, 0.0), "between requests").words()
    assert words.splitlines() == [
        "the server x (pid 1) exited with code 0 while between requests; any exit while serving is a failure",
        "  the log has no line that explains it",
    ]
    assert "any exit" not in Death("x", Exit(0, 1, 0, 0.0), "starting").headline()


HARMLESS = [
    "[TM][ERROR][1202.09:00:00.000000][turbomind.cc:453] Warm-up for 9216 tokens failed with status 6",
    "[WARNING] gemm_config.in is not found; using default GEMM algo",
    "HINT:    Please open \x1b[93m\x1b[1mhttp://0.0.0.0:23333\x1b[0m in a browser for detailed api usage!!!",
    "HINT:    Please open http://0.0.0.0:23333 in a browser for detailed api usage!!!",
    "INFO:     Started server process [42]",
    "INFO:     Waiting for application startup.",
    "INFO:     Application startup complete.",
    "INFO:     Uvicorn running on http://0.0.0.0:23333 (Press CTRL+C to quit)",
    'INFO:     127.0.0.1:51234 - "GET /v1/models HTTP/1.1" 200 OK',
    'INFO:     127.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "node:1:2 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so",
    "",
]
TELLING = [
    "[TM][ERROR][1202.09:00:00.000000][turbomind.cc:453] Warm-up for 64 tokens failed with status 3",
    'INFO:     127.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
    "NCCL WARN socketProgress: Connection closed by remote peer",
    "Aborted (core dumped)",
    "RuntimeError: [TM][ERROR] CUDA runtime error: out of memory",
    "[TM][ERROR] Assertion fail: /lmdeploy/src/turbomind/comm/nccl.cu:527",
]


def test_only_lines_that_healthy_servers_dont_print_are_useful() -> None:
    log = LogBook()
    log.add(Line(0.0, 0, text) for pair in zip(TELLING * 2, HARMLESS, strict=True) for text in pair)
    assert log.useful_tail(100, harmless.HARMLESS) == TELLING * 2
    assert log.useful_tail(2, harmless.HARMLESS) == TELLING[-2:]


def test_the_log_as_text() -> None:
    log = LogBook()
    log.add([Line(0.0, 0, "one"), Line(0.0, 0, "two")])
    assert log.text() == "one\ntwo"
    assert log.text(1) == "… 1 earlier lines …\ntwo"
    log.add([Line(0.0, 1, "three")])
    assert log.text(2) == "… 1 earlier lines …\n[node 0] two\n[node 1] three"


RANKS = r"""
import os, time
gone, lives = os.fork(), 0
if gone:
    lives = os.fork()
if not gone or not lives:
    time.sleep(60)
os.write(1, b'ranks %d %d\n' % (gone, lives))
time.sleep(60)
"""


def test_a_death_tells_what_became_of_the_ranks(launch: Launch) -> None:
    server = launch(member(RANKS), tp=2)
    gone, lives = map(int, line_with(server.process, "ranks").split()[1:])
    server.known_pids = {server.pid or 0: "server", gone: "rank 0", lives: "rank 1"}
    server.ready_s = 1.0
    os.kill(gone, 11)
    until(lambda: (stat_fields(gone) or "?")[0] == "Z", "rank 0 is a zombie")
    os.kill(server.pid or 0, 6)
    assert server.process.wait_members_ended(LONG)
    until(lambda: server.death, "the death is noted")
    assert server.death
    assert server.death.phase == "between requests"
    assert sorted(server.death.ranks) == sorted(
        [f"pid {gone} (rank 0) killed by SIGSEGV (Segmentation fault)", f"pid {lives} (rank 1) lives"]
    )


@pytest.mark.parametrize("version", ["0.5.0", "0.18.0"])
def test_the_stand_ins_healthy_log_has_no_useful_line(launch: Launch, tmp_path: Path, version: str) -> None:
    node = tmp_path / "node.toml"
    node.write_text(Path(ROOT, "fixtures/rehearsal/nodes/t4x4.toml").read_text().replace('"0.18.0"', f'"{version}"'))
    port, folder = free_ports("127.0.0.1", 1)[0], folder_of(ModelSpec("llama", "fp16", 40, "small"))
    argv = (sys.executable, "-m", "lmdeploy", "serve", "api_server", str(folder), "--server-port", str(port))
    environment = RehearsedNode(node=str(node)).environment(os.environ)
    server = launch(Member((*argv, "--server-name", "127.0.0.1"), environment), port=port)
    wait_until_ready(server, LONG, lambda: 0)
    line_with(server.process, "Uvicorn running")
    assert server.process.log.useful_tail(harmless=harmless.HARMLESS) == []
