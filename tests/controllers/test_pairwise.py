import json
from dataclasses import replace
from random import Random

import pytest

from pbt_rl.controllers.decisions import Continue, Replace
from pbt_rl.controllers.explore_published import PairwiseLearning
from pbt_rl.controllers.hypers import HyperSpec, choice_spec
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.errors import ConfigError
from tests.helpers.populations import OFTEN, build, member, report

TABLE = {
    "a": HyperSpec("a", 1.0, 0.0, 10.0, "linear", tuned=True),
    "n": HyperSpec("n", 3, 1, 9, "integer", tuned=True),
    "act": choice_spec("act", ("relu", "elu", "tanh"), "relu"),
    "fixed": HyperSpec("fixed", 5.0, 0.0, 9.0, "linear", tuned=False),
}
TUNED = {name: spec for name, spec in TABLE.items() if spec.tuned}


def test_it_moves_as_the_equations_say():
    """Against the equations, draw by draw: v <- r1 v + r2 (h_w - h_l), h <- h_l + v."""
    rule, rng, again = PairwiseLearning({"a": TABLE["a"]}, probability=0.0), Random(4), Random(4)
    own, velocity = 2.0, 0.0
    for better in (6.0, 7.0, 1.0, 9.5, 9.9):
        found = rule.learn(3, {"a": own}, {"a": better}, rng)["a"]
        again.random()  # whether it is drawn anew
        r2 = again.random()
        velocity = again.random() * velocity + r2 * (better - own)
        own = min(max(own + velocity, 0.0), 10.0)
        assert found == pytest.approx(own)
    assert rule.learn(8, {"a": 2.0}, {"a": 2.0}, rng)["a"] == 2.0, "another member has a velocity of its own"


def test_values_stay_within_their_bounds_and_kinds():
    rule, rng = PairwiseLearning(TUNED), Random(0)
    own = {"a": 9.9, "n": 2.0, "act": 0.0, "fixed": 5.0}
    better = {"a": 10.0, "n": 9.0, "act": 2.0, "fixed": 6.0}
    seen = [rule.learn(0, own, better, rng) for _ in range(300)]
    assert all(0 <= v["a"] <= 10 and v["n"] in range(1, 10) and v["fixed"] == 6.0 for v in seen)
    assert {v["act"] for v in seen} == {0.0, 1.0, 2.0}
    assert rule.mutate(own, rng) == own
    drawn = PairwiseLearning({"a": TABLE["a"]}, probability=1.0)
    values = [drawn.learn(0, {"a": 1.0}, {"a": 1.0}, rng)["a"] for _ in range(200)]
    assert min(values) < 2
    assert max(values) > 8


PBT = replace(OFTEN, replace_fraction=0.25, explore="pairwise")


def test_as_an_option_the_worst_learn_from_the_best_and_a_saved_state_goes_on():
    controller, other = build(PBT, TABLE, 0, 8), build(PBT, TABLE, 1, 8)
    values = controller.initial(8)
    rng, pairs = Random(1), 0
    for now in range(1, 9):
        members = [member(i, (rng.gauss(i, 3),), frames=100 * now, values=values[i]) for i in range(8)]
        restore_state(other, json.loads(json.dumps(save_state(controller))))
        decisions = controller.observe(report(100 * now, members))
        assert other.observe(report(100 * now, members)) == decisions
        for d in decisions:
            assert isinstance(d, Replace | Continue), "nobody changes without a pair"
            if isinstance(d, Replace):
                pairs += 1
                values[d.member] = d.values
    assert pairs == 16
    assert save_state(controller)["explore"]["_velocity"]


def test_a_function_of_the_users_own_is_refused():
    with pytest.raises(ConfigError, match=r"--pbt.custom-explore .* pairwise"):
        build(replace(PBT, custom_explore="tests.helpers.toys:f"), TABLE, 0, 8)
