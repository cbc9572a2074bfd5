"""Each room of fixtures/ imports only what stands below it, and only the chooser of a site knows of rehearsals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: From the ground up; what stands on one floor imports nothing of it but its own room.
FLOORS = [
    {"errors"},
    {"option"},
    {"processes"},
    {"nccl", "interpreter", "known_answer"},
    {"machine"},
    {"matrix"},
    {"run"},
    {"report"},
    {"preflight", "collective"},
    {"rehearsal"},
    {"api_server"},
    {"verdict"},
    {"session"},
    {"bisection"},
]
HEIGHT = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(FIXTURES.rglob("*.py"))


def room_of(module: str) -> str:
    return module.split(".")[1]


def module_of(path: Path) -> str:
    return ".".join(("fixtures", *path.relative_to(FIXTURES).with_suffix("").parts))


def named(path: Path) -> Iterator[str]:
    """The modules that a file imports, and those of fixtures that it names in strings: plug-ins, `python -m`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^fixtures(?:\.\w+)+$", node.value)


#: (importing module, imported module), a room's own modules aside.
ARROWS = [
    (module_of(path), module)
    for path in FILES
    for module in named(path)
    if module.startswith("fixtures.") and room_of(module) != room_of(module_of(path))
]


def test_every_room_has_its_floor() -> None:
    rooms = {room_of(module_of(path)) for path in FILES if path != FIXTURES / "__init__.py"}
    assert rooms - HEIGHT.keys() == set()


def test_imports_go_down() -> None:
    assert [arrow for arrow in ARROWS if HEIGHT[room_of(arrow[0])] <= HEIGHT[room_of(arrow[1])]] == []


def test_only_the_chooser_of_a_site_knows_of_rehearsals() -> None:
    assert {a for a, b in ARROWS if room_of(b) == "rehearsal"} == {"fixtures.session.resolve"}
