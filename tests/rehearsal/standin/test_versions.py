"""The stand-in is the lmdeploy version that its node names: options, log lines, routes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.rehearsal.standin.conftest import REPO


def lmdeploy(environment: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmdeploy", *argv]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [
        ("0.5.0", ("--backend", "--tp", "--cap"), ("--dtype", "--max-prefill-token-num", "--communicator")),
        ("0.6.0", ("--device", "--max-prefill-token-num"), ("--cap", "--dtype", "--eager-mode")),
        ("0.10.0", ("--communicator", "cuda-ipc", "--enable-metrics", "--nnodes"), ("--dist-init-addr", "--async")),
        ("0.18.0", ("--dist-init-addr", "--disable-metrics", "--trust-remote-code"), ("--enable-metrics", "--cap")),
    ],
)
def test_help_offers_what_the_version_has(environment, version, has, lacks):
    shown = lmdeploy(environment(version), "serve", "api_server", "--help")
    assert shown.returncode == 0
    words = shown.stdout.replace(",", " ").replace("}", " ").replace("{", " ").replace("]", " ").split()
    assert [word for word in has if word not in words] == []
    assert [word for word in lacks if word in words] == []
    pytorch, turbomind = shown.stdout.split("PyTorch engine arguments:")[1].split("TurboMind engine arguments:")
    assert "--tp " in pytorch
    assert "--tp " in turbomind
    assert "--communicator" not in pytorch


@pytest.mark.parametrize(
    ("version", "recorded"), [("0.5.0", "0.5.0"), ("0.9.2", "0.9.0"), ("0.10.0", "0.10.0"), ("0.19.0", "0.18.0")]
)
def test_help_is_the_newest_recorded_one_that_is_not_newer(environment, version, recorded):
    shown = lmdeploy(environment(version), "serve", "api_server", "--help")
    assert shown.stdout == (REPO / f"fixtures/rehearsal/standin/help/{recorded}.txt").read_text()


@pytest.mark.parametrize(
    ("version", "arguments", "words"),
    [
        ("0.6.0", "--dtype float16", "unrecognized arguments: --dtype float16"),
        ("0.6.0", "--quant-policy 5", "argument --quant-policy: invalid choice: 5 "),
        ("0.18.0", "--quant-policy 5", "argument --quant-policy: invalid choice: '5' "),
        ("0.18.0", "--communicator mpi", "argument --communicator: invalid choice: 'mpi' "),
        ("0.18.0", "--tp two", "argument --tp: invalid int value: 'two'"),
        ("0.18.0", "--hf-overrides {", "argument --hf-overrides: invalid loads value: '{'"),
        ("0.18.0", "--eager-mode yes", "unrecognized arguments: yes"),
        ("0.18.0", "--allow-origins", "argument --allow-origins: expected at least one argument"),
    ],
)
def test_what_the_version_does_not_take_is_a_usage_error(environment, version, arguments, words):
    refused = lmdeploy(environment(version), "serve", "api_server", "model", *arguments.split())
    assert refused.returncode == 2
    assert words in refused.stderr


def test_version_is_the_nodes(environment):
    command = [sys.executable, "-c", "import lmdeploy; print(lmdeploy.__version__)"]
    asked = subprocess.run(command, env=environment("0.9.2"), capture_output=True, text=True, check=True, timeout=20)
    assert asked.stdout == "0.9.2\n"


@pytest.mark.parametrize(
    ("version", "gemm_lines", "warm_up_line"), [("0.5.0", 2, False), ("0.6.0", 2, False), ("0.10.0", 0, False)]
)
def test_old_versions_serve_with_their_own_lines(start, answer, version, gemm_lines, warm_up_line):
    server = start("--tp 2 --log-level INFO", version=version).ready()
    assert server.chat() == answer
    health = server.http.get(f"{server.url}/health")
    assert (health.status_code, health.content) == (200, b"")
    server.terminate()
    log = server.log()
    assert log.count("[WARNING] gemm_config.in is not found; using default GEMM algo") == gemm_lines
    assert ("failed with status 6" in log) == warm_up_line
    assert log.count("HINT:    Please open") == 3
    assert "input backend=turbomind, backend_config=TurbomindEngineConfig(tp=2, " in log


def test_a_new_version_prints_its_harmless_error(start):
    server = start("--session-len 4096").ready()
    assert any(
        "[TM][ERROR]" in line and "Warm-up for 9216 tokens failed with status 6" in line for line in server.lines
    )
