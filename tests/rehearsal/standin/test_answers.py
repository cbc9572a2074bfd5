"""The stand-in says the model's text, whatever ranks compute it, and speaks lmdeploy's routes."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fixtures.machine.machine import Machine
from fixtures.rehearsal.ledger import Ledger


@pytest.mark.parametrize(
    ("backend", "tp", "precision", "visible"),
    [
        ("turbomind", 1, "fp16", (3, 0)),
        ("turbomind", 2, "fp16", (2, 1)),
        ("turbomind", 4, "fp16", (0, 1, 2, 3)),
        ("turbomind", 2, "awq", (3, 1, 0)),
        ("pytorch", 1, "fp16", (1,)),
        ("pytorch", 2, "fp16", (2, 0, 3)),
        ("pytorch", 4, "fp16", (3, 0, 1, 2)),
    ],
)
def test_every_configuration_answers_exactly_and_ends_cleanly(
    start, answer, ledger, node, backend, tp, precision, visible
):
    """Each rank on the GPU of its number among the visible ones."""
    uuids = ",".join(node.gpus[index].uuid for index in visible)
    server = start(f"--backend {backend} --tp {tp}", precision, CUDA_VISIBLE_DEVICES=uuids).ready()
    assert server.chat() == answer
    assert ("_turbomind" in Path(f"/proc/{server.process.pid}/maps").read_text()) == (backend == "turbomind")
    assert {gpu.index for gpu in node.gpus if ledger.used_mib(gpu.uuid)} == set(visible[:tp])
    holders = {pid for gpu in node.gpus for pid, _ in ledger.processes_on(gpu.uuid)}
    if backend == "pytorch" and tp > 1:
        assert holders == set(server.others())
        assert len(holders) == tp
    else:
        assert holders == {server.process.pid}
    assert server.terminate() == -signal.SIGTERM  # a shell shows it as 143
    assert "Shutting down" in server.log()
    assert server.others() == []
    assert [ledger.used_mib(gpu.uuid) for gpu in node.gpus] == [0] * 4


@pytest.mark.parametrize("backend", ["turbomind", "pytorch"])
def test_sixteen_at_once_are_exact_and_streams_equal_plain_answers(start, answer, backend):
    server = start(f"--backend {backend} --tp 2").ready()
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda _: server.chat(), range(16))) == [answer] * 16
    lines = [line for line in server.post(stream=True).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-1]]
    assert "".join(choice["delta"]["content"] for choice in choices) == answer
    assert len(choices) > len(answer.split())
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


def test_routes(start, answer):
    server = start("--model-name story").ready()
    assert [card["id"] for card in server.http.get(f"{server.url}/v1/models").json()["data"]] == ["story"]
    health = server.http.get(f"{server.url}/health")
    assert health.json() == {"status": "healthy", "message": "TurboMind engine is healthy."}
    whole = server.post(model="story").json()
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["finish_reason"] == "stop"
    usage = whole["usage"]
    assert usage["completion_tokens"] == len(answer.split())
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    cut = server.post(model="story", max_tokens=3).json()
    assert cut["choices"][0]["message"]["content"] == " ".join(answer.split()[:3])
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == 3
    assert server.chat(model="story", max_completion_tokens=1) == answer.split()[0]
    plain = server.post("/v1/completions", model="story", prompt="one", max_tokens=2).json()
    assert [choice["text"] for choice in plain["choices"]] == [" ".join(answer.split()[:2])]
    unknown = server.post(model=server.model)
    assert unknown.status_code == 404
    assert "does not exist" in unknown.json()["message"]
    assert server.post(model="story", max_tokens=0).status_code == 400
    assert server.post(model="story", messages=3).status_code == 422


def test_long_prompt_in_small_chunks(start, answer):
    server = start("--tp 2 --max-prefill-token-num 7 --session-len 2048").ready()
    question = [{"role": "user", "content": "Once upon a time. " * 20}]
    body = server.post(messages=question).json()
    assert body["usage"]["prompt_tokens"] > 50 * 7
    assert body["choices"][0]["message"]["content"] == answer
    too_long = server.post(messages=[{"role": "user", "content": "x" * 3000}])
    assert too_long.status_code == 400


def test_two_nodes(start, answer, unused_port, ledger: Ledger, node: Machine):
    options = f"--tp 2 --nnodes 2 --dist-init-addr 127.0.0.1:{unused_port} --communicator nccl --node-rank"
    second = start(f"{options} 1", CUDA_VISIBLE_DEVICES=node.gpus[0].uuid)
    first = start(f"{options} 0", CUDA_VISIBLE_DEVICES=node.gpus[0].uuid, NCCL_DEBUG="WARN").ready()
    second.ready()
    assert first.chat() == answer
    assert {pid for pid, _ in ledger.processes_on(node.gpus[0].uuid)} == {first.process.pid, second.process.pid}
    second.process.kill()
    second.ended()
    with pytest.raises(Exception, match="timed out"):
        first.post(timeout=0.3)
    first.await_line("NCCL WARN socketProgress: Connection closed by remote peer")
    assert first.http.get(f"{first.url}/health").status_code == 200


@pytest.mark.parametrize(
    ("options", "visible", "words"),
    [
        ("--tp 2", "0", "invalid device ordinal"),
        ("--tp 2 --backend pytorch", "0", "invalid device ordinal"),
        ("--tp 2 --cache-max-entry-count 0", "2,3", "out of memory"),
        ("--tp 2 --cache-max-entry-count 0 --backend pytorch", "2,3", "out of memory"),
    ],
)
def test_a_start_without_enough_gpus_or_memory_fails(start, options, visible, words):
    server = start(options, CUDA_VISIBLE_DEVICES=visible)
    assert server.ended() == 1
    log = server.log()
    assert words in log
    assert "Uvicorn running" not in log


def test_a_dead_rank_process_ends_the_server_at_the_next_request(start):
    server = start("--tp 2 --backend pytorch").ready()
    os.kill(max(server.others()), signal.SIGKILL)
    with pytest.raises(Exception, match="disconnected"):
        server.chat()
    assert server.ended() == 1
    log = server.log()
    assert "connection closed by remote peer" in log
    assert "termination signal from sub processing" in log
