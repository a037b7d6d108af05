"""`scripts/lab/evidence.py`, the statistics of scripts, and `scripts/lab/reproduce_searches.py`."""

import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "lab"
sys.path.insert(0, str(SCRIPTS))

import evidence  # noqa: E402
import reproduce_searches  # noqa: E402
from evidence import PROTOCOLS  # noqa: E402
from reproduce_arms import EXPERIMENTS as AGENTS  # noqa: E402
from reproduce_runs import whole  # noqa: E402
from reproduce_searches import SEARCHES  # noqa: E402
from statistics_of_seeds import bootstrap, half_by_t, iqm  # noqa: E402

from pbt_rl.cli.prove import read_words  # noqa: E402
from pbt_rl.cli.train import parse_train  # noqa: E402
from pbt_rl.config import Hypers  # noqa: E402
from pbt_rl.controllers.hypers import hyper_table  # noqa: E402
from pbt_rl.controllers.options import PbtConfig  # noqa: E402
from pbt_rl.experiments.prove.arms import Task  # noqa: E402
from pbt_rl.run.resolved import build_controller  # noqa: E402

OF_VALUES = [name for name, one in PROTOCOLS.items() if "gymnax/" not in one.options]
"""Protocols on environments that are always there."""


def started(words):
    """Return the first values of every member under a command."""
    config, _ = parse_train(words[words.index("train") + 1 :])
    controller = build_controller(config, hyper_table(Hypers()), config.seed)
    return config, controller.initial(config.num_policies)


@pytest.mark.parametrize("name", OF_VALUES)
def test_members_of_all_arms_of_a_protocol_begin_with_the_same_values(name):
    words = read_words(["--name", name, *shlex.split(PROTOCOLS[name].options)])
    task = Task.read(words.common)
    configs = {arm.name: parse_train(task.command(arm, 3)[1:])[0] for arm in words.arms}
    assert {config.seed for config in configs.values()} == {3}
    random, alone = configs["random"], configs.pop("defaults", None)
    assert alone is None or alone.train_for_frames == random.num_policies * random.train_for_frames
    values = [config.pbt.start_values for config in configs.values()]
    least = min(map(len, values))
    assert len(set(random.pbt.start_values)) == random.num_policies >= least > 4
    assert len({of[:least] for of in values}) == 1


@pytest.mark.parametrize("name", OF_VALUES)
def test_the_arm_as_typed_has_the_default_rules(name):
    words = read_words(["--name", name, *shlex.split(PROTOCOLS[name].options)])
    arms = {arm.name: parse_train(Task.read(words.common).command(arm, 0)[1:])[0] for arm in words.arms}
    assert ("as-typed" in arms) == (name not in ("unroll", "atari"))
    for arm, config in arms.items():
        usual = {
            f.name: getattr(PbtConfig(), f.name)
            for f in fields(config.pbt)
            if f.name not in ("period_frames", "start_frames", "tune", "prior", "start_values")
        }
        assert (replace(config.pbt, **usual) == config.pbt) == (arm == "as-typed")


def test_searches_get_the_frames_of_random_search():
    """Successive halving has 17, 8, 4 and 2 members in four phases; HyperTrick evicts a quarter in each."""
    words = read_words(["--name", "x", *shlex.split(PROTOCOLS["cartpole"].options)])
    task = Task.read(words.common)
    arms = {arm.name: parse_train(task.command(arm, 0)[1:])[0] for arm in words.arms}
    frames = arms["random"].train_for_frames
    total = arms["random"].num_policies * frames
    members = arms["halving"].num_policies
    assert sum(max(1, round(members / 2**p)) for p in range(4)) * frames / 4 == pytest.approx(total, rel=0.05)
    law = sum(0.75**p for p in range(4)) / 4 * arms["hypertrick"].num_policies * frames
    assert law == pytest.approx(total, rel=0.05)


def test_rows_of_new_runs_replace_those_of_the_same_arm_and_seed(tmp_path):
    kept, made = tmp_path / "kept.csv", tmp_path / "scores.csv"
    kept.write_text("seed,arm,member,frames,validation,test\n0,a,0,9,1,1\n0,b,0,9,2,2\n1,a,0,9,3,3\n")
    made.write_text("arm,seed,member,validation,test,picked,frames\na,0,0,7,8,1,99\na,2,0,5,6,1,99\n")
    evidence.keep(made, kept)
    assert kept.read_text().split() == [
        "seed,arm,member,frames,validation,test",
        *("0,b,0,9,2,2", "0,a,0,99,7,8", "1,a,0,9,3,3", "2,a,0,99,5,6"),
    ]


def test_the_courier_delivers_where_it_rests_at_its_goal():
    torch = pytest.importorskip("torch")
    import courier

    rows = courier.make_env(4, "cpu")
    rows.attach(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 3.0]]))
    rows.reset()
    rows._at, rows._goal = torch.zeros(4, 2), torch.full((4, 2), 0.05)
    rows._goal[1] = 0.5
    out = rows.step(torch.zeros(4, 2))
    assert out.objective.tolist() == [1, 0, 1, 1]
    assert out.reward[:2].tolist() == [1, 0]
    assert out.reward[2].item() == pytest.approx(2 * 2.718281828 ** (-(0.005**0.5) / 0.3), rel=1e-4)
    assert (rows._goal[0] != 0.05).all()
    assert (rows._goal[1] == 0.5).all()
    fast = rows.step(torch.ones(4, 2) * 5)
    assert fast.reward[3].item() < -3  # effort is counted of the push, at most 1 a side
    for _ in range(198):
        last = rows.step(torch.zeros(4, 2))
    assert last.truncated.all()
    assert not last.terminated.any()


def test_statistics_of_known_samples():
    assert iqm([8, 1, 2, 7, 3, 4, 5, 6]) == pytest.approx(4.5)
    assert iqm([0, 0, 1, 5, 900]) == pytest.approx((0.75 * 0 + 1 + 0.75 * 5) / 2.5)
    assert bootstrap([3.0] * 5) == (3.0, 3.0)
    low, high = bootstrap([-1.0, 1.0] * 50)  # a mean of 100 with deviation 1: +- 0.196
    assert low == pytest.approx(-0.196, abs=0.03)
    assert high == pytest.approx(0.196, abs=0.03)
    assert half_by_t([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1.9632, abs=1e-3)  # 2.776 * sqrt(2.5 / 5)
    assert half_by_t([1.0, 2.0, 3.0, 4.0, 5.0], 5) == pytest.approx(3.2556, abs=1e-3)  # 4.604: 99 %


@pytest.mark.parametrize(
    ("ended", "answer"),
    [("frames", True), ("all members are done", True), ("interrupted", False), (None, False)],
)
def test_a_run_is_whole_if_nothing_cut_it_off(ended, answer, tmp_path):
    text = f'{{"event": "end", "time": 1.0, "frames": 0, "ended": "{ended}"}}\n' if ended else ""
    (tmp_path / "journal.jsonl").write_text('{"event": "x"}\n' + text)
    assert whole(tmp_path) is answer
    assert not whole(tmp_path / "none")


def test_a_search_picks_by_other_games_than_it_is_scored_by(tmp_path, monkeypatch):
    (tmp_path / "summary.json").write_text('{"frames": 70, "seconds": 2.0}')

    def games(_run, games, seed):
        assert games == 100
        better = {reproduce_searches.VALIDATION: 1, reproduce_searches.TEST: 0}[seed]
        return {member: 8.0 if member == better else 2.0 for member in (0, 1)}

    monkeypatch.setattr(reproduce_searches, "fresh_games", games)
    record = SimpleNamespace(occupancy=None, completion=0.5, phases=[1] * 27)
    monkeypatch.setattr(reproduce_searches, "read_run", lambda _run: record)
    found = reproduce_searches.result(SEARCHES["cartpole"], "hypertrick", tmp_path)
    assert (found["score"], found["phases"], found["occupancy"], found["frames"]) == (2.0, 0.2, 0.0, 70)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("method", reproduce_searches.METHODS)
def test_the_commands_of_the_searches_are_understood(name, method, tmp_path):
    search = SEARCHES[name]
    config, values = started(search.command(method, 0, tmp_path / "run"))
    assert config.controller == method
    assert len(values) == search.members(method)


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
    assert not PROTOCOLS.keys() & AGENTS.keys()


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
