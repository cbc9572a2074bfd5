"""The pool: one server for the tests of a configuration, replaced when it dies, few times; GPUs one at a time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.api_server import stop as stopping
from fixtures.api_server.death import ServerDied
from fixtures.api_server.hang import ServerHung
from fixtures.api_server.pool import NoServer, ServerPool, StopFailed, WrongBackend
from fixtures.api_server.server import Server
from fixtures.interpreter.help_flags import parse_help
from fixtures.interpreter.probe import Lmdeploy
from fixtures.machine.site import CollectiveBackend
from fixtures.machine.visible import choose
from fixtures.matrix import Configuration
from fixtures.processes.proctable import stat_fields
from fixtures.run import Run, ServerSettings
from fixtures.session.server_plugin import ApiServer
from tests.unit.api_server.elsewhere import Elsewhere
from tests.unit.processes.conftest import LONG, member, until

ONE = Configuration("turbomind", None, 1, "fp16", gpus=(0,))
TP2 = Configuration("turbomind", "nccl", 2, "fp16", p2p="p2p_on", gpus=(0, 1))
OTHER = Configuration("turbomind", None, 1, "awq", gpus=(1,))
FLAGS = "  --backend {pytorch,turbomind}\n  --communicator {nccl,cuda-ipc}\n  --model-format {hf,awq}\n"
LMDEPLOY = Lmdeploy("/nowhere/python", "0.18.0", parse_help(FLAGS))
SETTINGS = ServerSettings(start_timeout=LONG, request_timeout=LONG, stop_timeout=LONG, max_restarts=1)


@pytest.fixture
def make_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ServerPool]]:
    """Each call makes the pool of one more worker of the same run."""
    monkeypatch.setattr(stopping, "CHILDREN_DEADLINE", 0.2)
    pools: list[ServerPool] = []

    def make() -> ServerPool:
        number = len(pools)
        site = Elsewhere(tmp_path / "shared")
        run = Run(site, site.machine(), (), LMDEPLOY, SETTINGS, tmp_path, models={"fp16": "/m", "awq": "/m"})
        pools.append(ServerPool(run, tmp_path / str(number), number))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def pool(make_pool: Callable[[], ServerPool]) -> ServerPool:
    return make_pool()


def kill(server: Server) -> None:
    os.kill(server.pid or 0, signal.SIGKILL)
    until(lambda: server.death, "the death is noted")


def test_a_server_is_kept_for_its_configuration(pool: ServerPool) -> None:
    server, client = pool.obtain(ONE)
    assert client.canary().text
    assert pool.obtain(ONE) == (server, client)
    other, _ = pool.obtain(OTHER)
    assert other is not server
    assert not server.process.living()
    assert (pool.histories[ONE.id].starts, pool.histories[OTHER.id].starts) == (1, 1)
    stopped = pool.retire()
    assert stopped
    assert stopped.clean
    assert pool.retire() is None


def test_a_tests_handle_knows_the_models_name(pool: ServerPool) -> None:
    server, client = pool.obtain(ONE)
    handle = ApiServer(pool, server)
    assert handle.model_name == "stub"
    assert client.post("/v1/chat/completions", {"model": handle.model_name, "messages": [{"content": "hi"}]})["model"]


def test_restarts_are_limited_and_their_ends_told(pool: ServerPool) -> None:
    for _ in range(2):
        _, client = pool.obtain(ONE)
        with pytest.raises(ServerDied):
            client.chat("signal 6")
    with pytest.raises(NoServer) as told:
        pool.obtain(ONE)
    first, *losses = str(told.value).splitlines()
    assert first == "turbomind-tp1-fp16 gets no further server: 2 were lost, --max-restarts=1"
    assert [loss.split(":")[0] for loss in losses] == ["  loss 1", "  loss 2"]
    assert all("killed by SIGABRT (Aborted) while serving 1 request" in loss for loss in losses)
    assert pool.obtain(OTHER)[0].usable


def test_only_losses_count_as_restarts(pool: ServerPool) -> None:
    for _ in range(3):
        assert pool.obtain(ONE)[0].usable
        stopped = pool.retire()
        assert stopped
        assert stopped.clean


def test_a_trials_loss_leaves_the_tests_their_restarts(pool: ServerPool) -> None:
    for _ in range(2):
        server, _ = pool.start(ONE, counted=False)
        kill(server)
        pool.retire()
    assert pool.histories[ONE.id].ends == []
    assert pool.obtain(ONE)[0].usable


def test_a_death_between_tests_is_told_once(pool: ServerPool) -> None:
    server, _ = pool.obtain(ONE)
    kill(server)
    with pytest.raises(ServerDied, match="while between requests"):
        pool.obtain(ONE)
    fresh, _ = pool.obtain(ONE)
    assert fresh is not server
    assert fresh.usable


def test_a_death_that_nobody_told_is_told_at_the_end(pool: ServerPool) -> None:
    server, _ = pool.obtain(ONE)
    kill(server)
    with pytest.raises(ServerDied, match="while between requests"):
        pool.retire_checked()
    pool.retire_checked()
    server, client = pool.obtain(ONE)
    with pytest.raises(ServerDied):
        client.chat("signal 9")
    pool.retire_checked()


def test_an_unclean_stop_is_told(pool: ServerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "run", replace(pool.run, settings=replace(SETTINGS, stop_timeout=0.1)))
    server, _ = pool.obtain(ONE)
    pid = server.pid or 0
    os.kill(pid, signal.SIGSTOP)
    # Both pending, SIGTERM would come first: the kernel delivers the lowest number.
    until(lambda: (stat_fields(pid) or "?")[0] == "T", "it is stopped")
    with pytest.raises(StopFailed, match=r"^turbomind-tp1-fp16: .* SIGTERM didn't end it within 0.1 s"):
        pool.retire_checked()


def test_the_wrong_backend(pool: ServerPool) -> None:
    configuration = replace(ONE, backend="pytorch")
    with pytest.raises(WrongBackend, match="runs the turbomind backend, pytorch was asked for: its log says"):
        pool.obtain(configuration)
    with pytest.raises(WrongBackend):
        pool.obtain(configuration)
    assert pool.histories[configuration.id].starts == 1


def test_starts_that_fail_are_limited_too(pool: ServerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    site = pool.run.site
    assert isinstance(site, Elsewhere)
    monkeypatch.setattr(site, "program", lambda port: member("import os; os._exit(1)"))
    with pytest.raises(ServerDied, match="while starting"):
        pool.obtain(ONE)
    monkeypatch.setattr(site, "program", lambda port: member("/nowhere/python", "-m", "x"))
    with pytest.raises(ServerHung, match="was not started"):
        pool.obtain(ONE)
    with pytest.raises(NoServer, match="2 were lost"):
        pool.obtain(ONE)


def test_two_pools_never_share_a_gpu(make_pool: Callable[[], ServerPool]) -> None:
    first, second = make_pool(), make_pool()
    held, _ = first.obtain(ONE)
    obtained = threading.Event()
    problems: list[str] = []

    def obtain() -> None:
        second.obtain(OTHER)  # on another GPU: at once
        second.obtain(replace(OTHER, gpus=(0,)))
        problems.extend(["both have the GPU"] if held.process.living() else [])
        obtained.set()

    thread = threading.Thread(target=obtain)
    thread.start()
    until(lambda: second.histories.get(OTHER.id) and second.histories[OTHER.id].starts == 2, "the second one waits")
    assert not obtained.wait(0.2)
    first.retire()
    assert obtained.wait(LONG)
    thread.join()
    assert problems == []


@pytest.mark.parametrize("gpus", ["0,1", "1,0"])
def test_memory_is_that_of_the_configurations_gpus(
    pool: ServerPool, monkeypatch: pytest.MonkeyPatch, gpus: str
) -> None:
    """In whatever order the run and the configuration name them."""
    monkeypatch.setattr(pool, "run", replace(pool.run, machine=choose(pool.run.machine, gpus)))
    site = pool.run.site
    assert isinstance(site, Elsewhere)
    site.used = {"GPU-0": 100, "GPU-1": 101}
    assert pool.gpu_memory_mib(replace(ONE, tp=2, gpus=(1, 0))) == site.used
    assert pool.gpu_memory_mib(replace(ONE, gpus=(1,))) == {"GPU-1": 101}


def test_a_start_that_fails_early_leaves_the_gpus_to_others(pool: ServerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixtures.machine.leases.LOCK_TIMEOUT", 0.1)
    monkeypatch.setattr(pool.run.site, "start", lambda *members, **more: os.stat("/nowhere"))
    with pytest.raises(FileNotFoundError):
        pool.obtain(ONE)
    monkeypatch.undo()
    pool.run.site.lease(["GPU-0"]).close()


def test_a_released_server_is_left(pool: ServerPool) -> None:
    server, client = pool.obtain(ONE)
    words = pool.release()
    assert words == (
        f"turbomind-tp1-fp16 is kept: {server.url}, log {server.process.log_file}; end it with: kill {server.pid}"
    )
    assert pool.retire() is None
    assert client.canary().text
    server.process.end()


def addresses(pool: ServerPool, configuration: Configuration) -> list[str | None]:
    """Where a configuration's server was told to answer RAS's clients."""
    server, _ = pool.obtain(configuration)
    line = server.command.as_shell()
    assert "NCCL_RAS_ADDR" not in line, "whoever repeats it by hand doesn't need it"
    return [each.environment.get("NCCL_RAS_ADDR") for each in server.command.members]


def test_a_server_has_a_ras_address_of_its_own_where_nccl_may_carry_it(
    pool: ServerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_RAS_ADDR", raising=False)
    [own] = addresses(pool, TP2)
    host, _, port = str(own).rpartition(":")
    assert (host, port.isdigit()) == ("127.0.0.1", True)
    assert pool.last
    assert int(port) != pool.last.port
    for without in (replace(TP2, communicator=None, tp=1, p2p=None), replace(TP2, communicator="cuda-ipc", p2p=None)):
        assert addresses(pool, without) == [None]


def test_a_ras_address_set_outside_stays(pool: ServerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "localhost:28028")
    assert addresses(pool, TP2) == ["localhost:28028"]


def test_where_ras_cant_be_asked_there_is_no_address(pool: ServerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_RAS_ADDR", raising=False)
    monkeypatch.setattr(pool.run.site, "collectives", CollectiveBackend(ras=False))
    assert addresses(pool, TP2) == [None]
