"""The registry of algorithms, and a third one that is added in one file (tests/helpers/third_algorithm.py)."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from pbt_rl.algos import lookup
from pbt_rl.algos.a3c import A3C
from pbt_rl.algos.appo import APPO
from pbt_rl.algos.fun import FUN
from pbt_rl.algos.unreal.unreal import UNREAL
from tests.helpers.packs import HYPERS as H
from tests.helpers.packs import batch_of, learn, make_pack, make_rollouts, settings

THIRD = "tests.helpers.third_algorithm:AWR"


def test_registered_algorithms_are_loaded_by_name():
    assert lookup.names()[:2] == ("appo", "a3c")
    assert [lookup.load(name) for name in lookup.names()[:2]] == [APPO, A3C]
    for name, entry in lookup.ALGORITHMS.items():
        assert lookup.load(name).hypers is entry.hypers
    assert (APPO.measures_kl, APPO.learns_per_vector_env) == (True, False)
    assert (A3C.measures_kl, A3C.learns_per_vector_env) == (False, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dqn", "'dqn'"),
        ("no_such_module:X", "'no_such_module:X' .*ModuleNotFoundError"),
        ("tests.helpers.third_algorithm:DQN", "attribute 'DQN'"),
        ("tests.helpers.third_algorithm:NOT_ONE", "NOT_ONE.* object"),
    ],
)
def test_a_name_that_cannot_be_loaded_gives_one_clear_error(name, message):
    with pytest.raises(ValueError, match=f"algorithm .*{message}"):
        lookup.load(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auxiliary": "x"}, "auxiliary"),
        ({"auxiliary": UNREAL.auxiliary, "backward": FUN.backward}, "no effect with backward"),
    ],
)
def test_fields_that_cannot_be_used_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(A3C, **changes).check()


def test_names_are_known_without_torch():
    code = "import sys; from pbt_rl.algos import lookup; lookup.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_a_third_algorithm_learns_and_reports_its_own_statistic(packing):
    pack = make_pack([H, H | {"value_coef": 0.0}], packing=packing, algo=THIRD)
    before = pack.state["param"].clone()
    stats = learn(pack, batch_of(make_rollouts([0, 1]), 2), settings(algo=THIRD))
    assert (pack.state["param"] != before).any(1).all()
    weights = torch.cat([s.values["regression_weight"] for s in stats if 0 in s.slots])
    assert ((weights > 1.0) & (weights < 20.0)).all(), "the mean of exp() of mean 0 is above 1"
    assert all(
        set(s.values) == set(lookup.load(THIRD).statistics) | {"grad_norm", "learning_rate_in_use"}
        for s in stats
    )
