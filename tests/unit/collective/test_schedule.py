"""The tournament: complete, side by side, and without a barrier that one hang could hold up."""

import asyncio
import itertools

import pytest

from fixtures.collective.schedule import play, tournament


@pytest.mark.parametrize("players", range(2, 17))
def test_every_pair_meets_once(players):
    """n - 1 rounds of n / 2 pairs (n rounds for an odd n), nobody twice in a round."""
    rounds = tournament(range(players))
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(itertools.combinations(range(players), 2))
    assert len(rounds) == players - 1 + players % 2
    for pairs in rounds:
        assert len({player for pair in pairs for player in pair}) == 2 * len(pairs) == players - players % 2


def test_one_player_meets_nobody():
    assert [pair for pairs in tournament([7]) for pair in pairs] == []


class Hall:
    """Pairs that play until they are let go."""

    def __init__(self):
        self.playing, self.ended = set(), []
        self.gates = {}

    async def test(self, a, b):
        assert not {a, b} & {player for pair in self.playing for player in pair}
        self.playing.add((a, b))
        await self.gates.get((a, b), asyncio.sleep)(0)
        self.playing.remove((a, b))
        self.ended.append((a, b))


def test_a_hung_pair_holds_up_no_other():
    """With one pair of the first round never ending, all pairs without its two players are tested."""

    async def run():
        hall, never = Hall(), asyncio.Event()
        rounds = tournament(range(6))
        hung = rounds[0][0]
        hall.gates[hung] = lambda _: never.wait()
        task = asyncio.create_task(play(rounds, hall.test))
        for _ in range(200):
            await asyncio.sleep(0)
        free = {pair for pair in itertools.combinations(range(6), 2) if not {*pair} & {*hung}}
        ended = set(hall.ended)
        never.set()
        await task
        return free, ended, hall.ended

    free, ended, all_of_them = asyncio.run(run())
    assert free <= ended
    assert sorted(all_of_them) == list(itertools.combinations(range(6), 2))


def test_pairs_of_a_round_play_side_by_side():
    """Three of six players' pairs are under way at once; serially only one."""

    async def most(serial):
        hall, peak = Hall(), 0

        async def test(a, b):
            nonlocal peak
            hall.playing.add((a, b))
            peak = max(peak, len(hall.playing))
            await asyncio.sleep(0.001)
            hall.playing.remove((a, b))

        await play(tournament(range(6)), test, serial=serial)
        return peak

    assert asyncio.run(most(serial=False)) == 3
    assert asyncio.run(most(serial=True)) == 1


def test_an_error_of_one_test_is_raised():
    async def fail(a, b):
        if (a, b) == (0, 1):
            raise RuntimeError("broken harness")

    with pytest.raises(RuntimeError, match="broken harness"):
        asyncio.run(play(tournament(range(4)), fail))
