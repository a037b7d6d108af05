"""Episodes of rows on a device as rounds: against a slow loop, and without bias to short ones."""

import numpy as np
import pytest
import torch

from pbt_rl.learner.simulators.rounds import Rounds


class SlowRounds:
    """One group of rows, as the docstring says it."""

    def __init__(self, rows):
        self.open = [{"counts": True, "sum": 0.0, "length": 0} for _ in range(rows)]
        self.done, self.rounds = {}, []

    def begin(self):
        self.done = {}
        for episode in self.open:
            episode["counts"] = episode["length"] == 0

    def step(self, rewards, ended):
        for row, episode in enumerate(self.open):
            episode["sum"] += rewards[row]
            episode["length"] += 1
        finished = [row for row in range(len(self.open)) if ended[row]]
        for row in finished:
            if self.open[row]["counts"] and row not in self.done:
                self.done[row] = self.open[row]
            self.open[row] = {"counts": True, "sum": 0.0, "length": 0}
        if len(self.done) == len(self.open):
            values = self.done.values()
            self.rounds.append((np.mean([e["sum"] for e in values]), np.mean([e["length"] for e in values])))
            self.begin()


def test_first_episodes_that_were_cut_short_are_in_no_round():
    rounds = Rounds(1, 2, 1, [], torch.device("cpu"), begun=False)
    lengths = [[2, 5, 5], [3, 5, 5]]
    ends = [set(np.cumsum(of_row)) for of_row in lengths]
    for t in range(1, 14):
        ended = torch.tensor([t in of_row for of_row in ends])
        rounds.step(torch.ones(2), torch.ones(2), ended)
    counted_NPG, means_CNPG = rounds.means(rounds.totals.numpy())
    assert counted_NPG.sum() == 1
    assert means_CNPG[:, 0, 0, 0].tolist() == [5.0] * 3


@pytest.mark.parametrize(("seed", "every"), [(0, 1), (1, 1), (2, 14), (3, 14)])
def test_rounds_are_those_of_a_slow_loop(seed, every):
    rng, policies, rows, groups = np.random.default_rng(seed), 2, 6, 2
    rounds = Rounds(policies, rows, groups, ["depth"], torch.device("cpu"))
    slow = [[SlowRounds(rows // groups) for _ in range(groups)] for _ in range(policies)]
    found, more = [[[] for _ in range(groups)] for _ in range(policies)], False
    for t in range(392):
        reward = rng.normal(size=policies * rows).astype(np.float32)
        ended = rng.random(policies * rows) < 0.2
        if t % 70 == 0 and t:
            rounds.open_rounds(1)
            for one in slow[1]:
                one.begin()
        stats = {"depth": torch.arange(policies * rows, dtype=torch.float32)}
        rounds.step(torch.from_numpy(reward), torch.from_numpy(2 * reward), torch.from_numpy(ended), stats)
        for p in range(policies):
            for g in range(groups):
                mine = slice((p * groups + g) * 3, (p * groups + g + 1) * 3)
                slow[p][g].step(reward[mine].astype(float), ended[mine])
        if t % every != every - 1:
            continue
        counted_NPG, means_CNPG = rounds.means(rounds.totals.numpy().copy())
        rounds.clear()
        assert counted_NPG.max() <= 1, "told apart"
        more |= (counted_NPG.sum(0) > 1).any()
        for n, p, g in zip(*np.nonzero(counted_NPG), strict=True):
            objective, shaped, length, depth = means_CNPG[:, n, p, g]
            assert shaped == pytest.approx(2 * objective, abs=1e-5)
            assert depth == pytest.approx((p * groups + g) * 3 + 1)
            found[p][g].append((objective, length))
    assert more == (every > 1)
    for p in range(policies):
        for g in range(groups):
            assert len(found[p][g]) > 5
            assert np.allclose(found[p][g], slow[p][g].rounds, atol=1e-4)


def test_short_failures_count_no_more_than_long_successes():
    """Half of all episodes are failures of 1 step, half successes of 20: the truth is 0.5, a mean of ends 0.05."""
    rows, rng = 2000, np.random.default_rng(0)
    rounds = Rounds(1, rows, 10, [], torch.device("cpu"))
    ends, objectives = [], []
    length = np.where(rng.random(rows) < 0.5, 1, 20)
    age = np.zeros(rows, int)
    for t in range(90):
        age += 1
        ended = age == length
        objective = (ended & (length == 20)).astype(np.float32)
        if t < 19:
            ends += objective[ended].tolist()
        rounds.step(torch.from_numpy(objective), torch.from_numpy(objective), torch.from_numpy(ended))
        counted, means = rounds.means(rounds.totals.numpy().copy())
        rounds.clear()
        objectives += means[0][counted > 0].tolist()
        length = np.where(ended, np.where(rng.random(rows) < 0.5, 1, 20), length)
        age[ended] = 0
    assert np.mean(ends) == 0, "what has ended so far are failures"
    assert len(objectives) >= 30
    assert np.mean(objectives) == pytest.approx(0.5, abs=0.02)


def test_nothing_counts_that_ran_when_a_round_opened():
    rounds = Rounds(2, 2, 1, [], torch.device("cpu"))
    one, never = torch.ones(4), torch.zeros(4, dtype=torch.bool)
    rounds.step(one, one, never)
    rounds.open_rounds(1)
    rounds.step(one, one, ~never)
    assert rounds.totals[0].sum(0).tolist() == [[1], [0]]
    assert rounds.totals[1].sum(0).tolist() == [[2], [0]]
    rounds.step(one, one, ~never)
    assert rounds.totals[0].sum(0).tolist() == [[2], [1]]


def test_what_comes_between_two_reads_is_told_apart_as_far_as_memory_goes():
    rounds = Rounds(1, 2, 1, [], torch.device("cpu"))
    ended = torch.ones(2, dtype=torch.bool)
    for reward in range(5):
        rounds.step(torch.full((2,), float(reward)), torch.zeros(2), ended)
    counted, means = rounds.means(rounds.totals.numpy())
    assert counted[:, 0, 0].tolist() == [1, 1, 3]
    assert means[0, :, 0, 0].tolist() == [0, 1, 3]
