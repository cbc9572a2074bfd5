from __future__ import annotations

import pytest

from fixtures.known_answer.compare import explain


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ("n0 n1 n2", ""),
        ("n0 wrong7", "differs at token 1: expected ' n1', got ' wrong7'"),
        ("n0 n1", "ends after 2 of 3 tokens: expected ' n2' next"),
        ("", "is empty: expected 3 tokens, 'n0' first"),
        ("n0 n1 n2 n0 n1", "goes on after its 3 tokens: got ' n0 n1'"),
        ("n0 n1 n2\n", "goes on after its 3 tokens: got '\\n'"),
        (" n0 n1 n2", "differs at token 0: expected 'n0', got ' n0'"),
        ("n0 " + "x" * 99, f"differs at token 1: expected ' n1', got ' {'x' * 59}…'"),
    ],
)
def test_the_first_difference_is_named(got, words):
    assert explain("n0 n1 n2", got) == words
