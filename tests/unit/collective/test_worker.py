"""What runs under the interpreter under test: syntax of Python 3.8, nothing but the standard library and torch."""

import ast
import sys
from pathlib import Path

import pytest

import fixtures.collective

FOLDER = Path(fixtures.collective.__file__).with_name("under_test")
MODULES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_syntax_and_imports(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", ())]
        )
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported <= {"torch", *sys.stdlib_module_names, *(module.stem for module in MODULES)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_annotation_is_evaluated(path):
    """`list[int]` and `X | None` are errors in 3.8 where they are evaluated."""
    tree = ast.parse(path.read_text())
    futures = {
        a.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for a in node.names
        if node.module == "__future__"
    }
    assert "annotations" in futures
