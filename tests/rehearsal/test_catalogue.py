"""No fault without a rehearsal that shows how it is told."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.rehearsal.faults import fault_names, load_fault

HERE = Path(__file__).parent
TESTS = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py"))


def anywhere(fault):
    """A [[fabric]] table, between whichever GPUs."""
    gpu = None if fault.gpu is None else fault.gpus.index(fault.gpu)
    return replace(fault, gpus=tuple(range(len(fault.gpus))), gpu=gpu)


#: What scenes say of the fabric, as far as tests here rehearse them.
STAGED = [
    anywhere(fault)
    for scene in HERE.glob("scenes/*.toml")
    if re.search(rf'rehearsal\(\s*"--fault=tests/rehearsal/scenes/{re.escape(scene.name)}"', TESTS)
    for fault in load_fault(scene).fabric
]


@pytest.mark.parametrize("name", fault_names())
def test_fault_is_rehearsed(name):
    """Some test here runs a whole rehearsal with it, or with a scene in which it befalls other GPUs."""
    fault = load_fault(name)
    staged = not fault.action and all(anywhere(one) in STAGED for one in fault.fabric)
    assert staged or re.search(rf'rehearsal\(\s*"--fault={re.escape(name)}"', TESTS)
