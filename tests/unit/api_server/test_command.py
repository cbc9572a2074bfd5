"""The command line of each configuration for each release whose help text is here."""

import itertools
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from fixtures.api_server.command import Missing, Ports, ServerCommand, check_extra, command_of
from fixtures.errors import BadInput
from fixtures.interpreter.help_flags import parse_help
from fixtures.interpreter.probe import Lmdeploy
from fixtures.machine.here import Here
from fixtures.machine.machine import Gpu, Machine
from fixtures.matrix import Configuration
from fixtures.run import Run, ServerSettings

HELP = Path(__file__).parents[3] / "fixtures/rehearsal/standin/help"
ALL = sorted((file.stem for file in HELP.glob("*.txt")), key=lambda version: tuple(map(int, version.split("."))))
MACHINE = Machine("t4x4", tuple(Gpu(i, f"GPU-{i}{i}", "Tesla T4", f"0000:{i}", 15360) for i in range(4)), (), ())
OUTER = {"PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
ALWAYS = "serve api_server /m --backend {} --tp {} --server-name 127.0.0.1 --server-port 23333 --session-len 2048 "
ALWAYS += "--cache-max-entry-count 0.2 --log-level WARNING"
HTTP = Ports(23333)
NODES = Ports(23333, [23400], 29999)


class Asked(Run):
    """A run whose known-answer model is nowhere."""

    def model(self, precision: str) -> str:
        return self.models.get(precision) or "/m"


@pytest.fixture(autouse=True)
def outer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that commands start from."""
    monkeypatch.setattr(os, "environ", OUTER)


def lmdeploy(version: str, devices: bool = True) -> Lmdeploy:
    flags = parse_help((HELP / f"{version}.txt").read_text())
    return Lmdeploy("/v/python", version, flags, turbomind_fields=frozenset({"devices"} if devices else ()))


def made(
    configuration: Configuration, version: str | Lmdeploy, ports: Ports = HTTP, ray: str | None = None, **more: object
) -> ServerCommand | Missing:
    """The command of a run on MACHINE; `more`: fields of the run."""
    found = lmdeploy(version) if isinstance(version, str) else version
    asked = {"settings": ServerSettings(), **more}
    run = Asked(site=Here(MACHINE), machine=MACHINE, cells=(), lmdeploy=found, report_folder=Path("/nowhere"), **asked)
    return command_of(run, configuration, ports, ray)


def command(configuration: Configuration, version: str | Lmdeploy, *ports: Ports, **more: object) -> ServerCommand:
    found = made(configuration, version, *ports, **more)
    assert isinstance(found, ServerCommand), found
    return found


def missing(configuration: Configuration, version: str | Lmdeploy) -> str:
    found = made(configuration, version)
    assert isinstance(found, Missing), found
    return found.reason


def rest(configuration: Configuration, version: str, **more: object) -> str:
    """What comes after the words that every release gets."""
    (member,) = command(configuration, version, **more).members
    start = shlex.split(ALWAYS.format(configuration.backend, configuration.tp))
    assert list(member.argv[: 3 + len(start)]) == ["/v/python", "-m", "lmdeploy", *start]
    return " ".join(member.argv[3 + len(start) :])


NCCL = Configuration("turbomind", "nccl", 2, "fp16", "p2p_on", (0, 1))
NCCL_AWQ = Configuration("turbomind", "nccl", 2, "awq", "p2p_off", (0, 1))
IPC = Configuration("turbomind", "cuda-ipc", 2, "fp16", None, (2, 1))
TP1 = Configuration("turbomind", None, 1, "fp16", None, (3,))
TP1_AWQ = Configuration("turbomind", None, 1, "awq", None, (3,))
PYTORCH = Configuration("pytorch", "nccl", 2, "awq", "p2p_on", (0, 1))
SHARED_NCCL = Configuration("turbomind", "nccl", 2, "fp16", None, (1,), shared_gpu=True)
SHARED_IPC = Configuration("turbomind", "cuda-ipc", 2, "awq", None, (1,), shared_gpu=True)
SHARED_PYTORCH = Configuration("pytorch", "nccl", 2, "fp16", None, (1,), shared_gpu=True)


@pytest.mark.parametrize(
    ("configuration", "version", "words"),
    [
        (TP1, "0.5.0", ""),
        (TP1, "0.6.0", "--max-prefill-token-num 128"),
        (TP1, "0.18.0", "--dtype float16 --max-prefill-token-num 128"),
        (TP1_AWQ, "0.5.0", "--model-format awq"),
        (TP1_AWQ, "0.18.0", "--dtype float16 --model-format awq --max-prefill-token-num 128"),
        (NCCL, "0.6.0", "--max-prefill-token-num 128"),
        (NCCL, "0.7.2", "--dtype float16 --communicator nccl --max-prefill-token-num 128"),
        (NCCL, "0.18.0", "--dtype float16 --communicator nccl --max-prefill-token-num 128"),
        (IPC, "0.7.2", "--dtype float16 --communicator native --max-prefill-token-num 128"),
        (IPC, "0.9.0", "--dtype float16 --communicator native --max-prefill-token-num 128"),
        (IPC, "0.10.0", "--dtype float16 --communicator cuda-ipc --max-prefill-token-num 128"),
        (IPC, "0.15.0", "--dtype float16 --communicator cuda-ipc --max-prefill-token-num 128"),
        (PYTORCH, "0.5.0", ""),
        (PYTORCH, "0.6.0", "--max-prefill-token-num 128"),
        (PYTORCH, "0.7.2", "--dtype float16 --max-prefill-token-num 128 --eager-mode"),
        (PYTORCH, "0.12.0", "--dtype float16 --model-format awq --max-prefill-token-num 128 --eager-mode"),
    ],
    ids=lambda value: value.id if isinstance(value, Configuration) else value,
)
def test_a_release_gets_what_it_offers(configuration: Configuration, version: str, words: str) -> None:
    assert rest(configuration, version) == words


@pytest.mark.parametrize(
    ("version", "configuration"),
    list(itertools.product(ALL, [NCCL, NCCL_AWQ, IPC, TP1, TP1_AWQ, PYTORCH, SHARED_NCCL, SHARED_IPC, SHARED_PYTORCH])),
    ids=lambda value: value.id if isinstance(value, Configuration) else value,
)
def test_no_release_gets_a_flag_or_a_choice_it_lacks(version: str, configuration: Configuration) -> None:
    found = made(configuration, version, NODES, architecture="internlm2")
    if isinstance(found, Missing):
        assert "\n" not in found.reason
        assert configuration not in (TP1, TP1_AWQ, NCCL, NCCL_AWQ, PYTORCH)
        return
    flags = lmdeploy(version).flags
    for member in found.members:
        given = list(itertools.dropwhile(lambda word: word != "/m", member.argv))[1:]
        for word, value in itertools.pairwise([*given, "--end"]):
            if word.startswith("--"):
                assert flags.offers(word, configuration.backend), word
                assert not flags.choices(word) or value in flags.choices(word)


@pytest.mark.parametrize(
    ("configuration", "version", "reason"),
    [
        (IPC, "0.6.0", "lmdeploy 0.6.0 has no --communicator, so no cuda-ipc"),
        (SHARED_IPC, "0.6.0", "lmdeploy 0.6.0 has no --communicator, so no cuda-ipc"),
        (SHARED_NCCL, "0.7.2", "lmdeploy 0.7.2 has no --nnodes for TurboMind"),
        (SHARED_NCCL, "0.10.0", "lmdeploy 0.10.0 has no --dist-init-addr for TurboMind"),
        (SHARED_PYTORCH, "0.18.0", "the PyTorch backend can't put two ranks on one GPU"),
    ],
    ids=lambda value: value.id if isinstance(value, Configuration) else value,
)
def test_what_a_release_lacks_is_said_in_words(configuration: Configuration, version: str, reason: str) -> None:
    assert missing(configuration, version).startswith(reason)


def test_the_pytorch_engine_gets_no_communicator_even_where_the_help_has_no_sections() -> None:
    flags = parse_help((HELP / "0.18.0.txt").read_text().replace(" engine arguments:", "-ish arguments:"))
    (member,) = command(PYTORCH, Lmdeploy("/v/python", "0.18.0", flags)).members
    assert "--communicator" not in member.argv
    assert "--eager-mode" in member.argv


@pytest.mark.parametrize(
    ("configuration", "old", "new", "reason"),
    [
        (PYTORCH, "{pytorch,turbomind}", "{turbomind}", "lmdeploy 0.18.0 has no --backend pytorch"),
        (TP1_AWQ, "{hf,awq,", "{hf,", "lmdeploy 0.18.0 has no --model-format awq"),
        (IPC, ",native,cuda-ipc}", ",mpi}", "lmdeploy 0.18.0 has no --communicator cuda-ipc, only nccl, mpi"),
    ],
)
def test_a_choice_that_a_later_release_drops(configuration: Configuration, old: str, new: str, reason: str) -> None:
    flags = parse_help((HELP / "0.18.0.txt").read_text().replace(old, new))
    assert missing(configuration, Lmdeploy("/v/python", "0.18.0", flags)) == reason


def test_engine_without_devices_cant_share_a_gpu() -> None:
    assert "no TurbomindEngineConfig.devices" in missing(SHARED_IPC, lmdeploy("0.7.2", devices=False))


def test_four_cuda_ipc_ranks_dont_share_a_gpu() -> None:
    four = Configuration("turbomind", "cuda-ipc", 4, "fp16", None, (1,), shared_gpu=True)
    assert missing(four, "0.18.0").startswith("4 cuda-ipc ranks on one GPU hang at start")


def test_two_cuda_ipc_ranks_on_one_gpu_start_through_the_launcher() -> None:
    (member,) = command(SHARED_IPC, "0.18.0").members
    assert member.argv[0] == "/v/python"
    assert Path(member.argv[1]).name == "shared_gpu_launcher.py"
    assert Path(member.argv[1]).is_file()
    assert member.argv[2:5] == ("serve", "api_server", "/m")
    assert " ".join(member.argv).endswith("--communicator cuda-ipc --max-prefill-token-num 48")
    assert member.environment["CUDA_VISIBLE_DEVICES"] == "GPU-11"
    assert member.environment["CUDA_MODULE_LOADING"] == "EAGER"
    assert member.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


def test_two_nccl_ranks_on_one_gpu_are_two_nodes() -> None:
    both = command(SHARED_NCCL, "0.18.0", NODES)
    for rank, (member, port) in enumerate(zip(both.members, ["23333", "23400"], strict=True)):
        words = " ".join(member.argv)
        assert f"--server-port {port} " in words
        assert "--tp 2 " in words
        assert words.endswith(f"--nnodes 2 --node-rank {rank} --dist-init-addr 127.0.0.1:29999")
        assert member.environment["NCCL_HOSTID"] == f"n{rank}"
        assert member.environment["LMDEPLOY_DIST_INIT_ADDR"] == "127.0.0.1"
        assert member.environment["LMDEPLOY_DIST_INIT_PORT"] == "29999"
        for name, value in {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}.items():
            assert member.environment[name] == value


def test_two_nodes_without_ports_are_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="1 node ports and a rendezvous port"):
        command(SHARED_NCCL, "0.18.0", Ports(23333, [1]))
    with pytest.raises(ValueError, match="1 node ports and a rendezvous port"):
        command(SHARED_NCCL, "0.18.0", Ports(23333, rendezvous=1))


@pytest.mark.parametrize("own", [{"architecture": "internlm2"}, {"models": {"fp16": "/m"}}])
def test_trust_and_extra_arguments_come_last(own: dict[str, object]) -> None:
    settings = ServerSettings(server_args=("--cache-block-seq-len", "32", "--session-len=99"))
    extra = "--cache-block-seq-len 32 --session-len=99"
    assert rest(TP1, "0.18.0", settings=settings, **own).endswith(f"128 --trust-remote-code {extra}")
    assert rest(TP1, "0.6.0", settings=settings, **own).endswith(f"128 {extra}")
    assert "--trust-remote-code" not in rest(TP1, "0.18.0", settings=settings)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("--tp", "--server-args can't give --tp: it follows from this suite's --tp"),
        ("--server-name=0.0.0.0", "--server-args can't give --server-name: it follows from this suite's --server-host"),
        ("--eager-mode", "--server-args: lmdeploy 0.6.0's api_server has no --eager-mode"),
    ],
)
def test_extra_arguments_that_cant_be_are_refused(word: str, reason: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_extra(["INFO", word], lmdeploy("0.6.0"))
    assert str(refused.value) == reason


def test_ranks_see_the_configurations_gpus_in_its_order() -> None:
    assert command(IPC, "0.18.0").members[0].environment["CUDA_VISIBLE_DEVICES"] == "GPU-22,GPU-11"


def test_shell_text_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that runs the text gives the program the same arguments and variables."""
    outer = {"PATH": "/usr/bin:/bin", "NCCL_P2P_LEVEL": "SYS", "CUDA_VISIBLE_DEVICES": "0,1"}
    monkeypatch.setattr(os, "environ", outer)
    printing = Lmdeploy("/usr/bin/printenv", "0.6.0", lmdeploy("0.6.0").flags)
    repeated = command(NCCL_AWQ, printing, models={"awq": "/models/it's here"}, ray="/tmp/r")
    text = repeated.as_shell()
    assert text.startswith("env -u NCCL_P2P_LEVEL CUDA_VISIBLE_DEVICES=GPU-00,GPU-11 NCCL_P2P_DISABLE=1 /usr/bin/print")
    (member,) = repeated.members
    assert tuple(shlex.split(text)[5:]) == member.argv
    shown = subprocess.run(
        ["sh", "-c", text.partition(" -m ")[0]], env=outer, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"NCCL_P2P_DISABLE=1", "CUDA_VISIBLE_DEVICES=GPU-00,GPU-11"} < set(shown)
    assert not [line for line in shown if "NCCL_P2P_LEVEL" in line]


def test_shell_text_of_two_nodes_starts_both() -> None:
    text = command(SHARED_NCCL, "0.18.0", NODES).as_shell()
    first, second = text.split("\n")
    assert first.endswith("--dist-init-addr 127.0.0.1:29999 &")
    assert "NCCL_HOSTID=n0" in first
    assert "NCCL_HOSTID=n1" in second
    assert not second.endswith("&")


def test_starts_from_this_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TM_COMM_NVLS_ENABLE", "0")
    given = command(TP1, "0.18.0")
    assert given.members[0].environment["TM_COMM_NVLS_ENABLE"] == "0"
    assert "TM_COMM_NVLS_ENABLE" not in given.as_shell()
