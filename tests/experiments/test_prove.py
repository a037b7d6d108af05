"""`pbt-rl prove`: what is typed, which runs follow, and what is said of their scores."""

import json
import math
import random
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pbt_rl.cli.prove import read_protocol, read_words, run, write_protocol
from pbt_rl.config import Config, PbtConfig
from pbt_rl.config.command import parse_train
from pbt_rl.controllers import Gap, PbtController, PerturbFactors, Synchronous, Truncation
from pbt_rl.controllers.decisions import MemberReport, PopulationReport, Replace
from pbt_rl.controllers.events import Comparison
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.errors import ConfigError
from pbt_rl.experiments.prove import arms as weakness
from pbt_rl.experiments.prove.arms import Arm, Task, read_arms
from pbt_rl.experiments.prove.judged import FILE, Judged, frames_of, read_judged
from pbt_rl.experiments.prove.members import prove_members
from pbt_rl.experiments.prove.outcome import (
    compare,
    interval_by_bootstrap,
    interval_by_t,
    iqm,
    outcome,
    seeds_needed,
    t_quantile,
)
from pbt_rl.experiments.prove.outcome_page import differences, headline, page
from pbt_rl.run.train import train
from tests.helpers.runs import start

TINY = ("--env=toy/identity", "--mode=serial", "--no-figures", "--num-policies=3")
TINY += ("--train-for-frames=3000", "--pbt.tune=learning_rate")


def options_of(command):
    words = shlex.join(command).split(" --")
    return {name: rest for name, _, rest in (word.partition(" ") for word in words)}


def test_arms_begin_at_the_same_draws_and_have_the_same_frames():
    task = Task.read(list(TINY))
    assert [arm.name for arm in read_arms(["mf-pbt"], ["defaults"])] == ["pbt", "random", "mf-pbt"]
    arms = {arm.name: arm for arm in read_arms(["mf-pbt", "t-test:'--pbt.exploit' t-test"])}
    assert list(arms) == ["pbt", "random", "defaults", "mf-pbt", "t-test"]
    commands = {name: task.command(arm, 7) for name, arm in arms.items()}
    drawn = {name: options_of(command).get("pbt.start-values") for name, command in commands.items()}
    assert drawn["defaults"] is None
    assert drawn["pbt"] == drawn["random"] == drawn["mf-pbt"] == drawn["t-test"]
    assert len(set(drawn["pbt"].split())) == 3
    assert drawn["pbt"] != options_of(task.command(arms["pbt"], 8))["pbt.start-values"]
    assert options_of(commands["defaults"])["train-for-frames"] == "9000"
    assert options_of(commands["defaults"])["num-policies"] == "1"
    assert options_of(commands["pbt"])["pbt.period-frames"] == "120"  # 25 comparisons
    assert options_of(commands["t-test"])["pbt.exploit"] == "t-test"


def test_one_policy_with_defaults_takes_no_start_values_and_the_first_of_several_sources():
    several = ["--init-from=a", "--init-from=b", "--init-from=c"]
    starts = ["--pbt.start-values", *(f"learning_rate={rate}" for rate in (0.1, 0.2, 0.3))]
    command = Task.read([*TINY, *several, *starts]).command(read_arms([])[2], 0)
    assert parse_train(command[1:]).init_from == ("a",)
    assert parse_train(command[1:]).pbt.start_values == ()


def test_periods_that_are_given_win():
    command = Task.read([*TINY, "--pbt.period-frames", "700"]).command(read_arms([])[0], 0)
    assert options_of(command)["pbt.period-frames"] == "700"
    assert options_of(command)["pbt.start-frames"] == "700"  # a recipe's start may lie behind the end
    late = options_of(Task.read([*TINY, "--pbt.start-frames=900"]).command(read_arms([])[0], 0))
    assert (late["pbt.start-frames=900"], late["pbt.period-frames"]) == ("", "120")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([*TINY, "--env=pettingzoo/classic/tictactoe_v3"], "2 agents"),
        (["--env=toy/identity"], "--train-for-frames "),
    ],
)
def test_what_can_show_nothing_is_refused(words, text):
    with pytest.raises(ConfigError, match=text):
        Task.read(words)


def test_a_file_of_options_is_checked_as_what_is_typed(tmp_path):
    path = tmp_path / "options.toml"
    for line in (
        "train_for_seconds = 5.0",
        "stop_at_objective = 3.0",
        'controller = "mf-pbt"',
        "hours = 0.1",
    ):
        path.write_text(line + "\n")
        with pytest.raises(ConfigError, match=f"^--{line.split()[0].replace('_', '-')} "):
            Task.read([*TINY, "--config", str(path)])
    path.write_text("train_for_frames = 3000\n[pbt]\nperiod_frames = 500\nstart_frames = 700\n")
    words = [word for word in TINY if "frames" not in word]
    command = Task.read([*words, "--config", str(path)]).command(read_arms([])[0], 0)
    assert not {"--pbt.period-frames", "--pbt.start-frames"} & {*command}


def test_runs_of_a_file_that_has_changed_are_not_mixed(tmp_path):
    path = tmp_path / "options.toml"
    path.write_text("[hypers]\ngamma = 0.9\n")
    words = ["--name=p", f"--out={tmp_path}", *TINY, "--config", str(path), "--seeds=2", "--games=1"]
    point = tmp_path / "p" / "pbt.seed0"
    command = Task.read(words[2:-2]).command(read_arms([])[0], 0)
    config = parse_train([*command[1:], "--name", point.name, f"--out={tmp_path}/p"])
    write_protocol(read_words(words))
    assert train(config) == 0
    path.write_text("[hypers]\ngamma = 0.5\n")
    with pytest.raises(ConfigError, match=r"pbt.seed0 .*--hypers.gamma: .*0.9"):
        run(words)


def test_a_folder_of_another_protocol_is_refused_and_new_arms_and_seeds_are_not(tmp_path):
    words = ["--name=p", f"--out={tmp_path}", *TINY]
    write_protocol(read_words(words))
    write_protocol(read_words([*words, "--seeds=9", "--arm=mf-pbt"]))
    write_protocol(read_words(words))
    assert "mf-pbt" in json.loads((tmp_path / "p" / "protocol.json").read_text())["arms"]
    with pytest.raises(ConfigError, match=r"--learner.epochs=1"):
        write_protocol(read_words([*words, "--learner.epochs=1"]))
    with pytest.raises(ConfigError, match=r"--games .*\b20\b.*\b3\b"):
        write_protocol(read_words([*words, "--games=3"]))
    with pytest.raises(ConfigError, match="--arm mf-pbt "):
        write_protocol(read_words([*words, "--arm=mf-pbt:--pbt.copy weights"]))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=f"{tmp_path}/other "):
        write_protocol(read_words(["--name=other", f"--out={tmp_path}", *TINY]))


@pytest.mark.parametrize("text", [b"[]", b"{}", b"\xff", b"{", b'{"common": [], "games": 4, "arms": []}'])
def test_a_damaged_protocol_is_one_clear_error(tmp_path, text):
    (tmp_path / "protocol.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"protocol\.json"):
        read_protocol(tmp_path)


@pytest.mark.parametrize(
    "text", ["[]", "{}", "\xff", '{"games": 4, "frames": 9, "members": [0], "validation": [1.0], "test": []}']
)
def test_scores_that_are_damaged_are_played_again(tmp_path, text):
    (tmp_path / "summary.json").write_text('{"frames": 9}')
    (tmp_path / FILE).write_text(json.dumps(Judged(4, 9, (0,), (1.0,), (2.0,)).__dict__))
    assert read_judged(tmp_path, 4).score == 2
    (tmp_path / FILE).write_text(text, encoding="latin-1")
    assert read_judged(tmp_path, 4) is None
    for summary in ("{}", "{"):
        (tmp_path / "summary.json").write_text(summary)
        with pytest.raises(ConfigError, match=r"summary\.json"):
            frames_of(tmp_path)


@pytest.mark.parametrize(
    "options",
    ["--pbt.prior learning_rate=1e-3:1e-2", "--hypers.learning-rate 0.1", "--hypers.learning_rate=0.1"],
)
def test_an_arm_that_would_be_that_of_another_is_refused(options):
    task = Task.read(TINY)
    with pytest.raises(ConfigError, match="in --arm x"):
        task.check(Arm("x", tuple(options.split())))
    starts = ("--pbt.start-values", *(f"learning_rate={x}" for x in (0.002, 0.003, 0.004)))
    task.check(Arm("x", (*options.split(), *starts)))
    task.check(Arm("x", ("--hypers.gamma", "0.9")))


def test_a_list_of_an_arm_takes_the_place_of_that_of_all():
    task, arm = Task.read(TINY), Arm("x", ("--pbt.tune", "learning_rate", "gamma"))
    task.check(arm)
    assert parse_train(task.command(arm, 0)[1:]).pbt.tune == ("learning_rate", "gamma")


def judged(score, frames=100):
    return Judged(5, frames, (0, 1), (1.0, 2.0), (score + 50, score))


def test_validation_picks_and_test_episodes_score():
    assert (judged(3).picked, judged(3).score) == (1, 3)
    assert Judged(5, 1, (4, 9), (2.0, 2.0), (7.0, 8.0)).score == 7  # of equals the first, not the better one
    scores = {"random": {0: judged(1.0), 1: judged(2.0)}, "pbt": {0: judged(1.0), 1: judged(math.inf)}}
    with pytest.raises(ConfigError, match=r"arm pbt, seed 1 .*inf"):
        outcome(scores, "random")


def test_arms_without_common_seeds_have_a_page():
    found = outcome({"random": {0: judged(1.0)}, "pbt": {1: judged(2.0)}}, "random")
    assert "No verdict" in page(found, {"differences": b"", "curves": b""}, "proof", "")


def test_a_line_per_arm():
    scores = {
        "random": {seed: judged(float(seed)) for seed in range(4)},
        "pbt": {seed: judged(10.0 + seed + 0.1 * (seed % 2)) for seed in range(4)},
        "half": {seed: judged(float(3 - seed), 50) for seed in range(4)},
    }
    said = headline(outcome(scores, "random"))
    assert re.match(r"Helped: pbt .*\+10\.05 .*random", said)
    assert re.search("4 seeds.*; half: ", said)
    head, pbt, half = outcome(scores, "random").lines()
    assert re.match("random  1.5 .*4 seeds", head)
    assert re.match(r"pbt     11.55: helped, \+10.05 .*random .*95 %.*\+9.958 to \+10.14", pbt)
    assert re.match(r"half    1.5: .* 0\b.*random", half)
    assert re.search("50 % .*random$", half)


def test_an_arm_that_beats_pbt_on_each_seed_is_named():
    scores = {
        "random": {0: judged(200.0), 1: judged(230.0)},
        "pbt": {0: judged(210.0), 1: judged(277.8)},
        "defaults": {0: judged(500.0), 1: judged(500.0)},
    }
    found = outcome(scores, "random")
    for said in (headline(found), found.lines()[-1]):
        assert re.search(r"efaults .*\b500 .*pbt .*\b243\.9\b.*\b2 seeds", said)
    (axes,) = differences(found).axes
    assert -350 < axes.get_xlim()[0] < axes.get_xlim()[1] < 650, "the intervals by t reach beyond 1000"


@pytest.mark.parametrize(
    ("compared", "text"),
    [
        ([4] * 24, ""),
        ([4] * 10 + [2] * 4, ""),
        ([4, 4, 2], "2.5 times"),
        ([4, 4, 2], "10,000"),
        ([], "0 times"),
        ([], "25,000"),
    ],
)
def test_a_period_shorter_than_an_episode_is_named_with_what_to_set(compared, text):
    pbt = PbtConfig(period_frames=1000, start_frames=1000)
    said = weakness.said(
        Config(env="toy/identity", num_policies=4, train_for_frames=25_000, pbt=pbt), compared
    )
    assert text in said
    assert bool(text) == bool(said)


@pytest.mark.parametrize(("away", "text"), [(0.0, "4 replacements, 4 "), (9.0, "")])
def test_replacements_by_luck_are_named_with_what_makes_fewer(away, text, monkeypatch):
    windows = (0.0, 1.0, 0.0, 1.0), (away, away + 1.0, away, away)
    members = tuple(MemberReport(i, 0, window, 4, 0) for i, window in enumerate(windows))
    replaced = Replace(member=0, donor=1, copy="both", values={}, reason="")
    rounds = [Comparison(0.0, 0, report=PopulationReport(0, members), decisions=(replaced,))] * 2
    monkeypatch.setattr(weakness, "journal_events", lambda _run: rounds)
    said = weakness.lucky([Path("pbt.seed0"), Path("pbt.seed1")])
    assert said.startswith(text)
    assert bool(text) == ("--pbt.replace-gap-absolute" in said)


class Planted:
    """Progress with noise. If the value matters, the best one moves through two decades during training."""

    def __init__(self, seed, index, matters):
        self.matters, self.at = matters, (0, 0.0)
        self.chances = [random.Random(f"{seed}.{index}.{what}") for what in ("evaluate", "test")]

    def step(self, values):
        steps, progress = self.at
        far = abs(math.log(values["rate"] / (0.01 * 100 ** (steps / 120))))
        self.at = steps + 1, progress + (math.exp(-far) if self.matters else 1)

    def evaluate(self):
        return self.at[1] + self.chances[0].gauss(0, 1)

    def test(self):
        return self.at[1] + self.chances[1].gauss(0, 1)

    def state(self):
        return self.at

    def load(self, state):
        self.at = state


def verdicts(matters, experiments):
    table = {"rate": HyperSpec("rate", 0.1, 0.001, 1.0, "log", tuned=True)}

    def pbt(seed):
        exploit = Truncation(0.25, Gap(0, 0), others_mutate=False)
        explore = PerturbFactors(table, (2, 0.5))
        return PbtController(table, seed, ready=Synchronous(6, 6, 1), exploit=exploit, explore=explore)

    for first in range(0, 5 * experiments, 5):
        many = {"steps": 120, "num_members": 8, "seeds": range(first, first + 5)}
        planted = lambda seed, index: Planted(seed, index, matters)  # noqa: E731
        found = prove_members(planted, table, {"pbt": pbt}, score=Planted.test, **many)
        yield found.comparisons["pbt"].verdict


def test_values_that_do_not_matter_are_not_told_apart_and_a_moving_optimum_is():
    assert list(verdicts(matters=False, experiments=4)).count("not told apart") >= 3
    assert set(verdicts(matters=True, experiments=2)) == {"helped"}


class Diverges:
    """Is worth the sum of its rates, and nothing once one was too high."""

    worth = 0.0

    def __init__(self, raises):
        self.raises = raises

    def step(self, values):
        self.worth = math.nan if values["rate"] > 0.3 else self.worth + values["rate"]
        if self.raises and math.isnan(self.worth):
            raise RuntimeError("it has diverged")

    def evaluate(self):
        return self.worth

    def state(self):
        return self.worth

    def load(self, worth):
        self.worth = worth


@pytest.mark.parametrize("raises", [False, True])
def test_members_that_diverge_are_not_picked(raises):
    table = {"rate": HyperSpec("rate", 0.1, 0.001, 1.0, "log", tuned=True)}
    score = lambda one: one.worth  # noqa: E731
    found = prove_members(lambda *_: Diverges(raises), table, {}, score=score, steps=9, seeds=(18, 19))
    for judged in found.scores["random"].values():
        assert -math.inf in judged.validation
        assert math.isfinite(judged.score)
        assert judged.frames == 8 * 9
    table["rate"] = replace(table["rate"], low=0.5)
    few = {"steps": 2, "seeds": (1, 2)}
    with pytest.raises(ConfigError, match="seed 1"):
        prove_members(lambda *_: Diverges(False), table, {}, score=float, **few)
    table["rate"] = replace(table["rate"], low=0.001, high=0.2)
    with pytest.raises(ConfigError, match=r"--score nan .*seed 1"):
        prove_members(lambda *_: Diverges(False), table, {}, score=lambda _: math.nan, **few)
    with pytest.raises(ConfigError, match="seeds"):
        prove_members(None, {}, {}, score=None, steps=1, seeds=[3])


@pytest.mark.long
def test_an_experiment_goes_on_with_what_is_missing(tmp_path):
    words = ("prove", "--name=p", *TINY, "--jobs=2", "--games=4", "--seeds")
    first = start(tmp_path, *words, "2")
    assert first.wait() == 0, first.out + first.err
    folder = tmp_path / "runs" / "p"
    verdict = [line for line in first.out.splitlines() if line.startswith(("pbt  ", "defaults  "))]
    assert len(verdict) == 2
    names = {path.name for path in folder.iterdir()}
    assert {"proof.html", "proof.json", "scores.csv", "curves.png"} <= names
    assert len((folder / "scores.csv").read_text().splitlines()) == 1 + 2 * (3 + 3 + 1)
    (folder / "pbt.seed1" / FILE).unlink()
    again = start(tmp_path, *words, "2")
    assert again.wait() == 0, again.out + again.err
    assert ": 0 " in again.out
    assert re.search("episodes .*1 run", again.out)
    assert [line for line in again.out.splitlines() if line.startswith(("pbt  ", "defaults  "))] == verdict
    run = folder / "pbt.seed1"
    assert read_judged(run, 4) is not None
    assert read_judged(run, 5) is None
    summary = run / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"frames": 10**6}))
    assert read_judged(run, 4) is None, "it has gone on since"


# -- paired differences -------------------------------------------------------------------------------------


def test_quantiles_of_t_are_those_of_the_tables():
    # Abramowitz and Stegun, table 26.10
    for degrees, expected in ((1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (30, 2.042), (1000, 1.962)):
        assert t_quantile(0.975, degrees) == pytest.approx(expected, abs=6e-4)


def test_verdicts():
    better = compare([12, 13, 11, 12], [1, 2, 1, 0])
    assert (better.verdict, better.wins, better.losses, better.seeds) == ("helped", 4, 0, 4)
    assert better.mean == 11
    assert better.by_t.low > 9
    assert compare([1, 2, 1, 0], [12, 13, 11, 12]).verdict == "hurt"
    unclear = compare([1, 5, 2, 9], [2, 1, 6, 3])
    assert unclear.verdict == "not told apart"
    assert unclear.needed is not None
    assert unclear.needed > 4
    same = compare([500, 500], [500, 500])
    assert (same.verdict, same.mean, same.needed) == ("not told apart", 0, None)
    coarse = compare([0.55, 0.6], [0.5, 0.55])
    assert (coarse.verdict, coarse.needed) == ("not told apart", 4), "two seeds without spread"
    assert compare([0.55] * 4, [0.5] * 4).verdict == "helped"
    assert compare([0.1 + 0.2] * 4, [0.3] * 4).mean == 0, "rounding"
    with pytest.raises(ValueError, match=r"\b2\b"):
        compare([1], [2])
    with pytest.raises(ValueError, match="argument"):
        compare([1, 2], [2])


@pytest.mark.parametrize("std", [0.5, 1.0, 2.0])
def test_the_needed_seeds_have_that_power(std):
    seeds = seeds_needed(1.0, std)
    rng = random.Random(3)

    def power(n):
        gains = ([rng.gauss(1.0, std) for _ in range(n)] for _ in range(1000))
        return sum(interval_by_t(one).low > 0 for one in gains) / 1000

    assert power(seeds) == pytest.approx(0.83, abs=0.08)


def test_t_covers_normal_and_heavy_tails_and_the_bootstrap_of_few_seeds_does_not(monkeypatch):
    monkeypatch.setattr("pbt_rl.experiments.prove.outcome.RESAMPLES", 500)

    def covered(interval, gains):
        return sum(one.low <= 0 <= one.high for one in map(interval, gains)) / len(gains)

    rng = np.random.default_rng(0)
    for draw in (rng.normal, lambda size: rng.standard_t(3, size)):
        for seeds in (4, 12):
            gains = draw(size=(400, seeds))
            by_t, by_bootstrap = covered(interval_by_t, gains), covered(interval_by_bootstrap, gains)
            assert 0.92 <= by_t <= 0.99
            assert by_bootstrap < by_t
    assert covered(interval_by_bootstrap, rng.normal(size=(400, 4))) < 0.88


def test_interquartile_mean():
    assert iqm([1, 2, 3, 100]) == 2.5
    assert iqm([7]) == 7
    assert iqm(list(np.arange(8))) == 3.5
