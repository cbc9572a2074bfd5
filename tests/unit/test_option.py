"""An option is a field: offered under its name, read by its kind, refused in one line."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fixtures.errors import BadInput
from fixtures.option import options_of, read, seconds, switch, text, whole, words


@dataclass(frozen=True)
class Settings:
    quiet: bool = switch("say less")
    name_of_it: str | None = text("a name", "NAME")
    doubled: str = text("twice", "TEXT", "-", lambda given: 2 * given)
    most: int = whole("so many", 2, least=1)
    patience: float = seconds("how long to wait", 30)
    bits: tuple[int, ...] = words("of a number", (4, 8, 16), (16,))
    no_option: int = 7


def test_defaults_stand_where_nothing_is_given() -> None:
    assert read(Settings, lambda name: None) == Settings()


def test_each_kind_is_read() -> None:
    given = {
        "quiet": True,
        "name_of_it": "",
        "doubled": "ab",
        "most": "1",
        "patience": "0.5",
        "bits": "8, 4,8",
        "no_option": "9",
    }
    assert read(Settings, given.get) == Settings(True, "", "abab", 1, 0.5, (8, 4))


@pytest.mark.parametrize(
    ("name", "given", "line"),
    [
        ("most", "0", "--most=0: must be a number from 1 on"),
        ("most", "1.5", "--most=1.5: not a whole number"),
        ("patience", "soon", "--patience=soon: not a number"),
        ("patience", "nan", "--patience=nan: must be a number from 0.1 on"),
        ("bits", "8,", "--bits=8,: unknown ''; known: 4, 8, 16"),
    ],
)
def test_what_cant_be_read_is_told_in_one_line(name: str, given: str, line: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(Settings, {name: given}.get)
    assert str(refused.value) == line


def test_the_help_has_what_is_known_and_the_default() -> None:
    help_ = {name: option.help for name, option in options_of(Settings)}
    assert help_["most"] == "so many (default 2)"
    assert help_["bits"] == "of a number, between commas: 4, 8, 16 (default 16)"
    assert help_["name_of_it"] == "a name"
    assert "no_option" not in help_
