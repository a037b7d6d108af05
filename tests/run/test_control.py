"""A control group: whatever the controller, it decides as if the controls were not there."""

import json
import random

import pytest

from pbt_rl.config import Config, number_of_controls
from pbt_rl.controllers.decisions import Continue, Evaluate, Replace
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.errors import ConfigError
from pbt_rl.run.resolved import build_controller, value_table
from tests.helpers.populations import member, report
from tests.helpers.serial import run

OFTEN = {"period_frames": 100, "start_frames": 0, "min_episodes": 1, "replace_gap": 0.0}
KINDS = {
    "pbt": {"pbt": PbtConfig(**OFTEN)},
    "t-test": {"pbt": PbtConfig(**OFTEN, exploit="t-test", t_test_level=0.9)},
    "asynchronous": {"pbt": PbtConfig(**OFTEN, ready="asynchronous", exploit="binary-tournament")},
    "backtrack": {"pbt": PbtConfig(**OFTEN, exploit="backtrack")},
    "pb2": {"pbt": PbtConfig(**OFTEN, explore="pb2")},
    "mf-pbt": {"pbt": PbtConfig(**OFTEN), "controller": "mf-pbt"},
    "start values": {"pbt": PbtConfig(**OFTEN, start_values=("learning_rate=0.01",))},
}


def build(control, members=8, **options):
    frames = {"num_policies": members, "train_for_frames": 100_000}
    config = Config(env="toy/identity", control=control, **frames, **options)
    return build_controller(config, value_table(config, {}), 0), config


def reports(total, values, rounds=12, seed=1):
    """Reports in which the controls have by far the best and the worst scores."""
    rng = random.Random(seed)
    generations = [0] * total
    for frames in range(150, 150 * rounds + 1, 150):
        members = []
        for m in range(total):
            scores = [rng.gauss(1000 * (-1) ** m if m >= 8 else m, 1) for _ in range(5)]
            members.append(member(m, scores, frames=frames, generation=generations[m], values=values[m]))
        yield report(frames, members), generations


def decided(controller, total, seen):
    """Decisions of a controller over the reports, with the members' values and generations followed."""
    values = [dict(v) for v in controller.initial(total)]
    made = []
    for shown, generations in reports(16, (values * 2)[:16]):
        members = tuple(m for m in shown.members if m.member < seen)
        decisions = controller.observe(report(shown.frames, members))
        for decision in decisions:
            if getattr(decision, "values", None):
                values[decision.member] = dict(decision.values)
                generations[decision.member] += 1
        made.append(decisions)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_controller_decides_as_if_there_were_no_controls(kind):
    alone, _ = build(0, **KINDS[kind])
    controlled, config = build(8, **KINDS[kind])
    with_controls = decided(controlled, config.members, 16)
    assert with_controls == decided(alone, 8, 8)
    assert any(isinstance(d, Replace) for decisions in with_controls for d in decisions)


@pytest.mark.parametrize("control", [3, 8, 11])
def test_controls_begin_as_the_population_does_and_further_ones_are_drawn(control):
    pbt = PbtConfig(tune=("learning_rate=1e-4:1e-2",))
    controller, config = build(control, pbt=pbt)
    alone, _ = build(0, pbt=pbt)
    values = controller.initial(config.members)
    assert values[:8] == alone.initial(8)
    assert values[8 : 8 + min(control, 8)] == values[: min(control, 8)]
    rates = {v["learning_rate"] for v in values}
    assert len(rates) == max(8, control)
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)


def test_controls_are_evaluated_when_the_population_is_and_so_after_a_restart():
    pbt = PbtConfig(**OFTEN, evaluate_episodes=2)
    controller, config = build(2, members=2, pbt=pbt)
    values = controller.initial(config.members)

    def shown(frames, episodes):
        members = (member(m, [1.0] * episodes, frames=frames, values=values[m]) for m in range(4))
        return report(frames, [*members])

    begun = controller.observe(shown(100, 0))
    assert [type(d) for d in begun] == [Evaluate] * 4
    again, _ = build(2, members=2, pbt=pbt)
    again.initial(config.members)
    restore_state(again, save_state(controller))
    ended = again.observe(shown(120, 2))
    assert [d.member for d in ended] == [0, 1, 2, 3]
    assert [type(d) for d in ended[2:]] == [Continue] * 2
    assert again.observe(shown(130, 2)) == []


def test_a_share_is_of_the_population_and_rounded_up():
    assert number_of_controls(0.07, 100) == 7, "0.07 * 100 is above 7"
    assert [number_of_controls(c, 10) for c in (0, 0.01, 0.25, 0.5, 1, 4)] == [0, 1, 3, 5, 1, 4]


@pytest.mark.parametrize(
    ("control", "options"),
    [
        (2, {"controller": "random"}),
        (2, {"controller": "asha"}),
        (2, {"pbt": PbtConfig(enabled=False)}),
        (1.5, {}),
    ],
)
def test_where_controls_mean_nothing_they_are_refused(control, options):
    with pytest.raises(ConfigError, match="--control"):
        build(control, **options)


def test_the_best_member_of_a_checkpoint_is_not_a_control(tmp_path):
    options = {"env": "toy/identity", "mode": "serial", "num-policies": 2, "control": 8}
    folder = run(tmp_path, "controlled", options, train_for_frames=4000, save_every_frames=500)
    states = [json.loads(path.read_text()) for path in folder.rglob("state.json")]
    assert states
    assert {state["best_member"] for state in states} <= {0, 1}
