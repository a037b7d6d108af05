"""`scripts/lab/evidence.py`: what the arms of its protocols have in common, and what becomes of their rows."""

import shlex
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "lab"
sys.path.insert(0, str(SCRIPTS))

from evidence import PROTOCOLS  # noqa: E402

from pbt_rl.cli.prove import read_words  # noqa: E402
from pbt_rl.config.command import parse_train  # noqa: E402
from pbt_rl.experiments.prove.arms import Task  # noqa: E402

OF_VALUES = [name for name, one in PROTOCOLS.items() if "gymnax/" not in one.options]
"""Protocols on environments that are always there."""


@pytest.mark.parametrize("name", OF_VALUES)
def test_members_of_all_arms_of_a_protocol_begin_with_the_same_values(name):
    words = read_words(["--name", name, *shlex.split(PROTOCOLS[name].options)])
    task = Task.read(words.common)
    configs = {arm.name: parse_train(task.command(arm, 3)[1:]) for arm in words.arms}
    assert {config.seed for config in configs.values()} == {3}
    random, alone = configs["random"], configs.pop("defaults", None)
    assert alone is None or alone.train_for_frames == random.num_policies * random.train_for_frames
    values = [config.pbt.start_values for config in configs.values()]
    least = min(map(len, values))
    assert len(set(random.pbt.start_values)) == random.num_policies >= least > 4
    assert len({of[:least] for of in values}) == 1


def test_searches_get_the_frames_of_random_search():
    """Successive halving has 17, 8, 4 and 2 members in four phases; HyperTrick evicts a quarter in each."""
    words = read_words(["--name", "x", *shlex.split(PROTOCOLS["cartpole"].options)])
    task = Task.read(words.common)
    arms = {arm.name: parse_train(task.command(arm, 0)[1:]) for arm in words.arms}
    frames = arms["random"].train_for_frames
    total = arms["random"].num_policies * frames
    members = arms["halving"].num_policies
    assert sum(max(1, round(members / 2**p)) for p in range(4)) * frames / 4 == pytest.approx(total, rel=0.05)
    law = sum(0.75**p for p in range(4)) / 4 * arms["hypertrick"].num_policies * frames
    assert law == pytest.approx(total, rel=0.05)
