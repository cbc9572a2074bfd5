"""transformers loads the model and says its text. Skipped where transformers isn't installed."""

from __future__ import annotations

import pytest

from fixtures.known_answer.model_cache import ModelSpec, folder_of
from tests.unit.known_answer.answers import answer_text, answer_token_ids

MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "讲一个三国故事"},
]


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture(params=["llama", "internlm2"])
def spec(request):
    return ModelSpec(request.param, size="small")


@pytest.fixture
def folder(spec, tmp_path):
    return folder_of(spec, tmp_path)


def test_tokenizer_keeps_any_prompt_and_ends_it_with_the_assistants_turn(transformers, spec, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert prompt.endswith("讲一个三国故事<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer(prompt)["input_ids"]
    assert tokenizer.decode(ids) == prompt
    assert tokenizer.decode(answer_token_ids(spec)) == answer_text(spec)
    assert tokenizer.eos_token == "</s>"
    assert tokenizer.decode([*answer_token_ids(spec), tokenizer.eos_token_id], skip_special_tokens=True) == answer_text(
        spec
    )


def test_config_loads_by_its_architecture(transformers, spec, folder):
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert (config.model_type, config.hidden_size, config.num_key_value_heads) == (spec.architecture, 256, 8)
    assert config.eos_token_id not in (None, config.bos_token_id)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_llama_generates_the_text(transformers, dtype, tmp_path):
    torch = pytest.importorskip("torch")
    spec = ModelSpec("llama", size="small")
    folder = folder_of(spec, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=getattr(torch, dtype))
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(prompt, return_tensors="pt")
    # Sampled as the founding request is: the right token must be all but certain.
    torch.manual_seed(0)
    output = model.generate(**inputs, max_new_tokens=300, do_sample=True, temperature=0.7, top_p=0.8)[0]
    said = tokenizer.decode(output[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert said == answer_text(spec)
