"""`scripts/lab/evidence.py`, its experiments and statistics, and `scripts/lab/reproduce_searches.py`."""

import argparse
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "lab"
sys.path.insert(0, str(SCRIPTS))

import evidence  # noqa: E402
import reproduce_searches  # noqa: E402
from evidence_experiments import EXPERIMENTS, Arm, Experiment, drawn_members, nothing  # noqa: E402
from evidence_table import picked, table  # noqa: E402
from reproduce_arms import EXPERIMENTS as AGENTS  # noqa: E402
from reproduce_fresh import Fresh  # noqa: E402
from reproduce_runs import whole  # noqa: E402
from reproduce_searches import SEARCHES  # noqa: E402
from results_rows import append_rows, read_rows  # noqa: E402
from statistics_of_seeds import bootstrap, half_by_t, iqm  # noqa: E402

from pbt_rl.cli.train import parse_train  # noqa: E402
from pbt_rl.config import Hypers  # noqa: E402
from pbt_rl.pbt.hypers import hyper_table  # noqa: E402
from pbt_rl.run.resolved import build_controller  # noqa: E402

ARMS = [(name, arm) for name, make in EXPERIMENTS.items() for arm in make().arms]
TUNED = ("learning_rate", "unroll=2:36")


def started(words):
    """Return the first values of every member under a command."""
    config, _ = parse_train(words[words.index("train") + 1 :])
    controller = build_controller(config, hyper_table(Hypers()), config.seed)
    return config, controller.initial(config.num_policies)


@pytest.mark.parametrize(("name", "arm"), ARMS)
def test_the_command_of_every_arm_is_understood(name, arm, tmp_path):
    experiment = EXPERIMENTS[name]()
    words = evidence.command(experiment.options, experiment.arms[arm], 3, tmp_path / "run")
    config, values = started(words)
    assert (config.seed, config.train_for_frames) == (3, experiment.arms[arm].frames)
    assert len(values) == experiment.arms[arm].members


@pytest.mark.parametrize("name", ["cartpole", "unroll", "atari"])
def test_the_first_members_of_all_methods_begin_with_the_same_values(name, tmp_path):
    experiment = EXPERIMENTS[name]()
    first = {}
    for arm in {"random", "halving", "pbt"} & experiment.arms.keys():
        _, values = started(evidence.command(experiment.options, experiment.arms[arm], 3, tmp_path / "run"))
        first[arm] = [tuple(v[n] for n in ("learning_rate", "entropy_coef")) for v in values]
    least = min(map(len, first.values()))
    assert least > 4
    assert len({tuple(values[:least]) for values in first.values()}) == 1
    assert len(set(first["random"])) == least


def test_members_are_drawn_by_the_seed_within_bounds():
    _, *rows = drawn_members(TUNED, 5, 200)
    values = [dict(pair.split("=") for pair in row.split(",")) for row in rows]
    assert rows[:8] == drawn_members(TUNED, 5, 8)[1:]
    assert rows[:8] != drawn_members(TUNED, 6, 8)[1:]
    assert {"learning_rate", "unroll"} == set(values[0])
    rates = [float(v["learning_rate"]) for v in values]
    assert 1e-6 <= min(rates) < 1e-5
    assert 1e-3 < max(rates) <= 1e-2
    assert {int(v["unroll"]) for v in values} <= set(range(2, 37))


def test_searches_get_the_frames_of_random_search():
    arms = EXPERIMENTS["cartpole"]().arms
    total, phase = arms["random"].members * arms["random"].frames, arms["halving"].frames // 4
    halving = sum(max(1, round(arms["halving"].members / 2**p)) for p in range(4)) * phase
    law = sum(0.75**p for p in range(4)) / 4 * arms["hypertrick"].members * arms["hypertrick"].frames
    assert halving == pytest.approx(total, rel=0.05)
    assert law == pytest.approx(total, rel=0.05)


def test_statistics_of_known_samples():
    assert iqm([8, 1, 2, 7, 3, 4, 5, 6]) == pytest.approx(4.5)
    assert iqm([0, 0, 1, 5, 900]) == pytest.approx((0.75 * 0 + 1 + 0.75 * 5) / 2.5)
    assert bootstrap([3.0] * 5) == (3.0, 3.0)
    low, high = bootstrap([-1.0, 1.0] * 50)  # a mean of 100 with deviation 1: +- 0.196
    assert low == pytest.approx(-0.196, abs=0.03)
    assert high == pytest.approx(0.196, abs=0.03)
    assert half_by_t([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1.9632, abs=1e-3)  # 2.776 * sqrt(2.5 / 5)
    assert half_by_t([1.0, 2.0, 3.0, 4.0, 5.0], 5) == pytest.approx(3.2556, abs=1e-3)  # 4.604: 99 %
    assert picked([(3.0, 1.0), (2.0, 9.0)]) == 1.0
    assert picked([(3.0, 1.0), (3.0, 2.0)]) == 1.0  # test games do not choose among equals


def test_the_table_compares_by_seed_what_random_search_has_too(capsys):
    scores = {"random": {0: 100, 1: 200}, "pbt": {0: 130, 1: 250, 2: 10}}
    rows = [
        {
            "seed": f"{seed}",
            "arm": arm,
            "frames": "1000",
            "validation": f"{member}",
            "test": f"{score - 5 * (1 - member)}",
        }
        for arm, seeds in scores.items()
        for seed, score in seeds.items()
        for member in (0, 1)
    ]
    made = EXPERIMENTS["cartpole"]()
    table(rows, made)
    shown = capsys.readouterr().out
    assert "| random | 2 | 150 | 150 | - | - | 0 |" in shown
    assert "| pbt | 3 | 130 | 130 | +40 (+30 to +50) | 2 of 2 | 1 |" in shown
    assert "frames of a run, mean: pbt 1,000" in shown
    assert "pbt +40 +- 127.1, as one of 1 comparisons +- 127.1" in shown  # 12.706 * sqrt(200) / sqrt(2)
    table([], made)


def chosen(tmp_path, **more):
    usual = {"seconds": 1e9, "seeds": None, "arms": None, "experiment": "x", "out": tmp_path / "runs"}
    return argparse.Namespace(**usual | more)


def test_what_has_rows_is_not_run_again_and_a_stopped_run_gets_none(tmp_path, monkeypatch, capsys):
    arm = Arm((), 2, 100, nothing)
    experiment, path = Experiment("x", 2, (), {"a": arm, "b": arm}, 5, 0.0), tmp_path / "x.csv"
    append_rows(path, evidence.COLUMNS, [(0, "a", 0, 100, 1, 1)])
    ran = []

    def trained(words, run, _until):
        ran.append(run.name)
        return run.name != "b-1"

    monkeypatch.setattr(evidence, "trained", trained)
    monkeypatch.setattr(evidence, "judge", lambda _e, _r, arm, seed: [(seed, arm, 0, 100, 2, 3)])
    evidence.run_all(experiment, chosen(tmp_path), path)
    assert ran == ["b-0", "a-1", "b-1"]
    assert [(row["seed"], row["arm"]) for row in read_rows(path)] == [
        ("0", "a"),
        ("0", "b"),
        ("1", "a"),
    ]
    assert "seed 1, b: stopped" in capsys.readouterr().out
    evidence.run_all(experiment, chosen(tmp_path, seconds=-1.0), path)
    assert ran == ["b-0", "a-1", "b-1"]


@pytest.mark.parametrize(
    ("ended", "answer"),
    [("frames", True), ("all members are done", True), ("interrupted", False), (None, False)],
)
def test_a_run_is_whole_if_nothing_cut_it_off(ended, answer, tmp_path):
    text = f'{{"event": "end", "time": 1.0, "frames": 0, "ended": "{ended}"}}\n' if ended else ""
    (tmp_path / "journal.jsonl").write_text('{"event": "x"}\n' + text)
    assert whole(tmp_path) is answer
    assert not whole(tmp_path / "none")


def test_the_member_is_picked_by_other_games_than_it_is_scored_by(tmp_path, monkeypatch):
    (tmp_path / "summary.json").write_text('{"frames": 70, "seconds": 2.0}')

    def games(_run, games, seed):
        assert games == 5
        better = {evidence.VALIDATION_SEED: 1, evidence.TEST_SEED: 0}[seed]
        return Fresh({member: 8.0 if member == better else 2.0 for member in (0, 1)}, 0)

    experiment = Experiment("x", 1, (), {}, 5, 0.0)
    monkeypatch.setattr(evidence, "fresh_games", games)
    rows = evidence.judge(experiment, tmp_path, "a", 3)
    assert rows == [(3, "a", 0, 70, "2.00", "8.00"), (3, "a", 1, 70, "8.00", "2.00")]
    monkeypatch.setattr(reproduce_searches, "fresh_games", lambda run, _games, seed: games(run, 5, seed))
    record = SimpleNamespace(occupancy=None, completion=0.5, phases=[1] * 27)
    monkeypatch.setattr(reproduce_searches, "read_run", lambda _run: record)
    found = reproduce_searches.result(SEARCHES["cartpole"], "hypertrick", tmp_path)
    assert (found["score"], found["phases"], found["occupancy"], found["frames"]) == (2.0, 0.2, 0.0, 70)


@pytest.mark.long
def test_a_population_is_trained_judged_and_kept(tmp_path):
    tuned = ("learning_rate", "entropy_coef")
    options = ("--env", "toy/identity", "--mode", "serial", "--no-figures", "--pbt.tune", *tuned)
    halving = ("--controller", "successive-halving", "--slots", "2", "--search.phases", "2")
    arms = {"random": Arm(("--controller", "random"), 2, 2000, partial(drawn_members, tuned))}
    arms["halving"] = Arm((*halving, "--search.eviction-rate", "0.5"), 3, 2000, arms["random"].start)
    experiment, path = Experiment("x", 1, options, arms, 5, 0.0), tmp_path / "x.csv"
    evidence.run_all(experiment, chosen(tmp_path), path)
    rows = read_rows(path)
    assert [(row["arm"], row["member"]) for row in rows] == [
        *(("random", "0"), ("random", "1")),
        *(("halving", "0"), ("halving", "1"), ("halving", "2")),
    ]
    assert all(0 <= float(row["test"]) <= 16 for row in rows)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("method", reproduce_searches.METHODS)
def test_the_commands_of_the_searches_are_understood(name, method, tmp_path):
    search = SEARCHES[name]
    config, values = started(evidence.command(search.options, search.arm(method), 0, tmp_path / "run"))
    assert config.controller == method
    assert len(values) == search.arm(method).members


@pytest.mark.parametrize("name", SEARCHES)
def test_both_searches_are_expected_to_do_the_same_work(name):
    search = SEARCHES[name]
    band = sum(
        members * units
        for bracket in reproduce_searches.hyperband_table(search.eta, search.resource)
        for members, units in bracket
    )
    trick = sum((1 - search.rate) ** p for p in range(search.phases)) / search.phases * search.configurations
    assert trick * search.resource == pytest.approx(band)


@pytest.mark.parametrize(
    ("share", "more", "passed"),
    [
        (0.98, 0.001, [True, True]),
        (0.96, -0.001, [False, False]),
        (1.37, 0.037, [True, True]),
        (1.39, 0.039, [False, False]),
    ],
)
def test_the_searches_figures_are_judged_by_their_laws(share, more, passed, tmp_path):
    search, path = SEARCHES["cartpole"], tmp_path / "searches_cartpole.csv"
    trick = dict.fromkeys(reproduce_searches.NUMBERS, 1.0) | {"phases": share * search.law}
    band = trick | {"completion": 144 / 270 + more}  # whole batches add 20 * 512 / 270,000
    for seed in range(search.seeds):
        reproduce_searches.append(path, seed, "hypertrick", trick | {"score": 3 + seed})
        reproduce_searches.append(path, seed, "hyperband", band)
    rows = {row.what: row for row in reproduce_searches.figures(tmp_path)}
    assert [row.passed for row in rows.values() if row.passed is not None] == passed
    assert rows["hypertrick: score of the picked member, 100 games"].found == "5"


def test_the_searches_table_pairs_the_seeds(tmp_path, capsys):
    path = tmp_path / "x.csv"
    for seed, (ours, theirs) in enumerate([(10, 4), (20, 6)]):
        for method, seconds in (("hypertrick", ours), ("hyperband", theirs)):
            numbers = dict.fromkeys(reproduce_searches.NUMBERS, 0.5) | {"seconds": seconds}
            reproduce_searches.append(path, seed, method, numbers)
    reproduce_searches.table(SEARCHES["cartpole"], reproduce_searches.read_runs(path))
    assert "| seconds | 15 | 5 | +10 (+6 to +14) |" in capsys.readouterr().out


def test_no_two_scripts_write_the_same_results():
    assert not EXPERIMENTS.keys() & AGENTS.keys()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_script_that_is_ended_stops_its_run(number, tmp_path):
    """The run is asked once: twice would mean without saving."""
    run = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: (print('asked', flush=True), time.sleep(0.5), sys.exit()))\n"
        "print('begun', flush=True)\n"
        "time.sleep(60)\n"
    )
    script = (
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from reproduce_runs import trained\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"trained([sys.executable, '-c', {run!r}], Path({str(tmp_path / 'run')!r}), time.monotonic() + 60)\n"
    )
    log = tmp_path / "run.out"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as process:
        end = time.monotonic() + 30
        while not (log.exists() and "begun" in log.read_text()):
            assert time.monotonic() < end
            time.sleep(0.05)
        os.killpg(process.pid, number)
        assert process.wait(30) in (130, -signal.SIGINT)
    assert log.read_text() == "begun\nasked\n"
