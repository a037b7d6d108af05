"""The time until the end and until the next comparison, as the terminal shows them."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

import pbt_rl
from pbt_rl.config import Config
from pbt_rl.config.command import make_config
from pbt_rl.controllers.options import PbtConfig, SearchConfig
from pbt_rl.display.ranking import title_lines
from pbt_rl.population.population import Population
from pbt_rl.run.resolved import build_controller, value_table
from pbt_rl.run.supervisor import Supervisor
from pbt_rl.run.throughput import Throughput
from pbt_rl.run.train import resolve
from pbt_rl.run.views import UNCOMPARED, WaitingComparison, _waits_for, seconds_to_comparison, seconds_to_end
from tests.helpers.views import member, view


def population(*frames):
    made = Population([{"a": 1.0}] * len(frames), 5, 1)
    for m, f in zip(made.members, frames, strict=True):
        m.frames = f
    return made


def config(search=None, **options):
    if search is not None:
        options["search"] = SearchConfig(**search)
    return Config(env="toy/identity", num_policies=2, **{"train_for_frames": 1000} | options)


@pytest.mark.parametrize(
    ("options", "newest"),
    [
        ({}, True),
        ({"pbt": PbtConfig(ready="timed")}, True),
        ({"pbt": PbtConfig(ready="asynchronous")}, False),
        ({"controller": "asha"}, False),  # a search ranks by the whole window
    ],
)
def test_the_objective_on_displays_is_that_of_the_rule(options, newest):
    made = resolve(config(**options)).population([{"learning_rate": 0.1}] * 2)
    assert [m.compares_newest for m in made.members] == [newest] * 2


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 150.0),
        ({"train_for_seconds": 100.0}, 60.0),
        ({"controller": "hypertrick", "search": {"phases": 4, "phase_frames": 100}}, 30.0),
        ({"controller": "hypertrick", "search": {"phase_frames": 1, "phase_episodes": 9}}, 150.0),
        ({"controller": "asha", "search": {"resource": 4, "phase_frames": 100}}, 30.0),
        ({"controller": "hyperband", "search": {"resource": 9, "restart": False}}, 150.0),
        ({"controller": "hyperband", "search": {"resource": 9, "restart": True}}, 250.0),
    ],
)
def test_the_end_is_known_of_searches_too(options, seconds):
    assert seconds_to_end(config(**options), population(200, 300), 10.0, 40.0) == seconds


def test_the_start_counts_the_actors_that_are_ready():
    resolved = resolve(make_config(env="atari/pong", mode="serial", actors=3, num_policies=1))
    supervisor = object.__new__(Supervisor)
    supervisor._resolved, supervisor._throughput = resolved, Throughput()
    fleet = SimpleNamespace(actions_given=lambda actor: 8 * (actor == 1))
    stepping = supervisor._stepping(fleet)
    waiting = _waits_for(resolved, begun=True, stepping=stepping)
    elsewhere = replace(resolved, spread=True)
    assert re.fullmatch(rf"{_waits_for(elsewhere, begun=True, stepping=0)} \(1 of 3 .*\)", waiting)
    supervisor._throughput.note(64, {})
    assert supervisor._stepping(fleet) == 0


def test_the_next_comparison():
    long = config(pbt=PbtConfig(start_frames=500, period_frames=100), train_for_frames=10**9)
    controller = build_controller(long, value_table(long, {}), 0)
    seconds = seconds_to_comparison(controller, population(200, 300), 0.1)
    assert seconds == pytest.approx(300 * 2 / 0.1)
    started = replace(long, pbt=replace(long.pbt, start_values=("gamma=0.9",)))
    for other, expected in ((started, seconds), (config(controller="random"), None)):
        controller = build_controller(other, value_table(other, {}), 0)
        assert seconds_to_comparison(controller, population(200, 300), 0.1) == expected


def test_the_terminal_says_both():
    soon = view(member(0), seconds_left=60.0, comparison_in_seconds=5.0)
    assert re.search(r"1:00 [^|]*\| comparison [^|]*0:05$", title_lines(soon)[0])
    waiting = view(member(0), seconds_left=60.0, seconds_left_at_most=True, comparison_in_seconds=0.0)
    assert re.search(r"at most 1:00 [^|]*\| comparison [^|]*episodes$", title_lines(waiting)[0])


def test_a_comparison_that_waits_for_three_periods_or_one_without_any_episode_is_pointed_out():
    waits, due = WaitingComparison(100), {"comparison_in_seconds": 0.0}
    assert waits(view(member(0, frames=500), **due)) == []
    assert waits(view(member(0, frames=600), comparison_in_seconds=3.0)) == [], "it was held"
    assert waits(view(member(0, frames=650), **due)) == []
    assert waits(view(member(0, frames=900), **due)) == []
    (text,) = waits(view(member(0, frames=1000), replace(member(1, frames=600), control=True), **due))
    assert "long" in text
    assert waits(view(member(0, frames=2000), **due)) == [], "each warning is printed once"
    waits, silent = WaitingComparison(100), replace(member(0), episodes=0)
    (_, (text,)) = (waits(view(replace(silent, frames=n), comparison_in_seconds=0.0)) for n in (100, 300))
    assert "no episode" in text
    fast = WaitingComparison(100)
    for frames in range(500, 5000, 500):
        assert fast(view(member(0, frames=frames), **due)) == [], "each view is of another comparison"
        fast.note_decisions()


# -- the verdict --------------------------------------------------------------------------------------------


def said(out, capsys, **options):
    """Train two members for a moment; return the lines of its end."""
    few = {"num_policies": 2, "mode": "serial", "devices": "cpu", "actors": 1, "figures": False}
    options = {"train_for_frames": 600, "pbt.start_frames": 100, "pbt.period_frames": 100} | options
    pbt_rl.train(env="toy/identity", out=out, name="x", **few, **options)
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("best"))
    return lines[at:]


def test_the_verdict_names_the_best_and_is_followed_by_three_commands(tmp_path, capsys):
    verdict, *commands = said(tmp_path, capsys)
    assert "comparison" in verdict
    assert [line.split()[1] for line in commands] == ["report", "eval", "resume"]
    assert commands[-1].split()[3:5] == ["--train-for-frames", "1200"], "as it stands it would do nothing"


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"pbt.period_frames": 5000}, "--train-for-frames 10000"),
        ({"pbt.ready": "timed", "pbt.period_seconds": 1e6}, r"--train-for-frames \d{6,},"),
        ({"pbt.min_episodes": 10**6}, "--envs-per-vector-env"),
        ({"pbt.min_episodes": 1, "learner.batch": 1024}, "ended first"),
    ],
)
def test_a_run_that_compared_nobody_says_so_in_its_last_line(tmp_path, capsys, options, remedy):
    *_, last = said(tmp_path, capsys, **options)
    assert last.startswith(UNCOMPARED)
    assert re.search(remedy, last)


def test_a_run_that_ended_before_its_budget_is_not_said_to_lack_comparisons(tmp_path, capsys):
    early = {"train_for_frames": 10**6, "pbt.start_frames": 10**5, "on_report": lambda _: pbt_rl.Stop("seen")}
    assert UNCOMPARED not in "".join(said(tmp_path, capsys, **early))
