"""Whatever happens to one rank's share in one collective, the text changes: every tp, every rank, every site.

fp16, AWQ, llama and internlm2 have equal weights (test_checkpoints.py), so what holds for one holds for all.
"""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from fixtures.known_answer.model_cache import ModelSpec, folder_of
from fixtures.known_answer.weights import load_weights
from tests.unit.known_answer.answers import answer_token_ids
from tests.unit.known_answer.lockstep import Lockstep
from tests.unit.known_answer.share_faults import Copied, Lost, Stale, Twice, Unheard

# Enough that each of eight shards of the vocabulary has one of the text, some two.
ANSWER_TOKENS = 12
both_sizes = pytest.mark.parametrize("model", ["small", "full"], indirect=True)


@pytest.fixture(scope="module")
def model(request, models):
    spec = ModelSpec(size=getattr(request, "param", "small"), answer_tokens=ANSWER_TOKENS)
    return spec, load_weights(folder_of(spec, models))


@pytest.fixture(scope="module", params=[2, 4, 8], ids=lambda tp: f"tp{tp}")
def ranks(request, model):
    return Lockstep(model[1], request.param)


@pytest.fixture
def world(ranks):
    return range(len(ranks.shards))


@pytest.fixture
def text(model):
    """The whole right text: the answer's tokens and the end-of-text token."""
    spec, weights = model
    return [*answer_token_ids(spec), *weights.eos]


@pytest.fixture
def prompt(request, model):
    return [model[1].eos[0]] * getattr(request, "param", 3)


@pytest.fixture
def layer_sites(model):
    """The sites that end attention and MLP of each layer."""
    return range(1, 1 + 2 * len(model[1].layers))


@pytest.fixture
def sums(layer_sites):
    """The sites that end in an all-reduce: the embedding too."""
    return range(layer_sites.stop)


@pytest.fixture
def gather(sums):
    """The site of the logits' all-gather."""
    return sums.stop


def unnoticed(ranks, prompt, text, faults):
    """The faults under which the text stays right to its end. A wrong one is followed to its first wrong token."""
    agreed = ranks.agreed(prompt, faults, text)
    return [fault for fault, tokens in zip(faults, agreed, strict=True) if tokens == len(text)]


@both_sizes
def test_text_is_right_without_a_fault(ranks, prompt, text):
    assert list(ranks.tokens(prompt)) == text


def test_side_by_side_they_say_what_each_says_alone(ranks, prompt, text, sums):
    """Also where they leave the text at different tokens, or not at all."""

    def faults():  # anew: Stale remembers
        return [kind(site, 1, steps=[3 * site]) for site in sums for kind in (Lost, Twice, Stale)]

    def alone(fault):
        pairs = zip(ranks.tokens(prompt, fault), text, strict=False)
        return next((number for number, (said, right) in enumerate(pairs) if said != right), len(text))

    agreed = ranks.agreed(prompt, faults(), text)
    assert agreed == [alone(fault) for fault in faults()]
    assert len({*agreed}) > 3


@both_sizes
def test_a_share_left_out(ranks, world, prompt, text, sums, gather):
    assert not unnoticed(ranks, prompt, text, [Lost(site, rank) for site in (*sums, gather) for rank in world])


@pytest.mark.parametrize("prompt", [1, 30], indirect=True)
def test_a_share_left_out_after_a_short_and_a_long_prompt(ranks, world, prompt, text, sums):
    """A state of zeros attends to all earlier tokens alike: their number must not matter."""
    assert not unnoticed(ranks, prompt, text, [Lost(site, rank) for site in sums for rank in world])


@both_sizes
def test_a_share_counted_twice(ranks, world, prompt, text, sums):
    assert not unnoticed(ranks, prompt, text, [Twice(site, rank) for site in sums for rank in world])


@both_sizes
def test_a_share_of_the_previous_step(ranks, world, prompt, text, sums, gather):
    assert not unnoticed(ranks, prompt, text, [Stale(site, rank) for site in (*sums, gather) for rank in world])


def test_parts_of_the_gather_swapped(ranks, world, prompt, text, gather):
    assert not unnoticed(ranks, prompt, text, [Copied(gather, *pair, swapped=True) for pair in combinations(world, 2)])


def test_a_part_of_the_gather_in_anothers_place(ranks, world, prompt, text, gather):
    assert not unnoticed(ranks, prompt, text, [Copied(gather, *pair, swapped=False) for pair in permutations(world, 2)])


def test_a_share_that_one_rank_alone_does_not_get(ranks, world, prompt, text, sums):
    assert not unnoticed(
        ranks, prompt, text, [Unheard(site, *pair) for site in sums for pair in permutations(world, 2)]
    )


@pytest.mark.parametrize("fault", [Lost, Twice])
def test_a_single_step_is_enough(ranks, world, prompt, text, layer_sites, fault):
    """At any step, in attention or MLP, a rank's share that is wrong once makes that very token wrong."""
    for step, right in enumerate(text):
        faults = [fault(site, rank) for site in layer_sites for rank in world]
        assert not any(ranks.agreed(prompt + text[:step], faults, [right])), step


def test_a_single_stale_step_is_enough(ranks, world, prompt, text, layer_sites):
    for step in range(1, len(text)):
        faults = [Stale(site, rank) for site in layer_sites for rank in world]
        agreed = ranks.agreed(prompt + text[: step - 1], faults, text[step - 1 : step + 1])
        assert agreed == [1] * len(faults), step
