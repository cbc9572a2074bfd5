"""The client: answers, and the three ways to get none, each at its moment."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from fixtures.api_server.client import Client
from fixtures.api_server.death import RequestFailed, ServerDied
from fixtures.api_server.hang import ServerHung
from fixtures.api_server.ready import wait_until_ready
from fixtures.api_server.server import Server
from fixtures.processes.loop import LoopThread
from fixtures.processes.ports import free_ports
from tests.unit.api_server.conftest import Launch, answering
from tests.unit.processes.conftest import LONG, line_with, member, until

SHORT = 0.5


@pytest.fixture
def hasty(ready_server: Server, loop: LoopThread) -> Iterator[Client]:
    """A client with a deadline that is soon over."""
    client = Client(ready_server, loop, SHORT)
    yield client
    client.close()


@pytest.fixture
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that doesn't end within this has survived a broken connection."""
    monkeypatch.setattr("fixtures.api_server.client.EXIT_GRACE", 0.05)


def test_answers(client: Client) -> None:
    plain = client.chat("hi", max_tokens=3)
    assert (plain.text, plain.finish_reason, plain.prompt_tokens, plain.completion_tokens) == (
        "hi: n1 n2 n3",
        "stop",
        5,
        3,
    )
    assert plain.first_token_s is None
    assert plain.raw["usage"] == {"prompt_tokens": 5, "completion_tokens": 3}
    assert "raw" not in repr(plain)
    streamed = client.chat({"messages": [{"role": "user", "content": "hi"}]}, stream=True)
    assert (streamed.text, streamed.finish_reason) == ("hi: n1 n2 n3", "length")
    assert streamed.first_token_s is not None
    assert 0 < streamed.first_token_s <= streamed.seconds
    assert streamed.raw[0] == {"choices": [{"delta": {"role": "assistant"}}]}
    assert streamed.raw[-1] == {"choices": [{"delta": {}, "finish_reason": "length"}]}
    assert client.get("/v1/models") == 200
    assert client.canary().text.startswith("Are: ")
    assert client.server.in_flight.now() == []


def asking(what: str) -> dict[str, object]:
    return {"model": "of my own", "messages": [{"content": what}]}


def test_a_plain_post(client: Client) -> None:
    """The body goes as it stands, and the JSON comes as it is."""
    answer = client.post("/v1/completions", asking("hi"))
    assert (answer["model"], answer["choices"][0]["message"]["content"]) == ("of my own", "hi: n1 n2 n3")
    assert client.post("/v1/completions", asking("garbage [1]")) == [1]
    with pytest.raises(RequestFailed, match="the server answered 503: out of order"):
        client.post("/v1/completions", asking("status 503"))
    with pytest.raises(RequestFailed, match="the server's answer can't be read: 'no JSON'"):
        client.post("/v1/completions", asking("garbage no JSON"))
    assert client.server.in_flight.now() == []


def test_a_death_and_a_hang_during_a_plain_post(mortal: Client, hasty: Client) -> None:
    with pytest.raises(ServerHung, match=r"POST /v1/completions: no whole answer within 0.5 s"):
        hasty.post("/v1/completions", asking("wait"))
    with pytest.raises(ServerDied, match=r"while serving 1 request\n  in flight: POST /v1/completions, for"):
        mortal.post("/v1/completions", asking("signal 6"))


def test_chat_all_answers_in_the_order_of_the_requests(client: Client) -> None:
    requests = [f"r{number}" if number % 2 else {"messages": [{"content": f"r{number}"}]} for number in range(16)]
    answers = client.chat_all(requests, max_tokens=3)
    assert [answer.text for answer in answers] == [f"r{number}: n1 n2 n3" for number in range(16)]


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("signal 6", r"killed by SIGABRT \(Aborted\)"),
        ("signal 9", r"killed by SIGKILL \(Killed\)"),
        ("exit 0", "exited with code 0"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_death_during_a_request_is_told_at_once(mortal: Client, ending: str, words: str, stream: bool) -> None:
    started = time.monotonic()
    with pytest.raises(ServerDied, match=f"{words} while serving 1 request") as told:
        mortal.chat(ending, stream=stream)
    assert time.monotonic() - started < 5, "the deadline is 20 s"
    request = f"{'streamed ' if stream else ''}POST /v1/chat/completions ({ending})"
    assert [flight.name for flight in told.value.death.in_flight] == [request]
    with pytest.raises(ServerDied):
        mortal.chat("after it")


def test_a_death_tells_every_request_that_was_under_way(mortal: Client) -> None:
    with pytest.raises(ServerDied, match="while serving 4 requests") as told:
        mortal.chat_all(["wait", "wait", "wait", "signal 6"])
    assert str(told.value).count("in flight: POST /v1/chat/completions (wait), for") == 3
    until(lambda: mortal.server.in_flight.now() == [], "nothing is in flight any more")


def test_a_death_by_a_get(mortal: Client) -> None:
    with pytest.raises(ServerDied, match="in flight: GET /die"):
        mortal.get("/die")


def test_the_death_of_a_node_that_isnt_asked_ends_the_request(launch: Launch, loop: LoopThread) -> None:
    port = free_ports("127.0.0.1", 1)[0]
    server = launch(answering(port), member("import os, time; time.sleep(60)"), port=port)
    wait_until_ready(server, LONG, lambda: 0)
    client = Client(server, loop, LONG)

    def kill_the_other() -> None:
        line_with(server.process, "asked")
        os.kill(server.process.pids[1], signal.SIGKILL)

    killing = threading.Thread(target=kill_the_other)
    killing.start()
    started = time.monotonic()
    with pytest.raises(
        ServerDied, match=r"node 1 of the server's 2 .* while serving 1 request\n  in flight: .*\(wait\)"
    ):
        client.chat("wait")
    assert time.monotonic() - started < 5, "the deadline is 20 s"
    killing.join()
    client.close()


def test_a_connection_broken_before_a_death_is_the_death(mortal: Client) -> None:
    with pytest.raises(ServerDied, match="exited with code 3"):
        mortal.chat("drop 0.1")


@pytest.mark.usefixtures("_no_grace")
def test_a_broken_connection_of_a_server_that_lives(client: Client) -> None:
    with pytest.raises(RequestFailed, match=r"POST .*\(drop\): RemoteProtocolError .*, and the server lives"):
        client.chat("drop")
    assert client.server.usable


@pytest.mark.usefixtures("_no_grace")
def test_a_stream_without_done(client: Client) -> None:
    with pytest.raises(RequestFailed, match=r"the stream ended without \[DONE\]\), and the server lives"):
        client.chat("endless", stream=True)


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_status(client: Client, stream: bool) -> None:
    with pytest.raises(RequestFailed, match="the server answered 503: out of order"):
        client.chat("status 503", stream=stream)


@pytest.mark.parametrize("body", ["no JSON", "{}", "[]", '{"choices": []}', '{"choices": [{"message": null}]}'])
def test_an_answer_that_cant_be_read(client: Client, body: str) -> None:
    with pytest.raises(RequestFailed, match="the server's answer can't be read: '"):
        client.chat(f"garbage {body}")


def test_a_stream_that_cant_be_read(client: Client) -> None:
    with pytest.raises(RequestFailed, match=re.escape("the server's answer can't be read: 'data: {'")):
        client.chat("torn", stream=True)


@pytest.mark.parametrize(
    ("request_", "stream", "late", "least"),
    [
        ("wait", False, "no whole answer within 0.5 s", SHORT),
        ("wait", True, "no first token within 0.25 s", SHORT / 2),
        ("mute", True, "no first token within 0.25 s", SHORT / 2),
        ("stuck", True, "no whole answer within 0.5 s", SHORT),
    ],
)
def test_a_hang_is_told_with_evidence(hasty: Client, request_: str, stream: bool, late: str, least: float) -> None:
    started = time.monotonic()
    with pytest.raises(ServerHung) as told:
        hasty.chat(request_, stream=stream)
    assert time.monotonic() - started >= least
    assert "the server turbomind-tp1-fp16 lives but hangs" in str(told.value)
    assert late in str(told.value)
    assert "meanwhile GET /v1/models: 200" in str(told.value)
    assert f"pid {hasty.server.pid}: state S" in str(told.value)
    assert not hasty.server.usable


def test_one_that_fails_among_many_ends_the_others(client: Client) -> None:
    started = time.monotonic()
    with pytest.raises(RequestFailed, match="503"):
        client.chat_all(["wait", "wait", "status 503"])
    assert time.monotonic() - started < 5
    assert client.server.in_flight.now() == []


def test_a_closed_client_is_forgotten_by_its_server(ready_server: Server, loop: LoopThread) -> None:
    client = Client(ready_server, loop, SHORT)
    assert ready_server._callbacks
    client.close()
    assert not ready_server._callbacks
    with pytest.raises(RuntimeError, match="closed"):
        client.chat("hi")


def test_no_proxy_is_asked(steady_server: Server, loop: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with pytest.raises(httpx.ConnectError):
        httpx.get(steady_server.url)
    client = Client(steady_server, loop, SHORT)
    assert client.get("/v1/models") == 200
    client.close()
