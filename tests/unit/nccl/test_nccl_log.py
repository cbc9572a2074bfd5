"""NCCL's log as its releases write it: lines composed from the format strings of the release beside them."""

import pytest

from fixtures.nccl.nccl_log import Channel, parse

# src/debug.cc: host:pid:tid [CUDA device] NCCL INFO …
PREFIX = "node7:4711:4729 [0] NCCL INFO "

CHANNELS = {
    # 2.18.1: bus ids in hexadecimal, where later releases have NVML indices
    "2.18.1 p2p.cc direct": ("Channel 00/0 : 0[b3000] -> 1[ca000] via P2P/direct pointer", "P2P/direct pointer"),
    "2.18.1 p2p.cc IPC read": ("Channel 00/0 : 0[b3000] -> 1[ca000] via P2P/IPC/read", "P2P/IPC"),
    "2.18.1 shm.cc": ("Channel 01 : 0[b3000] -> 1[ca000] via SHM/direct/direct", "SHM"),
    "2.18.5 p2p.cc IPC": ("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", "P2P/IPC"),
    "2.18.5 p2p.cc CUMEM": ("Channel 03/1 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM"),
    "2.18.5 p2p.cc indirect": ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/3[3]/read", "P2P/indirect"),
    "2.19.3 shm.cc copy engine": ("Channel 00 : 0[0] -> 1[1] via SHM/CE/direct", "SHM"),
    "2.20.5 p2p.cc MNNVL": ("Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL", "P2P/MNNVL"),
    "2.21.5 p2p.cc copy engine": ("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/CE", "P2P/IPC"),
    "2.22.3 net.cc send": ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0", "NET/Socket"),
    "2.23.4 net.cc receive": ("Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/0/Shared", "NET/Socket"),
    "2.24.3 net.cc other proxy": ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/2(5)/GDRDMA", "NET/IB"),
    "2.25.1 net.cc shared": ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/1/GDRDMA/Shared", "NET/IB"),
    "2.26.5 net.cc PCI": ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA(PCI)", "NET/IB"),
    "2.27.7 net.cc plug-in": ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/AWS Libfabric/0/GDRDMA", "NET/AWS Libfabric"),
    "2.28.9 p2p.cc CUMEM": ("Channel 23/0 : 0[0] -> 1[1] via P2P/CUMEM", "P2P/CUMEM"),
    "2.28.9 shm.cc": ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM"),
}


@pytest.mark.parametrize(("line", "kind"), CHANNELS.values(), ids=CHANNELS)
def test_each_release_names_the_transport(line, kind):
    assert parse(f"{PREFIX}{line}\n").channels == (Channel(0, 1, kind),)


def test_a_channel_cut_off_at_the_end_does_not_count():
    """A killed rank's last line: "via P2P" could have become anything."""
    whole = f"{PREFIX}Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct\n"
    for length in range(1, len(whole)):
        assert parse(whole + whole[:length]).channels == (Channel(1, 0, "SHM"),)


def test_ranks_of_one_file_and_other_programs_in_between():
    """One process with a thread per GPU writes one file; something else's words may stand before NCCL's."""
    text = (
        f"Loading weights: 40%{PREFIX}Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer\n"
        "Channel 5 of the radio : 0 -> 1 via ether\n"
        "[2026-01-02 03:04:05] node7:4711:4730 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/direct pointer\r\n"
        f"{PREFIX}Channel 01/0 : 0[0] -> 1[1] via P2P/direct pointer\n"
        f"{PREFIX}Channel 00 : 1[1] -> 2[2] via SHM/direct/direct\n"
    )
    assert parse(text).channels == (
        Channel(0, 1, "P2P/direct pointer"),
        Channel(1, 0, "P2P/direct pointer"),
        Channel(1, 2, "SHM"),
    )


def test_what_is_harmless_is_not_told():
    """Seen in every log of a machine without InfiniBand; 2.18 to 2.28."""
    text = "".join(
        f"{PREFIX}{words}\n"
        for words in (
            "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",  # 2.18
            "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",  # 2.23
            "NET/Plugin: libnccl-net.so: cannot open shared object file: No such file or directory",  # 2.28
            "ENV/Plugin: Could not find: libnccl-env.so",  # 2.28
            "PROFILER/Plugin: Could not find: libnccl-profiler.so",
            "TUNER/Plugin: Could not find: libnccl-tuner.so",
            "Failed to open libibverbs.so[.1]",
            "Channel 00/02 : 0 1",  # the ring, before its transports are chosen
            "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
            "Connected all rings, use ring PXN 0 GDR 1",
            "P2P Chunksize set to 131072",
        )
    )
    assert parse(text) == parse("")


@pytest.mark.parametrize(
    "line",
    [
        "node7:4711:4711 [0] NCCL INFO NCCL version 2.18.5+cuda12.2",  # 2.18: its own file gets it at INFO
        "NCCL version 2.18.5+cuda12.2",  # 2.26 and later: at VERSION, without host
        "NCCL version 2.18.5a3+cuda12.2",  # NCCL_SUFFIX
    ],
)
def test_version(line):
    assert parse(f"{line}\n").version == "2.18.5"


@pytest.mark.parametrize(
    "head",
    [
        "\nnode7:4711:4729 [1] misc/socket.cc:57 NCCL WARN ",  # up to 2.25
        "\n[2026-01-02 03:04:05] node7:4711:4729 [1] misc/socket.cc:71 NCCL WARN ",  # 2.26 and later
    ],
)
def test_the_first_warning_is_the_first(head):
    text = (
        f"{PREFIX}comm 0x5581 rank 0 nRanks 2\n{head}socketProgress: Connection closed by remote peer node7<40123>\n"
        f"{PREFIX}misc/socket.cc:58 -> 6\n{head}Cuda failure 'out of memory'\n{head}Cuda failure 'out of memory'\n"
    )
    assert parse(text).warnings == (
        "socketProgress: Connection closed by remote peer node7<40123>",
        "Cuda failure 'out of memory'",
    )


def test_settings_without_the_full_stop():
    """src/graph/paths.cc ends without, src/misc/param.cc with a full stop."""
    text = (
        f"{PREFIX}NCCL_P2P_LEVEL set by environment to SYS\n{PREFIX}NCCL_P2P_DIRECT_DISABLE set by environment to 1.\n"
    )
    text += f"{PREFIX}NCCL_SOCKET_IFNAME set by environment to lo\n"
    assert parse(text).settings == {
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_P2P_DIRECT_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "lo",
    }


@pytest.mark.parametrize(
    "words",
    [
        "Could not enable P2P between dev 0(=b3000) and dev 1(=ca000)",
        "peer query failed between dev 0(=b3000) and dev 1(=ca000)",
        "P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
        "Legacy IPC not supported",
    ],
)
def test_why_nccl_refuses_p2p(words):
    assert parse(f"{PREFIX}{words}\n{PREFIX}{words}\n").refusals == (words,)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "NVLS comm 0x55d0 headRank 0 nHeads 4 buffSize 1048576 memSize 2097152 nvlsPerRankSize 201326592",
            "NVLS",
        ),  # 2.18
        ("NVLS comm 0x55d0 headRank 0 nHeads 4 nvlsRanks 4 buffSize 1048576 nvlsPerRankSize 100663296", "NVLS"),  # 2.28
        ("CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA", "COLLNET/SHARP"),
    ],
)
def test_through_a_switch(line, kind):
    assert parse(f"{PREFIX}{line}\n").switched == (kind,)
