"""Whatever happens to one rank's share in one collective, the text changes: all sizes of tensor parallelism, ranks, sites.

fp16, AWQ, llama and internlm2 have equal weights (test_checkpoints.py), so what holds for one holds for all.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from fixtures.known_answer.lockstep import Lockstep, exact
from fixtures.known_answer.model import ModelSpec, answer_token_ids, folder_of
from fixtures.known_answer.share_faults import Copied, Lost, Stale, Twice, Unheard
from fixtures.known_answer.weights import load_weights

ANSWER_TOKENS = 24


@pytest.fixture(scope="module", params=["small", "full"])
def model(request, tmp_path_factory):
    spec = ModelSpec(size=request.param, answer_tokens=ANSWER_TOKENS)
    return spec, load_weights(folder_of(spec, tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module", params=[2, 4, 8], ids=lambda tp: f"tp{tp}")
def ranks(request, model):
    return Lockstep(model[1], request.param)


@pytest.fixture
def text(model):
    """The whole right text: the answer's tokens and the end-of-text token."""
    spec, weights = model
    return [*answer_token_ids(spec), *weights.eos]


@pytest.fixture
def prompt(model):
    return [model[1].eos[0]] * 3


@pytest.fixture
def sums(model):
    """Sites that end in an all-reduce: the embedding, and attention and MLP of each layer."""
    return range(1 + 2 * len(model[1].layers))


@pytest.fixture
def gather(sums):
    """The site of the logits' all-gather."""
    return sums.stop


def unnoticed(ranks, prompt, text, faults):
    """The faults under which the text stays right. A wrong text may be endless: it is followed for one token more."""
    return [fault for fault in faults if ranks.generate(prompt, len(text) + 1, fault) == text]


def test_text_is_right_without_a_fault(ranks, prompt, text):
    assert ranks.generate(prompt, len(text) + 1, exact) == text


def test_a_share_left_out(ranks, prompt, text, sums, gather):
    world = range(len(ranks.shards))
    faults = [Lost(site, rank) for site in (*sums, gather) for rank in world]
    assert not unnoticed(ranks, prompt, text, faults)


def test_a_share_counted_twice(ranks, prompt, text, sums):
    faults = [Twice(site, rank) for site in sums for rank in range(len(ranks.shards))]
    assert not unnoticed(ranks, prompt, text, faults)


def test_a_share_of_the_previous_step(ranks, prompt, text, sums, gather):
    faults = [Stale(site, rank) for site in (*sums, gather) for rank in range(len(ranks.shards))]
    assert not unnoticed(ranks, prompt, text, faults)


def test_parts_of_the_gather_swapped_or_copied(ranks, prompt, text, gather):
    pairs = list(permutations(range(len(ranks.shards)), 2))
    faults = [Copied(gather, *pair, swapped) for pair in pairs for swapped in (False, True)]
    assert not unnoticed(ranks, prompt, text, faults)


def test_a_share_that_one_rank_alone_does_not_get(ranks, prompt, text, sums):
    pairs = list(permutations(range(len(ranks.shards)), 2))
    faults = [Unheard(site, *pair) for site in sums for pair in pairs]
    assert not unnoticed(ranks, prompt, text, faults)
