"""An arm's environment, and the clear line for what contradicts it outside."""

from types import SimpleNamespace

import pytest

from fixtures.collective.worker_environment import worker_environment
from fixtures.nccl.arms import ARMS
from fixtures.nccl.conf import conf_settings, contradictions

OUTER = {
    "PATH": "/usr/bin",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_P2P_LEVEL": "NVL",
    "NCCL_P2P_DIRECT_DISABLE": "1",
    "NCCL_P2P_USE_CUDA_MEMCPY": "1",
    "NCCL_HOSTID": "theirs",
    "NCCL_COMM_ID": "10.0.0.1:4000",
    "NCCL_COMM_BLOCKING": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_DEBUG": "TRACE",
    "NCCL_DEBUG_SUBSYS": "ALL",
}
P2P_OF_ARM = {
    "p2p_on": {},
    "p2p_off": {"NCCL_P2P_DISABLE": "1"},
    "p2p_forced": {"NCCL_P2P_LEVEL": "SYS"},
    "p2p_direct_off": {"NCCL_P2P_DIRECT_DISABLE": "1"},
}


@pytest.mark.parametrize("arm", ARMS)
def test_the_arm_alone_says_what_p2p_does(arm):
    environment = worker_environment(OUTER, arm, gpu_uuids=["GPU-a", "GPU-b"])
    assert {name: value for name, value in environment.items() if "P2P" in name and name.startswith("NCCL_P2P")} == (
        P2P_OF_ARM[arm]
    )
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert (environment["NCCL_NVLS_ENABLE"], environment["NCCL_SOCKET_IFNAME"]) == ("0", "eth0")
    assert not {"NCCL_HOSTID", "NCCL_COMM_ID", "NCCL_RAS_ADDR"} & set(environment)


@pytest.mark.parametrize("outer", [OUTER, {}])
def test_ncclcomminitrank_returns_when_it_is_done(outer):
    """Also where a conf file of NCCL's says otherwise: the environment wins over it."""
    assert worker_environment(outer, "p2p_on", gpu_uuids=["GPU-a"])["NCCL_COMM_BLOCKING"] == "1"


def test_the_log_is_on():
    environment = worker_environment(OUTER, "p2p_on", gpu_uuids=["GPU-a"])
    assert environment["NCCL_DEBUG"] == "INFO"
    assert {"INIT", "ENV", "P2P", "SHM", "NET"} <= set(environment["NCCL_DEBUG_SUBSYS"].split(","))


def test_a_rank_that_shares_its_gpu_is_a_node_of_its_own():
    environment = worker_environment(OUTER, "p2p_on", gpu_uuids=["GPU-a"], ras_port=28030, host_id="rank1")
    assert environment["NCCL_HOSTID"] == "rank1"
    assert environment["NCCL_SOCKET_IFNAME"] == "lo"
    assert environment["NCCL_IB_DISABLE"] == "1"
    assert environment["NCCL_RAS_ADDR"] == "127.0.0.1:28030"


@pytest.fixture
def told(tmp_path):
    """contradictions() on a machine whose conf files are given: home's, /etc's, and NCCL_CONF_FILE's."""
    (tmp_path / "home").mkdir()
    (tmp_path / "etc").mkdir()

    def tell(outer, arms, home=None, etc=None, conf=None):
        outer = dict(outer)
        for text, name in ((home, "home/.nccl.conf"), (etc, "etc/nccl.conf"), (conf, "nccl.mine")):
            if text is not None:
                (tmp_path / name).write_text(text)
        if conf is not None:
            outer["NCCL_CONF_FILE"] = str(tmp_path / "nccl.mine")
        lines = contradictions(outer, arms, home=tmp_path / "home", etc=tmp_path / "etc")
        return [line.replace(f"{tmp_path}/", "~/") for line in lines]

    return tell


def test_the_line_names_variable_place_arm_and_remedy(told):
    assert told({"NCCL_P2P_DISABLE": "1"}, ["p2p_off", "p2p_on"]) == [
        "NCCL_P2P_DISABLE=1 in the environment contradicts the arm p2p_on: unset it, or narrow with --p2p=p2p_off"
    ]
    assert told({"NCCL_P2P_DISABLE": "1"}, ["p2p_on", "p2p_forced"]) == [
        "NCCL_P2P_DISABLE=1 in the environment contradicts the arms p2p_on and p2p_forced: unset it, "
        "or narrow with --p2p=p2p_off"
    ]
    assert told({}, ["p2p_on"], etc="NCCL_P2P_LEVEL=PHB\n") == [
        "NCCL_P2P_LEVEL=PHB in ~/etc/nccl.conf contradicts the arm p2p_on: take it out, or narrow with --p2p=p2p_off"
    ]


@pytest.mark.parametrize(
    ("name", "value", "arms"),
    [
        ("NCCL_P2P_DISABLE", "1", {"p2p_on", "p2p_forced", "p2p_direct_off"}),
        ("NCCL_P2P_DISABLE", "0x1", {"p2p_on", "p2p_forced", "p2p_direct_off"}),
        ("NCCL_P2P_DISABLE", "0", set()),
        ("NCCL_P2P_DISABLE", "-1", set()),
        ("NCCL_P2P_DISABLE", "yes", set()),
        ("NCCL_P2P_DISABLE", "", set()),
        ("NCCL_P2P_LEVEL", "", set()),
        ("NCCL_P2P_READ_ENABLE", "", set()),
        ("NCCL_P2P_DISABLE", "+1", {"p2p_on", "p2p_forced", "p2p_direct_off"}),
        ("NCCL_P2P_LEVEL", "PXB", {"p2p_on", "p2p_forced", "p2p_direct_off"}),
        ("NCCL_P2P_LEVEL", "SYS", {"p2p_on", "p2p_direct_off"}),
        ("NCCL_P2P_DIRECT_DISABLE", "1", {"p2p_on", "p2p_forced"}),
        ("NCCL_P2P_DIRECT_DISABLE", "0", set()),
        ("NCCL_P2P_USE_CUDA_MEMCPY", "1", {"p2p_on", "p2p_forced", "p2p_direct_off"}),
        ("NCCL_P2P_READ_ENABLE", "0", {"p2p_on", "p2p_forced", "p2p_direct_off"}),
        ("NCCL_IGNORE_DISABLED_P2P", "1", {"p2p_on", "p2p_forced", "p2p_direct_off"}),
        ("NCCL_SHM_DISABLE", "1", set()),
    ],
)
def test_which_arms_a_variable_contradicts(told, name, value, arms):
    assert {arm for arm in ARMS if told({name: value}, [arm])} == arms


def test_the_remedy_names_arms_that_can_be_asked_for(told):
    """--p2p doesn't know p2p_direct_off: it comes with p2p_on."""
    (line,) = told({"NCCL_P2P_DIRECT_DISABLE": "1"}, ARMS)
    assert line.endswith("--p2p=p2p_off")


def test_one_line_for_each_variable(told):
    assert len(told({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}, ["p2p_on"])) == 2


def test_a_file_is_told_beside_the_environment(told):
    """The suite's processes don't get the environment's, so the file's is in force."""
    lines = told({"NCCL_P2P_DISABLE": "1"}, ["p2p_on"], home="NCCL_P2P_DISABLE=1\n")
    assert [line.split(" contradicts")[0] for line in lines] == [
        "NCCL_P2P_DISABLE=1 in the environment",
        "NCCL_P2P_DISABLE=1 in ~/home/.nccl.conf",
    ]


def test_the_file_read_first_wins(told):
    assert told({}, ["p2p_on"], home="NCCL_P2P_DISABLE=0\n", etc="NCCL_P2P_DISABLE=1\n") == []
    assert told({}, ["p2p_on"], home="NCCL_P2P_DISABLE=\n", etc="NCCL_P2P_DISABLE=1\n") == []
    (line,) = told({}, ["p2p_on"], home="NCCL_P2P_DISABLE=1\n", etc="NCCL_P2P_DISABLE=0\n")
    assert "~/home/.nccl.conf" in line


def test_nccl_conf_file_stands_for_the_homes(told):
    (line,) = told({}, ["p2p_on"], home="NCCL_P2P_LEVEL=PIX\n", conf="NCCL_P2P_DISABLE=1\n")
    assert line.startswith("NCCL_P2P_DISABLE=1 in ~/nccl.mine ")


def test_an_arms_own_variable_wins_over_a_file(told):
    assert told({}, ["p2p_forced"], etc="NCCL_P2P_LEVEL=PXB\n") == []
    assert told({}, ["p2p_off"], etc="NCCL_P2P_DISABLE=0\nNCCL_P2P_LEVEL=SYS\n") == []
    assert told({}, ["p2p_forced"], etc="NCCL_P2P_DISABLE=1\n") != []


def test_the_home_is_the_user_databases(tmp_path, monkeypatch):
    (tmp_path / ".nccl.conf").write_text("NCCL_P2P_DISABLE=1\n")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_dir=str(tmp_path)))
    assert len(contradictions({"HOME": "/nowhere"}, ["p2p_on"], etc=tmp_path)) == 1


def test_a_user_without_a_name_has_no_home(tmp_path, monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert contradictions({"HOME": str(tmp_path)}, ["p2p_on"], etc=tmp_path) == []


def test_a_conf_file_as_nccl_reads_it(tmp_path):
    """src/misc/param.cc: no stripping, so a space or a quotation mark becomes part of name or value."""
    path = tmp_path / "nccl.conf"
    path.write_bytes(
        b"#NCCL_P2P_DISABLE=1\nNCCL_P2P_LEVEL=PHB\nNCCL_P2P_LEVEL=SYS\nnothing\n NCCL_A=1\nNCCL_B=x=y\r\nNCCL_\xff=1"
    )
    assert conf_settings(path) == {
        "NCCL_P2P_LEVEL": "PHB",
        " NCCL_A": "1",
        "NCCL_B": "x=y\r",
        "NCCL_\N{REPLACEMENT CHARACTER}": "1",
    }
    assert conf_settings(tmp_path) == {}
