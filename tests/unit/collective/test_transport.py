"""What a log proves of an arm, and the reason that is told where NCCL doesn't use P2P."""

import pytest

from fixtures.collective.seats import seats_of
from fixtures.collective.transport import (
    Transport,
    default_limit,
    judge_transport,
    transport_of,
)
from fixtures.machine.machine import Gpu, Machine
from fixtures.machine.site import Cpu

INTEL, AMD = "GenuineIntel", "AuthenticAMD"


def machine(link="NODE", peer=True, word="OK", gpus=4):
    """Rehearsed, so its CPUs are Intel's; GPU0 and GPU3 have this link, the others are one switch away."""

    def square(near, far, self):
        odd = ((0, gpus - 1), (gpus - 1, 0))
        return tuple(
            tuple(self if i == j else far if (i, j) in odd else near for j in range(gpus)) for i in range(gpus)
        )

    return Machine(
        "node",
        tuple(Gpu(i, f"GPU-{i}", "T4", f"00000000:0{i}:00.0", 15360) for i in range(gpus)),
        square("PIX", link, "X"),
        square(True, peer, True),
        peer_words=square("OK", word, "X"),
    )


def log(*channels):
    """Lines as 2.28.9 writes them, of (sender, receiver, how)."""
    return "".join(f"h:1:1 [0] NCCL INFO Channel 00/0 : {a}[{a}] -> {b}[{b}] via {how}\n" for a, b, how in channels)


SHM = transport_of([log((0, 1, "SHM/direct/direct")), log((1, 0, "SHM/direct/direct"))])
P2P = transport_of([log((0, 1, "P2P/CUMEM")), log((1, 0, "P2P/CUMEM"))])


def far_pair(node):
    """The seats of GPU0 and GPU3."""
    seats = seats_of(node)
    return seats[0], seats[-1]


def judged(arm, transport, node, seats=None, nccl=None):
    return judge_transport(arm, transport, node, Cpu(INTEL, "x86_64"), seats or far_pair(node), nccl)


def test_one_word_and_used_p2p():
    assert (P2P.word, P2P.used_p2p, P2P.only_p2p) == ("P2P/CUMEM", True, True)
    assert (SHM.word, SHM.used_p2p, SHM.only_p2p) == ("SHM", False, False)
    mixed = transport_of([log((0, 1, "P2P/IPC"), (1, 0, "SHM/direct/direct"))])
    assert (mixed.word, mixed.used_p2p, mixed.only_p2p) == ("P2P/IPC + SHM", True, False)
    assert (Transport().word, Transport().used_p2p, Transport().only_p2p) == (None, None, False)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (machine(), "NODE is beyond NCCL's default limit PXB"),
        (machine("SYS"), "SYS is beyond NCCL's default limit PXB"),
        (machine("PIX", False, "CNS"), "no peer access between GPU0 and GPU3 (chipset not supported)"),
        (machine("SYS", False, "TNS"), "no peer access between GPU0 and GPU3 (topology not supported)"),
    ],
)
def test_on_that_really_used_shm_says_why(node, words):
    found = judged("p2p_on", SHM, node)
    assert (found.problem, found.words) == (None, f"NCCL chose SHM: {words}")


def test_near_and_granted_but_refused_says_it_in_nccls_words():
    refused = log((0, 1, "SHM/direct/direct")) + "h:1:1 [0] NCCL INFO Legacy IPC not supported\n"
    assert judged("p2p_on", transport_of([refused]), machine("PIX")).words == "NCCL chose SHM: Legacy IPC not supported"
    assert judged("p2p_on", SHM, machine("NV4")).words == "NCCL chose SHM"


def test_forced_that_still_used_shm_is_an_arm_that_cant_be_made():
    found = judged("p2p_forced", SHM, machine())
    assert found.problem is None
    assert found.refused == "NCCL chose SHM: though P2P was forced and peer access is granted"
    no_peer = judged("p2p_forced", SHM, machine("NODE", False, "CNS"))
    assert no_peer.refused == "NCCL chose SHM: no peer access between GPU0 and GPU3 (chipset not supported)"


@pytest.mark.parametrize("arm", ["p2p_on", "p2p_forced", "p2p_direct_off"])
def test_p2p_where_it_is_asked_for(arm):
    assert judged(arm, P2P, machine()).words == "over P2P/CUMEM"
    assert judged(arm, P2P, machine()).problem is None


def test_an_off_arm_that_used_p2p_is_no_control():
    assert "no control" in judged("p2p_off", P2P, machine()).problem
    partly = transport_of([log((0, 1, "SHM/direct/direct"), (1, 0, "P2P/IPC"))])
    assert "P2P/IPC + SHM" in judged("p2p_off", partly, machine()).problem
    assert judged("p2p_off", SHM, machine()).problem is None


def test_multicast_in_the_off_arm_is_told():
    """NCCL_P2P_DISABLE takes the paths between GPUs away, not those to the NVSwitch."""
    both = transport_of([log((0, 1, "SHM/direct/direct")) + "h:1:1 [0] NCCL INFO NVLS comm 0x5 headRank 0 nHeads 2\n"])
    found = judged("p2p_off", both, machine("NV18"))
    assert found.problem is None
    assert found.words.startswith("over NVLS + SHM: NCCL_P2P_DISABLE leaves")
    on = transport_of([log((0, 1, "P2P/CUMEM")) + "h:1:1 [0] NCCL INFO NVLS comm 0x5 headRank 0 nHeads 2\n"])
    assert judged("p2p_on", on, machine("NV18")).words == "over NVLS + P2P/CUMEM"


def test_direct_pointers_in_the_arm_without():
    direct = transport_of([log((0, 1, "P2P/direct pointer"))])
    assert "direct pointers" in judged("p2p_direct_off", direct, machine()).problem
    assert judged("p2p_on", direct, machine()).problem is None


def test_a_conf_file_that_took_p2p_away():
    """src/graph/paths.cc says so, wherever the variable came from."""
    text = "h:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\n" + log((0, 1, "SHM/direct/direct"))
    assert "conf files" in judged("p2p_on", transport_of([text]), machine()).problem
    assert judged("p2p_off", transport_of([text]), machine()).problem is None


def test_a_groups_reason_is_that_of_the_pair_concerned():
    """GPU0 and GPU3 have no peer access, but the ring's SHM is elsewhere."""
    node = machine("NODE", False, "CNS")
    ring = transport_of([log((0, 1, "P2P/IPC"), (1, 2, "SHM/direct/direct"), (2, 3, "P2P/IPC"))])
    assert judged("p2p_on", ring, node, seats_of(node)).words == "NCCL chose P2P/IPC + SHM"
    ring = transport_of([log((1, 2, "SHM/direct/direct"), (3, 0, "P2P/IPC"))])
    assert judged("p2p_on", ring, node, seats_of(node)).words == "NCCL chose P2P/IPC + SHM"
    ring = transport_of([log((0, 1, "P2P/IPC"), (3, 0, "SHM/direct/direct"))])
    assert "between GPU0 and GPU3" in judged("p2p_on", ring, node, seats_of(node)).words


def test_ranks_on_one_gpu_have_no_link():
    node = machine()
    sockets = transport_of([log((0, 1, "NET/Socket/0"))])
    found = judged("p2p_on", sockets, node, seats_of(node, shared_ranks=2))
    assert (found.problem, found.words) == (None, "over NET/Socket")


def test_no_log_is_said():
    assert judged("p2p_on", Transport(), machine()).words == "NCCL's log doesn't name the transport"
    assert judged("p2p_off", Transport(), machine()).problem.startswith("NCCL's log doesn't name the transport, so ")


@pytest.mark.parametrize(
    ("nccl", "ranks", "vendor", "architecture", "limit"),
    [
        ("2.18.5", 2, INTEL, "x86_64", "PXB"),
        ("2.18.5", 8, AMD, "x86_64", "SYS"),
        ("2.22.3", 8, AMD, "x86_64", "SYS"),
        ("2.22.3", 8, "Shanghai", "x86_64", "PXB"),
        ("2.22.3", 2, "", "aarch64", "PXB"),
        ("2.22.3", 4, "", "ppc64le", "SYS"),
        ("2.22.3", 4, "HygonGenuine", "x86_64", "SYS"),
        ("2.23.4", 2, AMD, "x86_64", "SYS"),
        ("2.23.4", 3, AMD, "x86_64", "PXB"),
        ("2.28.9", 2, INTEL, "x86_64", "PXB"),
        ("2.28.9", 2, "HygonGenuine", "x86_64", "PXB"),
        ("2.28.9", 4, "", "ppc64le", "PXB"),
        ("2.28.9", 2, AMD, "x86_64", "SYS"),
        (None, 8, AMD, "x86_64", "PXB"),
        ("no version", 8, AMD, "x86_64", "PXB"),
    ],
)
def test_default_limit(nccl, ranks, vendor, architecture, limit):
    assert default_limit(nccl, ranks, Cpu(vendor, architecture)) == limit
