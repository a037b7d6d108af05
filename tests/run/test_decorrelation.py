"""--decorrelate-steps: units start apart from each other, and what was played at random counts for nobody."""

import json

import numpy as np
import pytest

from pbt_rl.cli.train import parse_train
from pbt_rl.plan import Machine
from pbt_rl.run.memory import Memory, Start
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.train import train
from pbt_rl.wire.actor import UNCOUNTED_VERSION, Actor

OPTIONS = ("--num-policies=2", "--envs-per-unit=2", "--actors=2", "--devices=cpu")


def start(env, steps):
    config, _ = parse_train([f"--env={env}", f"--decorrelate-steps={steps}", *OPTIONS])
    facts = ResolvedRun.resolve(config, Machine(2, 0))
    memory = Memory(facts, Start.fresh(facts.plan, facts.controller().initial(2)))
    actors = [Actor(record.setup) for record in memory.actors]
    for actor in actors:
        assert actor.turn()
    return memory, actors, [box for record in memory.actors for box in record.boxes]


def test_units_start_apart_and_show_a_beginning():
    memory, actors, boxes = start("toy/identity?length=40", 40)
    for box in boxes:
        assert box.step.first.all()
        assert not box.step.reward.any()
        assert not box.step.episode_done.any()
    ended: list[list[int]] = [[] for _ in boxes]
    versions: list[set[int]] = [set() for _ in boxes]
    for step in range(1, 82):
        for box in boxes:
            box.action[:] = 0
            box.header[1] += 1
        for actor in actors:
            assert actor.turn()
        for number, box in enumerate(boxes):
            assert box.step.first.all() == (step - 1 in ended[number])
            if box.step.episode_done.all():
                ended[number].append(step)
                versions[number] |= set(box.step.shaping_version.tolist())
    assert ended == [[40, 81], [30, 71], [20, 61], [10, 51]]
    assert versions == [{0}, *[{UNCOUNTED_VERSION, 0}] * 3]
    memory.close()


@pytest.mark.extra("envs/toys")
def test_masks_are_obeyed_and_equal_seeds_play_alike():
    shown = []
    for _ in range(2):
        memory, _, boxes = start("toy/masked", 50)
        shown.append(np.stack([box.step.obs["obs"].copy() for box in boxes]))
        memory.close()
    assert np.array_equal(*shown)


def test_a_run_counts_no_episode_that_was_begun_at_random(tmp_path):
    objectives = []
    for steps in (0, 160):
        name = f"x{steps}"
        arguments = [f"--decorrelate-steps={steps}", f"--out={tmp_path}", f"--name={name}", *OPTIONS]
        config, _ = parse_train(
            ["--env=toy/shaped?length=160", "--mode=serial", "--train-for-frames=1500", *arguments]
        )
        assert train(config) == 0
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        objectives.append([member["episodes"] for member in summary["members"]])
    assert all(early >= late > 0 for early, late in zip(*objectives, strict=True)), objectives
