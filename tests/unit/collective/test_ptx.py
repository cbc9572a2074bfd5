"""The store kernel's PTX, run here thread by thread, stores what the host computes; NVIDIA's assembler takes it."""

import re
import shutil
import subprocess

import pytest

from fixtures.collective.under_test.cuda_driver import PTX, THREADS
from fixtures.collective.under_test.peer import POISON, difference, stored_words, word_at

TEXT = PTX.rstrip(b"\0").decode()
BASE, SEED = 0x7F00_0000_1000, 0xFFFF_FFF0
OPERATIONS = {
    "ld": int,
    "mov": int,
    "cvta": int,
    "mul": lambda x, y: x * y,
    "mad": lambda x, y, z: x * y + z,
    "add": lambda x, y: x + y,
    "xor": lambda x, y: x ^ y,
    "shr": lambda x, y: x >> y,
    "setp": lambda x, y: x >= y,
}


def one_thread(parameters, special):
    """What one thread of the grid stores, by address; registers are numbers."""
    body = TEXT[TEXT.index("{") + 1 : TEXT.rindex("}")]
    lines = [line.strip() for line in body.splitlines() if line.strip() and not line.strip().startswith(".")]
    values, memory, at = {**parameters, **special}, {}, 0
    while (line := lines[at]) != "ret;":
        at += 1
        if found := re.fullmatch(r"@(%\w+) bra (\w+);", line):
            at = lines.index(f"{found[2]}:") if values[found[1]] else at
            continue
        if line.endswith(":"):
            continue
        operation, words = line.rstrip(";").split(" ", 1)
        target, *sources = [word.strip(" []") for word in words.split(",")]
        numbers = [values[word] if word in values else int(word) for word in sources]
        if operation == "st.global.u32":
            memory[values[target]] = numbers[0]
            continue
        wide = operation.endswith("64") or ".wide" in operation
        values[target] = OPERATIONS[operation.split(".")[0]](*numbers) & (2**64 - 1 if wide else 2**32 - 1)
    return memory


def test_every_thread_stores_its_word_and_none_beyond_the_end():
    words, blocks = 2 * THREADS + 3, 3
    memory = {}
    for place in range(THREADS * blocks):
        special = {"%tid.x": place % THREADS, "%ctaid.x": place // THREADS, "%ntid.x": THREADS}
        memory |= one_thread({"to": BASE, "words": words, "seed": SEED}, special)
    assert memory == {BASE + 4 * position: word_at(position, SEED) for position in range(words)}


def test_a_position_far_out():
    """The product with the position overflows 32 bits, the address doesn't."""
    special = {"%tid.x": THREADS - 1, "%ctaid.x": 2**22 - 1, "%ntid.x": THREADS}
    position = 2**22 * THREADS - 1
    stored = one_thread({"to": BASE, "words": position + 1, "seed": 2}, special)
    assert stored == {BASE + 4 * position: word_at(position, 2)}


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas here")
@pytest.mark.parametrize("gpu", ["sm_75", "sm_90", "sm_120"])
def test_the_assembler_takes_it(gpu, tmp_path):
    source = tmp_path / "store.ptx"
    source.write_text(TEXT)
    argv = ["ptxas", f"-arch={gpu}", source, "-o", tmp_path / "store.cubin"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "is not defined for option 'gpu-name'" in done.stderr:
        pytest.skip(f"this ptxas doesn't know {gpu}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", [1, 2, SEED])
def test_all_words_at_once_are_the_same_words(seed):
    words = stored_words(5000, seed).tolist()
    assert words == [word_at(position, seed) for position in range(5000)]
    assert POISON not in words
    assert len(set(words)) == 5000


def as_memory(words):
    return b"".join(word.to_bytes(4, "little") for word in words)


RIGHT = [word_at(position, 1) for position in range(1000)]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (RIGHT, None),
        ([POISON] * 1000, "1000 of 1000 words wrong, first at 0 (deadbeef for 00000001): the store never reached"),
        (RIGHT[:900] + [POISON] * 100, f"100 of 1000 words wrong, first at 900 (deadbeef for {RIGHT[900]:08x}): never"),
        ([*RIGHT[:-1], 0], "1 of 1000 words wrong, first at 999 (00000000 for"),
        ([0, 0, POISON, *RIGHT[3:]], "3 of 1000 words wrong, first at 0 (00000000 for 00000001): 1 never written, 2 z"),
        ([RIGHT[0], RIGHT[1] ^ 1 << 31, *RIGHT[2:]], "1 of 1000 words wrong, first at 1 "),
        (RIGHT[1:] + RIGHT[:1], f"1000 of 1000 words wrong, first at 0 ({RIGHT[1]:08x} for 00000001): other data"),
        ([word_at(position, 2) for position in range(1000)], "1000 of 1000 words wrong"),
    ],
    ids=["right", "lost", "tail-lost", "zero", "several", "flipped-bit", "shifted", "store-before"],
)
def test_what_is_wrong_is_told(found, told):
    words = difference(as_memory(found), 1)
    assert words is None if told is None else words.startswith(told)
