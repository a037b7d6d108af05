"""Protocols of `tune.run`: the same draws for every arm, what is judged, rows that are not made twice, statistics."""

import sys
from pathlib import Path
from statistics import fmean

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "lab"
sys.path.insert(0, str(SCRIPTS))

import reproduce_characters  # noqa: E402
import reproduce_figure5  # noqa: E402
from judged_arms import Comparison, Protocol, pairs  # noqa: E402
from judged_populations import Results, Scored, Task, best_of, mean_of_members, picked, train  # noqa: E402
from papers import characters  # noqa: E402
from statistics_of_seeds import bootstrap, iqm, paired  # noqa: E402

from pbt_rl.controllers import HyperSpec, StaticController  # noqa: E402

TABLE = {"rate": HyperSpec("rate", 0.5, 0.1, 1.0, "log", tuned=True)}


class Walker:
    """Walks by its rate at every step; the test doubles where it is."""

    def __init__(self, seed, index):
        self.x, self.rates = 0.0, []
        self.seed, self.index = seed, index

    def step(self, hypers):
        self.x += hypers["rate"]
        self.rates.append(hypers["rate"])

    def evaluate(self):
        return self.x

    def state(self):
        return self.x, self.rates

    def load(self, state):
        self.x, self.rates = state


TASK = Task("walk", Walker, TABLE, lambda m: m.x, lambda m: 2 * m.x, steps=12, period=3, factors=(2.0, 0.5))


def test_every_arm_begins_at_the_same_draws_and_a_smaller_population_has_the_first():
    draws = TASK.draws(3, 6)
    assert TASK.draws(3, 4) == draws[:4] != TASK.draws(4, 4)
    kept = train(TASK, 3, StaticController(TABLE), draws)
    assert [member.values for member in kept.members] == draws
    tuned = train(TASK, 3, TASK.pbt(3), draws)
    assert tuned.line[0][0] == 0
    assert tuned.line[0][1] in draws
    assert fmean(m.test for m in tuned.members) > fmean(m.test for m in kept.members)


def test_there_is_no_comparison_at_the_end(monkeypatch):
    made = []

    def make(seed, index):
        made.append(Walker(seed, index))
        return made[-1]

    task = Task("walk", make, TABLE, TASK.validation, TASK.test, steps=12, period=3, factors=(2.0, 0.5))
    population = train(task, 0, task.pbt(0), task.draws(0, 4))
    assert [m.values["rate"] for m in population.members] == [walker.rates[-1] for walker in made]
    assert len({walker.x for walker in made}) == 4  # a copy at the end would be as far as its donor


@pytest.mark.parametrize("seed", range(4))
def test_the_line_is_what_the_picked_members_weights_went_through(seed):
    made = []

    def make(seed, index):
        made.append(Walker(seed, index))
        return made[-1]

    task = Task("walk", make, TABLE, TASK.validation, TASK.test, steps=12, period=3, factors=(2.0, 0.5))
    population = train(task, seed, task.pbt(seed), task.draws(seed, 4))
    walked = made[best_of(population.members)].rates
    at = [max(step for step, _ in population.line if step <= i) for i in range(12)]
    assert walked == [dict(population.line)[step]["rate"] for step in at]


def test_validation_picks_and_the_test_is_the_score():
    members = [Scored(1, 10, {}), Scored(3, 5, {}), Scored(3, 7, {})]
    assert best_of(members) == 1
    assert picked(members) == 5
    assert mean_of_members(members) == pytest.approx(22 / 3)


def test_a_run_whose_rows_are_there_is_not_made_again(tmp_path, capsys):
    results, made = Results(tmp_path / "new" / "x.csv"), []

    def arm(task, seed):
        made.append(seed)
        return train(task, seed, task.pbt(seed), task.draws(seed, 3))

    protocol = Protocol(results, {"walk": TASK}, {"random": arm, "b": arm}, (Comparison("p", "b", "b"),))
    protocol.run(TASK, range(2), ["random"], until=float("inf"))
    protocol.run(TASK, range(3), ["random", "b"], until=float("inf"))
    protocol.run(TASK, range(9), ["b"], until=0.0)
    assert made == [0, 1, 0, 1, 2, 2]
    again = arm(TASK, 1)
    read = results.runs("walk")["b"][1]
    assert [m.test for m in read] == pytest.approx([m.test for m in again.members], abs=1e-4)
    line = results.lines("walk", "b")[1]
    assert [step for step, _ in line] == [step for step, _ in again.line]
    assert line[-1][1]["rate"] == pytest.approx(again.line[-1][1]["rate"], rel=1e-5)
    results.add(TASK, 1, "b", again)
    assert results.runs("walk")["b"][1] == read
    assert results.runs("another") == {}
    capsys.readouterr()
    protocol.table()
    assert "+0.000 [+0.000, +0.000] 0:0 of 3" in capsys.readouterr().out


def test_pairs_are_of_the_seeds_that_both_have_and_of_the_first_members():
    one, two = Scored(1, 1, {}), Scored(2, 2, {})
    runs = {"a": {0: [one], 1: [two], 2: [two]}, "random": {2: [one, two], 1: [one, two], 5: [one]}}
    assert pairs(runs, Comparison("", "", "a"), picked) == ([2, 2], [2, 2])
    assert pairs(runs, Comparison("", "", "a", members=1), picked) == ([2, 2], [1, 1])
    assert pairs(runs, Comparison("", "", "none"), picked) == ([], [])


def test_figure_5_compares_with_random_search_of_the_same_size():
    sizes = {"pbt of 3": 3, "pbt of 12": 12}
    for one in reproduce_figure5.COMPARISONS:
        assert one.arm in reproduce_figure5.ARMS
        assert one.against in reproduce_figure5.ARMS
        assert one.members == (sizes.get(one.arm, 6) if one.against == "random" else None)


def test_the_interquartile_mean_and_the_interval():
    assert iqm([0, 1, 2, 100]) == 1.5
    assert iqm([5, -100, 1, 2, 300, 3]) == pytest.approx((0.5 * 1 + 2 + 3 + 0.5 * 5) / 3)
    low, high = bootstrap([-1.0, 1.0] * 50)
    assert low == pytest.approx(-1.96 / 10, abs=0.03)
    assert high == pytest.approx(1.96 / 10, abs=0.03)
    found = paired([3, 5, 5], [1, 5, 6])
    assert (found.mean, found.wins, found.losses, found.seeds) == (pytest.approx(1 / 3), 1, 1, 3)
    assert found.low == -1
    assert found.high == 2


def test_the_reader_sees_no_later_characters_and_knows_its_bits():
    import torch

    reader = characters.Reader(0, 0)
    drop = characters.Drop({}, reader.draws)
    text = characters.parts()[1][:32].view(1, 32)
    changed = text.clone()
    changed[0, 20:] = 3
    with torch.no_grad():
        one, other = reader.network(text, drop), reader.network(changed, drop)
    assert torch.equal(one[:, :20], other[:, :20])
    assert not torch.allclose(one[:, 20:], other[:, 20:])
    for parameter in reader.network.head.parameters():
        torch.nn.init.zeros_(parameter)
    size = characters.alphabet_size()
    assert reader.bits(characters.parts()[2]) == pytest.approx(
        torch.tensor(float(size)).log2().item(), abs=1e-4
    )


def test_the_reader_learns_and_dropout_is_its_rate():
    import torch

    reader = characters.Reader(0, 0)
    before = reader.evaluate()
    reader.step({"learning_rate": 3e-3, "relu_dropout": 0.1})
    assert reader.evaluate() > before + 0.3
    dropped = characters.Drop({"relu_dropout": 0.25}, reader.draws)("relu_dropout", torch.ones(100, 100))
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert dropped.mean().item() == pytest.approx(1, abs=0.03)


def test_a_falling_rate_ends_near_0(monkeypatch):
    rates = []
    monkeypatch.setattr(characters.Reader, "step", lambda _, hypers: rates.append(hypers["learning_rate"]))
    member = reproduce_characters.Falling(0, 0)
    for _ in range(characters.STEPS):
        member.step({"learning_rate": 6.0})
    assert rates[0] == 6
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(6 / characters.STEPS)


def test_the_best_constant_is_that_of_all_seeds(tmp_path, monkeypatch):
    results = Results(tmp_path / "x.csv")
    monkeypatch.setattr(reproduce_characters, "RESULTS", results)
    monkeypatch.setattr(reproduce_characters, "SEEDS", range(2))
    task = Task("text", Walker, TABLE, TASK.validation, TASK.test, steps=2, period=1, factors=(2.0,))
    results.add(task, 0, "random", train(task, 0, StaticController(TABLE), [{"rate": 0.2}, {"rate": 0.3}]))
    with pytest.raises(SystemExit, match=r"lacks seeds \[1\]"):
        reproduce_characters.best_constant(task)
    results.add(task, 1, "random", train(task, 1, StaticController(TABLE), [{"rate": 0.5}, {"rate": 0.1}]))
    results.add(task, 1, "pbt", train(task, 1, StaticController(TABLE), [{"rate": 0.9}]))
    assert reproduce_characters.best_constant(task) == {"rate": 0.5}


def test_what_pbt_ended_with_needs_the_run_of_pbt(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce_figure5, "RESULTS", Results(tmp_path / "x.csv"))
    for arm in ("final hypers held", "schedule followed"):
        with pytest.raises(SystemExit, match="digits, seed 3: this arm needs the run of pbt"):
            reproduce_figure5.ARMS[arm](reproduce_figure5.TASKS["digits"], 3)
