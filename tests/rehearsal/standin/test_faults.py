"""Each fault of the catalogue, seen from outside a real stand-in server."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from fixtures.known_answer.compare import explain
from fixtures.rehearsal.faults import FOLDER


def fault(name: str) -> str:
    return str(FOLDER / f"{name}.toml")


def assert_hangs(server) -> None:
    """No answer, while the port answers as if all were well."""
    with pytest.raises(httpx.ReadTimeout):
        server.post(timeout=0.3)
    for route in ("/v1/models", "/health"):
        assert server.http.get(server.url + route).status_code == 200


@pytest.mark.parametrize("version", ["0.6.0", "0.18.0"])
def test_abort_first_request(start, version):
    server = start("--tp 2", fault=fault("abort-first-request"), version=version).ready()
    with pytest.raises(httpx.RemoteProtocolError):
        server.chat()
    assert server.ended() == -signal.SIGABRT
    assert "Traceback" not in server.log()


def test_abort_first_request_spares_awq_on_one_gpu(start, answer):
    assert start("--tp 1", "awq", fault=fault("abort-first-request")).ready().chat() == answer


@pytest.mark.parametrize("backend", ["turbomind", "pytorch"])
def test_hang_first_request(start, backend):
    server = start(f"--tp 2 --backend {backend}", fault=fault("hang-first-request")).ready()
    assert_hangs(server)
    assert server.process.poll() is None


def test_hang_shows_in_health_after_a_while(start):
    server = start("--tp 2", fault=fault("hang-first-request"), LMDEPLOY_HEALTH_UNHEALTHY_AFTER="0.05").ready()
    with pytest.raises(httpx.ReadTimeout):
        server.post(timeout=0.2)
    health = server.http.get(f"{server.url}/health")
    assert health.status_code == 503
    assert health.json()["status"] == "unhealthy"


@pytest.mark.parametrize("options", ["--tp 2", "--tp 4 --backend pytorch"])
def test_lost_share(start, answer, options):
    said = start(options, fault=fault("lost-share")).ready().chat(max_tokens=12)
    assert explain(answer, said)


def test_lost_share_needs_ranks(start, answer):
    assert start("--tp 1", fault=fault("lost-share")).ready().chat() == answer


@pytest.mark.parametrize("backend", ["turbomind", "pytorch"])
def test_crash_at_start(start, backend):
    server = start(f"--tp 2 --backend {backend}", fault=fault("crash-at-start"))
    assert server.ended() == 1
    log = server.log()
    assert "Traceback" in log
    assert "NCCL error" in log
    assert "Uvicorn" not in log


def test_hang_at_start(start, ledger, node):
    server = start("--tp 2", fault=fault("hang-at-start"))
    while not ledger.used_mib(node.gpus[0].uuid):  # rank 0 is ready, rank 1 never will be
        assert server.process.poll() is None
    assert server.process.poll() is None
    assert server.news.empty()
    assert server.terminate() == -signal.SIGTERM


def test_ignores_sigterm(start, answer):
    server = start("--tp 2", fault=fault("ignores-sigterm")).ready()
    server.process.send_signal(signal.SIGTERM)
    assert server.chat() == answer
    assert server.process.poll() is None


def test_orphan_rank(start, answer, ledger, node):
    server = start("--tp 2 --backend pytorch", fault=fault("orphan-rank")).ready()
    assert server.chat() == answer
    before = ledger.used_mib(node.gpus[1].uuid)
    assert server.terminate() == -signal.SIGTERM
    assert len(server.others()) == 1
    assert ledger.processes_on(node.gpus[0].uuid) == []
    assert ledger.processes_on(node.gpus[1].uuid) == [(server.others()[0], before)]


@pytest.mark.parametrize("options", ["--tp 1", "--tp 2 --backend pytorch"])
def test_exit_zero(start, options):
    server = start(options, fault=fault("exit-zero")).ready()
    with pytest.raises(httpx.RemoteProtocolError):
        server.chat()
    assert server.ended() == 0


def test_exit_at_start(start, tmp_path):
    """Before the port opens, and before anything is loaded."""
    own = tmp_path / "own.toml"
    own.write_text('description = "x"\naction = "exit"\nat = "start"\ncode = 3\n')
    server = start("--tp 2", fault=str(own))
    assert server.ended() == 3
    assert server.log() == ""


def test_wrong_backend(start, answer):
    server = start("--tp 2", fault=fault("wrong-backend")).ready()
    assert server.chat() == answer
    # As with the real one: TurboMind's library was loaded to ask it, so that only the log tells.
    assert "_turbomind" in Path(f"/proc/{server.process.pid}/maps").read_text()
    assert any("WARNING" in line and "Fallback to pytorch engine because" in line for line in server.lines)
    assert len(server.others()) == 2


def test_a_fault_of_the_users_own_at_a_later_request(start, answer, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('description = "x"\naction = "raise"\nat = "request"\nrequest = 3\nrank = 0\nwords = "link down"\n')
    server = start("--tp 2", fault=str(own)).ready()
    assert [server.chat(), server.chat()] == [answer, answer]
    with pytest.raises(httpx.RemoteProtocolError):
        server.chat()
    assert server.ended() == -signal.SIGABRT
    assert "what():  link down" in server.log()
