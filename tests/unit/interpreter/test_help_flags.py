"""Reading real help texts (the stand-in's, printed by each release's own parser on Python 3.8 to 3.12)."""

import argparse
import re
from pathlib import Path

import pytest

from fixtures.interpreter.help_flags import parse_help

HELP = Path(__file__).parents[3] / "fixtures/rehearsal/standin/help"
ALL = ["0.5.0", "0.6.0", "0.7.2", "0.9.0", "0.10.0", "0.12.0", "0.15.0", "0.18.0"]
#: Flag -> the first of these versions that has it (the rest, up to 0.18.0, have it too).
SINCE = {
    "--backend": "0.5.0",
    "--tp": "0.5.0",
    "--server-port": "0.5.0",
    "--cache-max-entry-count": "0.5.0",
    "--log-level": "0.5.0",
    "--max-prefill-token-num": "0.6.0",
    "--dtype": "0.7.2",
    "--communicator": "0.7.2",
    "--eager-mode": "0.7.2",
    "--nnodes": "0.9.0",
    "--allow-terminate-by-client": "0.9.0",
    "--dist-init-addr": "0.12.0",
    "--disable-metrics": "0.12.0",
    "--trust-remote-code": "0.15.0",
    "--kv-transfer-config": "0.18.0",
}


@pytest.mark.parametrize("version", ALL)
def test_each_release_offers_what_it_offers(version: str) -> None:
    flags = parse_help((HELP / f"{version}.txt").read_text())
    expected = {flag: ALL.index(version) >= ALL.index(since) for flag, since in SINCE.items()}
    assert {flag: flags.offers(flag) for flag in SINCE} == expected
    # The usage names every option once more: nothing of it may be missed.
    usage = (HELP / f"{version}.txt").read_text().split("\n\n")[0]
    assert set(flags.sections) == {*re.findall(r"--[\w-]+", usage), "--help"}


@pytest.mark.parametrize(
    ("version", "choices"),
    [
        ("0.6.0", ()),
        ("0.7.2", ("nccl", "native")),
        ("0.9.0", ("nccl", "native")),
        ("0.10.0", ("nccl", "native", "cuda-ipc")),
        ("0.18.0", ("nccl", "native", "cuda-ipc")),
    ],
)
def test_choices_of_communicator(version: str, choices: tuple[str, ...]) -> None:
    flags = parse_help((HELP / f"{version}.txt").read_text())
    assert flags.choices("--communicator") == choices
    assert flags.choices("--server-port") == ()
    assert set(flags.choices("--backend")) == {"pytorch", "turbomind"}


def test_flags_of_one_engine_are_not_the_others() -> None:
    old = parse_help((HELP / "0.6.0.txt").read_text())
    assert (old.offers("--model-format", "turbomind"), old.offers("--model-format", "pytorch")) == (True, False)
    new = parse_help((HELP / "0.18.0.txt").read_text())
    assert (new.offers("--communicator", "turbomind"), new.offers("--communicator", "pytorch")) == (True, False)
    assert (new.offers("--eager-mode", "turbomind"), new.offers("--eager-mode", "pytorch")) == (False, True)
    assert new.offers("--trust-remote-code", "turbomind")
    assert not new.offers("--no-such", "turbomind")


@pytest.mark.parametrize("columns", ["40", "80", "400"])
def test_any_width_short_names_and_colour(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    parser = argparse.ArgumentParser(prog="lmdeploy")
    parser.add_argument("-c", "--communicator", choices=["nccl", "cuda-ipc"], help="unlike --native this is a flag")
    parser.add_argument("--tp", help="see --dp. " * 20)
    text = parser.format_help().replace("--tp", "\x1b[1;36m--tp\x1b[0m")
    flags = parse_help(text)
    assert set(flags.sections) == {"--help", "--communicator", "--tp"}
    assert flags.choices("--communicator") == ("nccl", "cuda-ipc")
    assert flags.choices("--tp") == ()


def test_a_text_without_options_is_refused() -> None:
    with pytest.raises(ValueError, match="no option"):
        parse_help("Traceback (most recent call last):\nImportError: libcudart.so.12")
