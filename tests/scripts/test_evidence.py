"""`scripts/lab/evidence.py`: what the arms of its protocols have in common, and what becomes of their rows."""

import shlex
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "lab"
sys.path.insert(0, str(SCRIPTS))

import evidence  # noqa: E402
from evidence import PROTOCOLS  # noqa: E402

from pbt_rl.cli.prove import read_words  # noqa: E402
from pbt_rl.cli.train import parse_train  # noqa: E402
from pbt_rl.controllers.options import PbtConfig  # noqa: E402
from pbt_rl.experiments.prove.arms import Task  # noqa: E402

OF_VALUES = [name for name, one in PROTOCOLS.items() if "gymnax/" not in one.options]
"""Protocols on environments that are always there."""


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
