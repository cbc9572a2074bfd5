"""The model's files: equal weights in all four forms, made of small integers times a power of two."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from fixtures.errors import BadInput
from fixtures.known_answer.layout import SIZES
from fixtures.known_answer.model_cache import ModelSpec, folder_of
from fixtures.known_answer.weights import Layer, load_weights
from tests.unit.known_answer.answers import answer_text, answer_token_ids

FORMS = [(architecture, precision) for architecture in ("llama", "internlm2") for precision in ("fp16", "awq")]


@pytest.fixture(scope="module", params=["small", "full"])
def folders(request, models):
    return {form: folder_of(ModelSpec(*form, size=request.param), models) for form in FORMS}


def matrices(weights):
    yield from (weights.embedding, weights.head, weights.norm)
    for layer in weights.layers:
        yield from (getattr(layer, field.name) for field in fields(Layer))


def test_all_forms_have_equal_weights(folders):
    reference, *others = (load_weights(folder) for folder in folders.values())
    for other in others:
        assert (other.heads, other.kv_heads, other.head_dim, other.eos) == (
            reference.heads,
            reference.kv_heads,
            reference.head_dim,
            reference.eos,
        )
        assert all(np.array_equal(a, b) for a, b in zip(matrices(reference), matrices(other), strict=True))


def test_weights_are_small_integers_times_a_power_of_two(folders):
    for matrix in matrices(load_weights(folders["llama", "fp16"])):
        lowest = np.abs(matrix[matrix != 0]).min()
        assert np.frexp(lowest)[0] == 0.5, "not a power of two"
        units = matrix / lowest
        assert np.array_equal(units, np.round(units))
        assert np.abs(units).max() <= 8


def test_norms_are_ones(folders):
    weights = load_weights(folders["llama", "fp16"])
    norms = [weights.norm, *(norm for layer in weights.layers for norm in (layer.attention_norm, layer.mlp_norm))]
    assert all((norm == 1).all() for norm in norms)


def test_internlm2_keeps_query_key_and_value_of_each_head_together(folders):
    joined = load_file(folders["internlm2", "fp16"] / "model.safetensors")["model.layers.0.attention.wqkv.weight"]
    layer = load_weights(folders["llama", "fp16"]).layers[0]
    head_dim = layer.query.shape[0] // 8
    for head in range(8):
        rows = slice(head * head_dim, (head + 1) * head_dim)
        parts = joined[3 * head_dim * head : 3 * head_dim * (head + 1)].reshape(3, head_dim, -1)
        assert np.array_equal(parts, [layer.query[rows], layer.key[rows], layer.value[rows]])


def test_internlm2_brings_its_configuration_class(folders):
    for (architecture, _), folder in folders.items():
        config = json.loads((folder / "config.json").read_text())
        named = config.get("auto_map", {}).get("AutoConfig")
        assert named == ("configuration_internlm2.InternLM2Config" if architecture == "internlm2" else None)
        assert (folder / "configuration_internlm2.py").exists() == (architecture == "internlm2")


def test_sizes_suit_turbomind_at_tp_8():
    size = SIZES["full"]
    assert size.head_dim == 128
    assert size.hidden == 8 * size.head_dim
    assert all(number % (8 * 128) == 0 for number in (size.hidden, size.inner, size.vocab))


def test_size_on_disk(folders):
    megabytes = {form: sum(file.stat().st_size for file in folder.iterdir()) / 1e6 for form, folder in folders.items()}
    assert max(megabytes.values()) < 80


def test_tokenizer_takes_any_text_and_never_as_the_answers_tokens(folders):
    tokenizer = Tokenizer.from_file(str(folders["llama", "fp16"] / "tokenizer.json"))
    answer = {id for word, id in tokenizer.get_vocab().items() if word.lstrip("Ġ")[:1] == "n" and word[-1].isdigit()}
    assert len(answer) == 200
    for text in ("讲一个三国故事", "n0 n1", "\x00\t🐉 é", "<|im_start|>user\n"):
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert not answer & {*ids}
    assert len(tokenizer.encode("<|im_start|>").ids) == 1


def test_tokens_of_the_answer_decode_to_its_text(tmp_path):
    spec = ModelSpec(size="small", answer_tokens=5)
    tokenizer = Tokenizer.from_file(str(folder_of(spec, tmp_path) / "tokenizer.json"))
    assert tokenizer.decode(answer_token_ids(spec)) == answer_text(spec) == "n0 n1 n2 n3 n4"


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_without_a_model_is_bad_input(missing, tmp_path):
    folder = folder_of(ModelSpec(size="small"), tmp_path)
    (folder / missing).unlink()
    with pytest.raises(BadInput, match=missing):
        load_weights(folder)


def test_an_unknown_model_type_is_bad_input(tmp_path):
    folder = folder_of(ModelSpec(size="small"), tmp_path)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BadInput, match="bert"):
        load_weights(folder)
