"""What a known-answer model says, as text and as tokens."""

from __future__ import annotations

from fixtures.known_answer.layout import Layout
from fixtures.known_answer.model_cache import ModelSpec, answer_pieces


def answer_text(spec: ModelSpec) -> str:
    """The whole answer: "n0 n1 n2 …"."""
    return "".join(answer_pieces(spec))


def answer_token_ids(spec: ModelSpec) -> list[int]:
    """The answer's token ids, without the end-of-text token that follows."""
    layout = Layout(spec)
    return [layout.vocabulary[word] for word in layout.answer]
