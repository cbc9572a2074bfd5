"""The page of the fabric, in the terminal and in summary.md: within the width, nothing lost, nothing mistaken."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fixtures.report.contents import page_of
from fixtures.report.fabric import LEVELS, STATUSES
from fixtures.report.fabric_tables import gpus_words, speed_words
from fixtures.report.markdown import markdown
from fixtures.report.marks import STATUS_MARKS
from tests.unit.report.conftest import SCHEMA
from tests.unit.report.fabric_records import (
    ARMS,
    OPERATIONS,
    a_finding,
    a_group,
    a_pair,
    a_peer,
    a_report,
    a_test,
    whole_fabric,
)
from tests.unit.report.test_page import printed


def in_markdown(report: dict[str, Any]) -> str:
    """summary.md's text."""
    return markdown(page_of(report))


def after(lines: list[str], start: str, count: int) -> list[list[str]]:
    """The words of so many lines below the first that begins with `start`."""
    place = next(i for i, line in enumerate(lines) if line.strip().startswith(start))
    return [line.split() for line in lines[place + 1 : place + 1 + count]]


@pytest.mark.parametrize(("gpus", "width"), [*itertools.product((2, 4, 8, 16), (80, 120))])
def test_every_pair_of_any_node_fits(gpus, width):
    fabric = whole_fabric(gpus)
    for record in [*fabric["pairs"][1::3], *fabric["groups"][::5], *fabric["peer_access"][::4]]:
        record |= {"status": "inconclusive", "words": "no answer " * 20}
    lines = printed(a_report(gpus, **fabric), width)
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if line != line.rstrip()]
    assert all(line.isascii() for line in lines)
    text = "\n".join(lines)
    told = min(len(fabric["pairs"][1::3]), 40)
    assert text.count("and GPU") == told
    assert ("more, all in report.json" in text) == (gpus >= 16)


@pytest.mark.parametrize("gpus", [2, 8])
def test_full_triangle_with_transport_and_busbw(gpus):
    pairs = [a_pair(a, b) for a, b in itertools.combinations(range(gpus), 2)]
    rows = after(printed(a_report(gpus, pairs=pairs), 120), "p2p_on", gpus)
    assert rows[0] == [f"GPU{b}" for b in range(1, gpus)]
    assert rows[1:] == [[f"GPU{a}", *["ok", "SHM", "1.2"] * (gpus - 1 - a)] for a in range(gpus - 1)]


def test_gpus_in_an_order_of_ones_own():
    """The tables keep the order of the indices, and no pair is missing because it was tested from its other end."""
    order = [6, 4, 3, 7]
    pairs = [a_pair(a, b) for a, b in itertools.combinations(order, 2)]
    peers = [a_peer(a, b) for a, b in itertools.permutations(order, 2)]
    lines = printed(a_report(8, pairs=pairs, peer_access=peers), 120)
    ok = ["ok", "SHM", "1.2"]
    heads, *rows = after(lines, "p2p_on", 4)
    assert (heads, rows) == (["GPU4", "GPU6", "GPU7"], [["GPU3", *ok * 3], ["GPU4", *ok * 2], ["GPU6", *ok]])
    assert after(lines, "a store by", 5)[1:] == [[f"GPU{index}", "ok", "ok", "ok"] for index in sorted(order)]
    assert "not run" not in "\n".join(lines)


def test_small_tables_stand_beside_each_other():
    lines = printed(a_report(2, **whole_fabric(2)))
    assert "\n\n\n" not in "\n".join(lines)
    assert after(lines, "p2p_on", 2) == [["GPU1"] * 3, ["GPU0", "ok", "SHM", "1.2"] * 3]


def test_letters_where_words_do_not_fit():
    pairs = [a_pair(a, b, status="wrong", words="zeros") for a, b in itertools.combinations(range(16), 2)]
    pairs[0]["status"] = "pass"
    lines = printed(a_report(16, pairs=pairs))
    rows = after(lines, "p2p_on", 3)
    assert rows[:2] == [[str(number) for number in range(1, 16)], ["GPU0", ".", *"W" * 14]]
    assert ". = exact   W = data was wrong   busbw of each: summary.md" in lines


def test_words_of_cells_and_only_their_legend():
    pairs = [
        a_pair(0, 1, status="wrong", busbw=None),
        a_pair(0, 2, status="hung", busbw=None),
        a_pair(0, 3, status="crashed", busbw=None, transport=None),
        a_pair(1, 2, status="waived", busbw=None, transport=None),
        a_pair(1, 3, transport="P2P/CUMEM + SHM/direct", busbw=231.4),
    ]
    lines = printed(a_report(4, pairs=pairs), 120)
    assert after(lines, "p2p_on", 3)[1:] == [
        ["GPU0", "WRONG", "SHM", "HUNG", "SHM", "CRASH"],
        ["GPU1", "-", "ok", "P2P+SHM", "231"],
    ]
    text = "\n".join(lines)
    assert all(f"{word} = " in text for word in ("WRONG", "HUNG", "CRASH", "-"))
    assert "UNSURE" not in text
    assert "ok = " not in text
    assert "? = " not in text
    assert "? = not run" in "\n".join(printed(a_report(3, pairs=[a_pair(0, 1), a_pair(1, 2)])))


def test_a_bad_pair_is_told_in_full():
    found = a_pair(0, 2, "p2p_off", "SYS", status="wrong", words="2 of 160 results wrong on GPU2: zeros")
    for text in (
        " ".join(" ".join(printed(a_report(4, pairs=[found]))).split()),
        in_markdown(a_report(4, pairs=[found])),
    ):
        assert (
            "WRONG: GPU0 (00000000:10:00.0) and GPU2 (00000000:12:00.0), link SYS, p2p_off over SHM/direct: "
            "2 of 160 results wrong on GPU2: zeros"
        ) in text.replace("\\", "")


def test_pairs_that_failed_servers_stood_on():
    """Apart from the sweep's own: its table stays as it was; bad ones name the server."""
    under = [f"turbomind-tp2-{precision}-nccl-p2p_on" for precision in ("fp16", "awq")]
    again = [a_pair(1, 2, arm, configuration=name) for name in under for arm in ("p2p_on", "p2p_off")]
    hung = a_pair(1, 2, status="hung", transport=None, busbw=None, words="no progress", configuration="pytorch-tp2")
    report = a_report(4, pairs=[a_pair(0, 1), a_pair(1, 2), *again, hung])
    assert after(printed(report, 120), "p2p_on", 3)[1:] == [
        ["GPU0", "ok", "SHM", "1.2", "?"],
        ["GPU1", "ok", "SHM", "1.2"],
    ]
    for text in (" ".join(" ".join(printed(report)).split()), in_markdown(report).replace("\\", "")):
        assert "p2p_off over" not in text
        assert "p2p_on over SHM/direct: 2 pairs, 1.2 GB/s" in text
        assert f"again under a failed server: p2p_on 1 ok, p2p_off 1 ok: {', '.join(under)}" in text
        assert "again under a failed server: p2p_on 1 HUNG: pytorch-tp2" in text
        assert "link NODE, p2p_on, again under pytorch-tp2: no progress" in text


def test_transports_and_why():
    pairs = [
        a_pair(0, 1, transport="P2P/IPC", busbw=10.0, words="exact"),
        a_pair(0, 2, busbw=1.0, words="exact; NODE is beyond NCCL's default limit"),
        a_pair(1, 2, busbw=3.0, words="exact; NODE is beyond NCCL's default limit"),
    ]
    lines = [line.strip() for line in printed(a_report(3, pairs=pairs), 120)]
    assert "p2p_on over P2P/IPC: 1 pair, 10.0 GB/s: exact" in lines
    over = "2 pairs, 1.0 to 3.0 GB/s, median 2.0: exact; NODE is beyond NCCL's default limit"
    assert f"p2p_on over SHM/direct: {over}" in lines
    alike = [a_pair(0, b, words=f"SHM: no peer access between GPU0 and GPU{b} (CNS)") for b in range(1, 5)]
    lines = [line.strip() for line in printed(a_report(5, pairs=alike), 120)]
    assert "p2p_on over SHM/direct: 4 pairs, 1.2 GB/s: SHM: no peer access (CNS)" in lines
    many = [a_pair(0, b, words=f"reason {b}") for b in range(1, 5)]
    lines = [line.strip() for line in printed(a_report(5, pairs=many[:3]), 120)]
    assert [f"p2p_on over SHM/direct: 1 pair, 1.2 GB/s: reason {b}" in lines for b in (1, 2, 3)] == [True] * 3
    lines = [line.strip() for line in printed(a_report(5, pairs=many), 120)]
    assert "p2p_on over SHM/direct: 4 pairs, 1.2 GB/s" in lines


def test_shared_gpu_is_told_by_rank():
    pairs = [a_pair(0, 0, link="X", ranks=[a, b], transport="NET/Socket") for a, b in ((0, 1), (0, 2), (1, 2))]
    groups = [a_group([0, 0, 0])]
    pairs[1] |= {"status": "hung", "words": "same GPU, over sockets: no progress"}
    lines = printed(a_report(1, pairs=pairs, groups=groups))
    rows = after(lines, "p2p_on", 3)
    assert rows[0] == ["GPU0.1", "GPU0.2"]
    assert rows[1] == ["GPU0.0", "ok", "NET", "1.2", "HUNG", "NET", "1.2"]
    assert any("HUNG: GPU0.0 (00000000:10:00.0) and GPU0.2" in line for line in lines)
    assert "GPUs 0 x3" in [line.strip() for line in lines]


def test_groups_are_lines_under_their_gpus():
    groups = [a_group([0, 1, 2, 3], operation) for operation in OPERATIONS]
    groups += [a_group([0, 1, 2, 3], "broadcast", "thread", "p2p_direct_off", status="crashed", words="SIGSEGV")]
    lines = printed(a_report(4, groups=groups), 120)
    assert after(lines, "GPUs 0-3", 2) == [
        ["process", "p2p_on", *["ok", "SHM", "1.2"] * 6],
        ["thread", "p2p_direct_off", *"???", "CRASH", "SHM", "1.2", *"??"],
    ]
    assert any("CRASH: broadcast on GPUs 0-3, thread per GPU, p2p_direct_off over" in line for line in lines)


def test_an_operation_or_method_that_nobody_knows_yet_has_its_place():
    """In the order of the tests; a long word is halved where columns are narrow, and is whole in summary.md."""
    groups = [a_group([0, 1], name) for name in ("all_to_all", "send_receive_asymmetrically", "broadcast")]
    report = a_report(2, groups=groups, peer_access=[a_peer(method="copy_engine")])
    lines = printed(report)
    place = lines.index("  GPUs 0,1")
    assert [line.split() for line in lines[place - 4 : place]] == [
        ["send"],
        ["all", "receive"],
        ["to", "asymme-", "broad-"],
        ["per", "GPU", "arm", "all", "trically", "cast"],
    ]
    assert "  copy_engine" in lines
    page = in_markdown(report)
    assert "| GPUs | per GPU | arm | all to all | send receive asymmetrically | broadcast |" in page
    assert "| copy\\_engine | GPU0 | GPU1 |" in page


def test_who_writes_into_whose_memory():
    lines = printed(a_report(2, peer_access=[a_peer(0, 1), a_peer(1, 0, status="wrong", words="lost")]))
    assert after(lines, "a store by the GPU", 3) == [["GPU0", "GPU1"], ["GPU0", "ok"], ["GPU1", "WRONG"]]
    rows = [line for line in lines if line.startswith("  GPU")]
    assert rows[0].index("ok") > rows[1].index("WRONG")
    assert any("WRONG: GPU1 (00000000:11:00.0) into the memory of GPU0" in line for line in lines)


def test_findings_above_ok_with_their_remedy():
    more = {"words": "64 MiB", "consequence": "NCCL can't start", "remedy": "--shm-size=1g"}
    findings = [a_finding("acs", "info", words="on"), a_finding("cuda"), a_finding("shm", "failure", **more)]
    lines = printed(a_report(2, preflight=findings))
    place = lines.index("preflight: 1 ok, 1 info, 1 failure")
    assert [line.strip() for line in lines[place + 1 : place + 5]] == [
        "failure: shm: 64 MiB",
        "consequence: NCCL can't start",
        "remedy: --shm-size=1g",
        "info: acs: on",
    ]
    assert "cuda" not in "\n".join(lines)


def test_the_fabrics_tests_are_counted_and_not_listed():
    """Neither a column nor a line each in the configurations' grid; those without a record say why."""
    tests = [a_test("pairs", "all_reduce", f"GPU0-GPU{b}-NODE-{arm}") for b in (1, 2, 3) for arm in ARMS]
    tests[8] |= {"outcome": "skipped", "reason": "no peer access"}
    tests[7] |= {"outcome": "skipped", "reason": "not run: interrupted", "phase": None}
    tests[6] |= {"outcome": "failed", "reason": "during set-up: no torch", "phase": "set-up"}
    tests += [{**a_test("requests", "agree", "x"), "nodeid": "tests/multigpu/test_requests.py::test_agree"}]
    report = a_report(4, tests=tests, pairs=[a_pair(0, 3, status="waived", words="no peer access")])
    lines = printed(report)
    assert lines[lines.index("not of one configuration:") + 1 :][:2] == ["  agree: ok", ""]
    assert "pairs: all_reduce 6 ok, 1 ERR, 1 skip, 1 not run" in lines
    assert "  1 x during set-up: no torch" in lines
    assert "  1 x not run: interrupted" in lines
    assert not [line for line in lines if line.startswith("  1 x no peer access")]
    assert "  waived: 1 x no peer access" in lines


def test_nothing_is_said_of_what_was_not_run():
    tests = [a_test("requests", "agree", "x")]
    for words in ("pairs", "groups", "peer access", "preflight", "busbw"):
        assert words not in "\n".join(printed(a_report(2, tests=tests))).lower()
        assert words not in in_markdown(a_report(2, tests=tests)).lower()
    only_skipped = a_test("pairs", "all_reduce", "no_pair", "skipped", reason="pairs and groups need 2 GPUs")
    lines = printed(a_report(1, tests=[only_skipped]))
    place = lines.index("pairs: all_reduce 1 skip")
    assert lines[place + 1] == "  1 x pairs and groups need 2 GPUs"
    assert not [line for line in lines if line.startswith("groups")]


def test_run_of_the_fabric_alone_has_no_grid_of_configurations():
    entry = {"id": "turbomind-tp1-fp16", "outcome": "skipped", "reason": "not run: no test was selected"}
    report = a_report(2, **whole_fabric(2), configurations=[{**entry, "ready_s": None, "starts": 0}])
    for text in ("\n".join(printed(report)), in_markdown(report)):
        assert "turbomind" not in text
        assert "p2p" in text


def test_a_sweep_after_a_failure_shows_without_tests_of_the_fabric():
    lines = printed(a_report(2, pairs=[a_pair()]))
    assert "pairs: tested again after a failure" in lines


def test_markdown_has_the_same_cells_as_tables():
    page = in_markdown(a_report(4, **whole_fabric(4))).replace("\\", "")
    assert page.count("| GPU0 | ok SHM 1.2 | ok SHM 1.2 | ok SHM 1.2 |") == 3
    assert page.count("| GPU3 | ok | ok | ok |  |") == 2
    assert "| 0-3 | thread | p2p_direct_off | ok SHM 1.2 |" in page
    tables = [block.splitlines() for block in page.split("\n\n") if block.startswith("| ")]
    assert len(tables) == 3 + 1 + 2
    assert all(len({line.count("|") for line in table}) == 1 for table in tables)


def test_words_of_a_log_do_not_act_as_markup():
    page = in_markdown(a_report(2, pairs=[a_pair(status="crashed", words="<b>|@someone")]))
    assert "\\<b\\>\\|@\u200bsomeone" in page


def test_a_legend_in_markdown_is_no_list():
    page = in_markdown(a_report(2, pairs=[a_pair(status="waived")]))
    assert "\n\n`-` = waived: can't be made here\n" in page


def test_statuses_and_levels_are_those_of_the_schema():
    """And each status has a mark."""
    assert set(SCHEMA["$defs"]["status"]["enum"]) == set(STATUSES) == STATUS_MARKS.keys()
    assert set(SCHEMA["$defs"]["preflight"]["properties"]["level"]["enum"]) == set(LEVELS)


@pytest.mark.parametrize(
    ("gpus", "words"), [([0, 1], "0,1"), ([0, 1, 2], "0-2"), ([3, 0, 1, 2, 7], "3,0-2,7"), ([0], "0"), ([2, 2], "2 x2")]
)
def test_gpus_in_few_words(gpus, words):
    assert gpus_words(gpus) == words


def test_speeds_in_few_digits():
    assert [speed_words(busbw) for busbw in (231.4, 99.96, 12.34, 1.0, 0.0512, 0)] == [
        "231", "100", "12.3", "1.0", "0.05", "0",
    ]  # fmt: skip
