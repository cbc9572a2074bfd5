"""The model says its text: split or not, in chunks or not, in fp16 in any order of sums, and by a wide margin."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from fixtures.errors import BadInput
from fixtures.known_answer.forward import Shard
from fixtures.known_answer.model_cache import ModelSpec, folder_of
from fixtures.known_answer.weights import load_weights
from tests.unit.known_answer.answers import answer_token_ids
from tests.unit.known_answer.lockstep import Alone, Lockstep, exact


@pytest.fixture(scope="module", params=["small", "full"])
def model(request, models):
    spec = ModelSpec(size=request.param, answer_tokens=12)
    weights = load_weights(folder_of(spec, models))
    return weights, [*answer_token_ids(spec), *weights.eos]


@pytest.mark.parametrize("size", ["small", "full"])
def test_the_longest_text(size, models):
    longest = ModelSpec(size=size).longest_answer
    assert longest >= 200
    assert ModelSpec(size=size).answer_tokens == 200
    with pytest.raises(BadInput, match=f"1 … {longest}"):
        ModelSpec(size=size, answer_tokens=longest + 1)
    if size == "small":
        spec = ModelSpec(size=size, answer_tokens=longest)
        weights = load_weights(folder_of(spec, models))
        assert list(Lockstep(weights, 1).tokens([weights.eos[0]])) == [*answer_token_ids(spec), *weights.eos]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 16])
def test_short_texts(count, models):
    spec = ModelSpec(size="small", answer_tokens=count)
    weights = load_weights(folder_of(spec, models))
    assert list(Lockstep(weights, 2).tokens([weights.eos[0]])) == [*answer_token_ids(spec), *weights.eos]


def test_any_last_token_of_a_prompt_starts_the_text(models):
    spec = ModelSpec(size="small")
    folder = folder_of(spec, models)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    everything = "".join(map(chr, range(256))) + "讲一个三国故事<s></s><|im_start|><|im_end|>"
    shard = Shard(load_weights(folder), 0, 1)
    first = answer_token_ids(spec)[0]
    for token in {*tokenizer.encode(everything).ids}:
        assert shard.forward([token], shard.new_cache(), Alone()).argmax() == first


def test_right_token_outweighs_all_others_by_far(model):
    """Under the founding request's temperature 0.7 and top_p 0.8 nothing else must have a chance."""
    weights, text = model
    shard = Shard(weights, 0, 1)
    cache = shard.new_cache()
    tokens = [weights.eos[0]] * 5
    for right in text:
        logits = shard.forward(tokens, cache, Alone())
        others = np.delete(logits, right)
        assert logits[right] - others.max() > 60
        assert others.max() < 0.01
        tokens = [right]


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_sums_are_exact_in_fp16_in_any_order(model, tp):
    weights, text = model
    generator = np.random.default_rng(tp)

    def halves(step, site, operation, parts):
        if operation == "all_gather":
            return exact(step, site, operation, parts)
        parts = [part.astype(np.float16) for part in parts]
        assert max(np.abs(part).max() for part in parts) < 1024
        wanted = np.sum(parts, axis=0, dtype=np.float64)
        for _ in range(4):
            total = np.zeros_like(parts[0])
            for rank in generator.permutation(tp):
                total = total + parts[rank]
            assert np.array_equal(total, wanted)
        return [total.astype(np.float32)] * tp

    assert list(Lockstep(weights, tp).tokens([weights.eos[0]] * 3, halves)) == text


@pytest.mark.parametrize("chunks", [[7], [1, 6], [3, 3, 1], [1] * 7])
def test_prompt_in_chunks_gives_the_same_logits(model, chunks):
    weights, text = model
    prompt = [weights.eos[0], 1, 300, *text[:4]]
    whole, chunked = Shard(weights, 0, 1), Shard(weights, 0, 1)
    wanted = whole.forward(prompt, whole.new_cache(), Alone())
    cache = chunked.new_cache()
    for size in chunks:
        begin = cache.length
        got = chunked.forward(prompt[begin : begin + size], cache, Alone())
    assert np.allclose(got, wanted, atol=1e-3)
    assert got.argmax() == text[4]


def test_cache_grows_over_its_first_capacity(models):
    spec = ModelSpec(size="small")
    weights = load_weights(folder_of(spec, models))
    said = list(Lockstep(weights, 2).tokens([weights.eos[0]] * 400))
    assert said == [*answer_token_ids(spec), *weights.eos]


def test_attention_has_a_sharp_peak_at_the_current_token(model):
    """For each distance that fits, the score is lower than at distance 0 by more than 20: a weight below e^-20."""
    weights, _ = model
    half = weights.head_dim // 2
    state = weights.embedding[weights.eos[0]]
    normed = state / np.sqrt(np.mean(state**2))
    query = (weights.layers[0].query @ normed)[: weights.head_dim]
    key = (weights.layers[0].key @ normed)[: weights.head_dim]
    assert not query[half:].any()
    frequencies = weights.rope_theta ** -(np.arange(half) / half)
    distances = np.arange(weights.max_positions)[:, None]
    scores = np.cos(distances * frequencies) @ (query * key)[:half] / np.sqrt(weights.head_dim)
    assert scores[0] - scores[1:].max() > 20


@pytest.mark.parametrize("world_size", [3, 16])
def test_a_model_that_does_not_divide_is_bad_input(model, world_size):
    with pytest.raises(BadInput, match=f"among {world_size} ranks"):
        Shard(model[0], 0, world_size)


@pytest.mark.parametrize("tokens", [[], [-1], [10**6]])
def test_tokens_outside_the_vocabulary_are_refused(model, tokens):
    shard = Shard(model[0], 0, 8)
    with pytest.raises(ValueError, match="tokens must be"):
        shard.forward(tokens, shard.new_cache(), Alone())
