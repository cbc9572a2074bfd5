"""A server of each configuration answers, with the right text, and outlives all of it."""

import pytest

from fixtures.api_server.founding import FOUNDING_REQUEST

pytestmark = pytest.mark.multigpu


def test_founding_request(client, known_answer):
    """The request that killed the founding case's server."""
    answer = client.chat(FOUNDING_REQUEST)
    assert answer.text == known_answer.text
    assert answer.finish_reason == "stop"


def test_three_canaries(client, known_answer):
    """The smallest completion, three times in a row: what was lost at the first shows at the second."""
    for _ in range(3):
        assert client.canary().text == known_answer.first(1)


def test_streamed_equals_plain(client, known_answer):
    """The same tokens, whether they come one by one or together."""
    plain = client.chat("Tell a story.", temperature=0)
    streamed = client.chat("Tell a story.", temperature=0, stream=True)
    assert streamed.text == plain.text == known_answer.text
    assert streamed.finish_reason == plain.finish_reason


def test_sixteen_concurrent_requests(client, known_answer):
    """Sixteen requests in one batch, each cut at another length, so that answers can't be swapped unseen."""
    lengths = range(1, 17)
    answers = client.chat_all([{**FOUNDING_REQUEST, "max_tokens": length} for length in lengths])
    assert [answer.text for answer in answers] == [known_answer.first(length) for length in lengths]


def test_prompt_of_several_prefill_chunks(client, api_server, known_answer):
    """A prompt that doesn't fit into one prefill pass."""
    answer = client.chat("three kingdoms " * 40, max_tokens=8)
    assert answer.text == known_answer.first(8)
    assert api_server.prefill_chunk is None or answer.prompt_tokens > api_server.prefill_chunk


def test_process_survives(client, api_server, known_answer):
    """The process that was started is still the one that answers."""
    before = api_server.pid
    assert client.chat(FOUNDING_REQUEST).text == known_answer.text
    assert api_server.is_alive
    assert api_server.pid == before
