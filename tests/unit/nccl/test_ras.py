"""NCCL's RAS: a real TCP server that says what NCCL would (format strings of src/ras/client_support.cc)."""

import asyncio
import contextlib

from fixtures.nccl.ras import ask_ras, ras_words, summary
from tests.unit.nccl.ras_answers import HEAD, IDLE, KILLED, STOPPED, answer, indented, place


class Served:
    """A server that reads the client's commands, says `pieces`, and closes unless it is to hold the line."""

    def __init__(self, *pieces, hold=False, close_at_once=False):
        self.pieces, self.hold, self.close_at_once = pieces, hold, close_at_once
        self.commands = []
        self._over = asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._over.set()
        self._server.close()

    async def _serve(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            while not self.close_at_once and "verbose status" not in self.commands:
                self.commands.append((await reader.readline()).decode().rstrip("\n"))
            for piece in self.pieces:
                writer.write(piece.encode())
                await writer.drain()
            if self.hold:
                await self._over.wait()
            writer.close()


def ask(served, deadline_s=5.0):
    async def go():
        async with served:
            return await ask_ras(served.port, deadline_s=deadline_s)

    return asyncio.run(go())


def test_the_whole_answer_in_pieces():
    """More than one read can give."""
    text = STOPPED + "x" * 2**20
    assert ask(Served("OK\n", STOPPED, "x" * 2**20)) == text


def test_the_server_is_told_to_be_done_before_the_deadline():
    """It waits up to 5 s longer than told, and 0 would mean for ever."""
    for deadline, told in ((12.0, "timeout 7"), (6.0, "timeout 1"), (1.0, "timeout 1")):
        served = Served(IDLE)
        ask(served, deadline)
        assert served.commands == [told, "verbose status"]


def test_one_that_never_answers():
    assert ask(Served(hold=True), deadline_s=0.05) is None


def test_one_that_hangs_in_the_middle_leaves_what_it_said():
    assert ask(Served("OK\n", HEAD, hold=True), deadline_s=0.5) == HEAD.strip()
    assert summary(HEAD) == ["RAS's answer is cut off: it was still asking other processes"]


def test_one_that_closes_at_once():
    assert ask(Served(close_at_once=True)) is None


def test_nobody_listens():
    async def go():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await ask_ras(port, deadline_s=5)

    assert asyncio.run(go()) is None


def test_a_healthy_job_needs_no_words():
    assert summary(IDLE) == []


def test_the_account_of_a_hang_tells_silence_from_health():
    """And says once what several processes say."""
    assert ras_words([]) == ras_words([None, None]) == ["no answer"]
    assert ras_words([None, IDLE]) == ["no rank is missing, failed or behind"]
    assert ras_words([STOPPED, IDLE, STOPPED]) == summary(STOPPED)


def test_a_stopped_rank_is_named():
    assert summary(STOPPED) == [
        "process 502 on node 127.0.0.1 (GPU 0) gave no data",
        "rank 1 (GPU 0, process 502) is missing",
        "Encountered 1 communication timeout while gathering communicator data",
    ]


def test_a_killed_rank_is_named_and_who_noticed():
    assert summary(KILLED) == [
        "process 502 on node 127.0.0.1 (GPU 0) is considered dead",
        "rank 1 (GPU 0, process 502) is missing",
        "rank 0 (GPU 0, process 501) reported Remote process error",
    ]


def mismatch(*lines, head="#0-0 (00c8f5e1a2b3d4e5) MISMATCH\n"):
    row = "    0         1         1         4         4         4   RUNNING  MISMATCH"
    return answer(row, warnings=head + indented(*lines))


def test_who_is_behind_of_two():
    text = mismatch(
        "Communicator ranks have different AllReduce operation counts",
        f"Rank 1 has launched up to operation 41 -- {place(502, '1 (NVML 3)')}",
        f"Rank 0 has launched up to operation 42 -- {place(501)}",
    )
    assert summary(text) == [
        "rank 1 (GPU 1 (NVML 3), process 502) is behind: AllReduce operation 41, the furthest rank is at 42"
    ]


def test_who_is_behind_of_many_in_two_kinds_of_collective():
    text = (
        mismatch(
            "Communicator ranks have different Broadcast operation counts",
            "3 ranks have launched up to operation 7",
            f"Rank 2 has not launched any operations -- {place(503, '2')}",
        ).rstrip("\n")
        + "\n\n"
        + indented(
            "Communicator ranks have different AllReduce operation counts",
            "5 ranks have launched up to operation 9",
            "2 ranks have launched up to operation 8",
            f"Rank 4 -- {place(505, '4')}",
            "Rank 5 -- [process information not found]",
            "2 ranks have not launched any operations",
        )
    )
    assert summary(text) == [
        "rank 2 (GPU 2, process 503) is behind: Broadcast operation 0, the furthest rank is at 7",
        "rank 4 (GPU 4, process 505) is behind: AllReduce operation 8, the furthest rank is at 9",
        "rank 5 is behind: AllReduce operation 8, the furthest rank is at 9",
        "2 ranks are behind: AllReduce operation 0, the furthest rank is at 9",
    ]


def test_different_status():
    text = mismatch(
        "Communicator ranks have different status",
        "2 ranks have status RUNNING",
        f"Rank 0 -- {place(501)}",
        "Rank 3 -- [process information not found]",
        f"Rank 1 has status ABORT -- {place(502)}",
    )
    assert summary(text) == [
        "2 ranks have status RUNNING",
        "rank 0 (GPU 0, process 501) has status RUNNING",
        "rank 3 has status RUNNING",
        "rank 1 (GPU 0, process 502) has status ABORT",
    ]


def test_several_ranks_with_one_error():
    errors = "#0-0 (00c8f5e1a2b3d4e5) ERROR\n" + indented(
        "Initialization errors on 3 ranks",
        "2 ranks reported Unhandled CUDA error",
        f"Rank 0 -- {place(501)}",
        f"Rank 1 -- {place(502, '1')}",
        "Rank 2 reported System error -- [process information not found]",
    )
    assert summary(answer("", errors)) == [
        "2 ranks reported Unhandled CUDA error",
        "rank 0 (GPU 0, process 501) reported Unhandled CUDA error",
        "rank 1 (GPU 1, process 502) reported Unhandled CUDA error",
        "rank 2 reported System error",
    ]


def test_2_24_and_2_25_list_ranks_in_one_line():
    errors = "#0-0 (00c8f5e1a2b3d4e5) INCOMPLETE\n" + indented(
        "Missing communicator data from 2 ranks", "The missing ranks: 1,3"
    )
    warnings = "#0-0 (00c8f5e1a2b3d4e5) MISMATCH\n" + indented(
        "Communicator ranks have different status",
        "2 ranks have status UNKNOWN",
        "The unknown ranks: 1,3",
        f"Rank 0 has status RUNNING -- {place(501)}",
        "Communicator ranks have different collective operation counts",
        f"Rank 2 has launched up to operation 3 -- {place(503)}",
        f"Rank 0 has launched up to operation 4 -- {place(501)}",
    )
    assert summary(answer("", errors, warnings)) == [
        "rank 1 is missing",
        "rank 3 is missing",
        "2 ranks have status UNKNOWN",
        "rank 1 has status UNKNOWN",
        "rank 3 has status UNKNOWN",
        "rank 0 (GPU 0, process 501) has status RUNNING",
        "rank 2 (GPU 0, process 503) is behind: collective operation 3, the furthest rank is at 4",
    ]


def test_two_communicators_are_told_apart():
    errors = "".join(
        f"#0-{number} (00c8f5e1a2b3d4e{number}) INCOMPLETE\n"
        + indented("Missing communicator data from 1 rank", f"Rank 1 -- {place(502)}")
        for number in (0, 1)
    )
    assert summary(answer("", errors)) == [
        "communicator 0-0: rank 1 (GPU 0, process 502) is missing",
        "communicator 0-1: rank 1 (GPU 0, process 502) is missing",
    ]


def test_what_no_known_release_writes_is_not_swallowed():
    warnings = "TIMEOUT\n" + indented("Encountered 1 communication timeout while gathering communicator data")
    errors = "#0-0 (00c8f5e1a2b3d4e5) ERROR\n" + indented("GPU 0 has left the building")
    assert summary(answer("", errors, warnings)) == [
        "GPU 0 has left the building",
        "Encountered 1 communication timeout while gathering communicator data",
    ]
