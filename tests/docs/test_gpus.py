"""The plans of docs/reference/gpus.md are those that the planner returns."""

import re

import pytest

from pbt_rl.config.command import parse_train
from pbt_rl.envs.lookup import probe
from pbt_rl.plan import Machine, make_plan
from pbt_rl.run.limits import pack_bytes
from tests.helpers.runs import ROOT

PAGE = (ROOT / "docs/reference/gpus.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (\d) \| (.*?) \|(.*)\|$", PAGE, re.MULTILINE)


def test_there_are_plans():
    assert len(ROWS) >= 5


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_a_plan_is_that_of_the_planner(row):
    pytest.importorskip("ale_py")
    cores, gpus, options, shown = row
    words = options.replace("with", "").replace("`", "").split()
    config = parse_train(["--env=atari/pong", "--num-policies", *words]).with_declared_hypers()
    spec = probe(config.env, config.env_options)
    plan = make_plan(config, Machine(int(cores), int(gpus)), 1)
    assert len(plan.packs) == int(gpus)
    pack = plan.packs[0]
    found = pack_bytes(config, spec, pack)
    sizes = (pack.slots, pack.actors, pack.rows)
    members, *planned, device, host = (int(cell.replace(",", "")) for cell in shown.split("|"))
    assert (members, *planned) == (len(pack.members), *sizes)
    of_device = found.rollouts + found.replay + found.weights + found.update
    of_host = found.mailboxes + found.environments + found.actors + found.parked
    assert [device, host] == pytest.approx([of_device / 2**20, of_host / 2**20], rel=0.02)
