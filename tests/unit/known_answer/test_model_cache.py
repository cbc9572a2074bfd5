from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.errors import BadInput
from fixtures.known_answer import checkpoint
from fixtures.known_answer import model_cache as model
from fixtures.known_answer.model_cache import ModelSpec, folder_of

REPOSITORY = Path(model.__file__).parents[2]
SMALL = ModelSpec(size="small")


def test_a_model_is_built_once(tmp_path, monkeypatch):
    built = []
    write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda folder, spec: (built.append(spec), write(folder, spec)))
    assert folder_of(SMALL, tmp_path) == folder_of(SMALL, tmp_path)
    assert built == [SMALL]


def test_each_spec_and_each_builder_has_its_own_folder(tmp_path, monkeypatch):
    specs = [
        SMALL,
        ModelSpec("internlm2", size="small"),
        ModelSpec("llama", "awq", size="small"),
        ModelSpec(size="full"),
    ]
    names = {folder_of(spec, tmp_path) for spec in (*specs, ModelSpec(size="small", answer_tokens=7))}
    assert len(names) == 5
    monkeypatch.setattr(model, "_sources", lambda: "another builder")
    assert folder_of(SMALL, tmp_path) not in names


def test_two_processes_at_once_build_one_whole_model(tmp_path):
    code = (
        "from fixtures.known_answer.model_cache import *;"
        f"input(); print(folder_of(ModelSpec(size='small'), {str(tmp_path)!r}))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate()[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert said[0] == said[1] == str(folder_of(SMALL, tmp_path))
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [Path(said[0])]


def test_a_build_that_failed_leaves_no_model_and_the_next_one_clears_up(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_tensors", lambda layout: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            folder_of(SMALL, tmp_path)
    (draft,) = (path for path in tmp_path.iterdir() if path.is_dir())
    folder = folder_of(SMALL, tmp_path)
    assert not draft.exists()
    assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"architecture": "bert"}, "unknown architecture 'bert', known are llama, internlm2"),
        ({"precision": "int8"}, "unknown precision 'int8', known are fp16, awq"),
        ({"size": "huge"}, "unknown size 'huge', known are full, small"),
        ({"answer_tokens": 0}, "not 0"),
    ],
)
def test_a_wrong_spec_is_bad_input(wrong, words):
    with pytest.raises(BadInput, match=words):
        ModelSpec(**wrong)
