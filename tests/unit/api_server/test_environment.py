"""What a server's environment takes over, loses and gains."""

import pytest

from fixtures.api_server.environment import server_environment
from fixtures.nccl.environment import P2P_VARIABLES
from fixtures.processes.environment import difference

OUTER = {
    "PATH": "/usr/bin",
    "HOME": "/home/u",
    "CUDA_VISIBLE_DEVICES": "3,2",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_P2P_DIRECT_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "TM_COMM_NVLS_ENABLE": "0",
    "NCCL_DEBUG": "INFO",
    "RAY_ADDRESS": "10.0.0.1:6379",
    "MASTER_PORT": "29500",
    "LMDEPLOY_DIST_INIT_ADDR": "10.0.0.1",
    "TM_LOG_LEVEL": "INFO",
}


@pytest.mark.parametrize(("p2p", "expected"), [("p2p_on", {}), ("p2p_off", {"NCCL_P2P_DISABLE": "1"}), (None, {})])
def test_the_configuration_alone_decides_p2p(p2p: str | None, expected: dict[str, str]) -> None:
    environment = server_environment(OUTER, gpu_uuids=["GPU-a"], p2p=p2p)
    assert {name: value for name, value in environment.items() if name in P2P_VARIABLES} == expected


def test_what_passes_and_what_doesnt() -> None:
    before = dict(OUTER)
    environment = server_environment(OUTER, gpu_uuids=["GPU-b", "GPU-a"], p2p=None, ray_folder="/tmp/r")
    assert environment == {
        "PATH": "/usr/bin",
        "HOME": "/home/u",
        "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a",
        "NCCL_NVLS_ENABLE": "0",
        "TM_COMM_NVLS_ENABLE": "0",
        "NCCL_DEBUG": "INFO",
        "TM_LOG_LEVEL": "INFO",
        "PYTHONUNBUFFERED": "1",
        "RAY_TMPDIR": "/tmp/r",
        "NO_PROXY": "127.0.0.1,localhost,::1",
        "no_proxy": "127.0.0.1,localhost,::1",
    }
    assert before == OUTER


def test_no_gpu_is_seen_rather_than_all() -> None:
    assert server_environment(OUTER, gpu_uuids=[], p2p=None)["CUDA_VISIBLE_DEVICES"] == ""


def test_own_hosts_join_the_outer_no_proxy() -> None:
    environment = server_environment({"NO_PROXY": "corp,localhost"}, gpu_uuids=[], p2p=None, host="10.1.2.3")
    assert environment["NO_PROXY"] == environment["no_proxy"] == "corp,localhost,127.0.0.1,::1,10.1.2.3"


def test_extra_comes_last() -> None:
    environment = server_environment(OUTER, gpu_uuids=[], p2p=None, extra={"LMDEPLOY_DIST_INIT_ADDR": "127.0.0.1"})
    assert environment["LMDEPLOY_DIST_INIT_ADDR"] == "127.0.0.1"


def test_difference_is_what_a_person_has_to_type() -> None:
    environment = server_environment(OUTER, gpu_uuids=["GPU-a"], p2p="p2p_off", ray_folder="/tmp/r")
    unset, changed = difference(environment, OUTER)
    assert unset == [
        "LMDEPLOY_DIST_INIT_ADDR",
        "MASTER_PORT",
        "NCCL_P2P_DIRECT_DISABLE",
        "NCCL_P2P_LEVEL",
        "RAY_ADDRESS",
    ]
    assert changed == {"CUDA_VISIBLE_DEVICES": "GPU-a"}
