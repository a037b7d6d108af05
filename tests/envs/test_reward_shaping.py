"""Flat and nested reward shaping, and the search for the object that receives it."""

import math

import gymnasium
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.envs.shaping import default_shaping, find_interface, flatten, unflatten
from pbt_rl.envs.toy import Identity, Shaped
from pbt_rl.errors import EnvSetupError

NAME = st.text(st.characters(exclude_characters=".", codec="ascii"), min_size=1, max_size=5)
NUMBER = st.floats(-1e30, 1e30)
NESTED = st.recursive(
    NUMBER, lambda inner: st.dictionaries(NAME, inner, min_size=1, max_size=3), max_leaves=8
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAME, NESTED, max_size=3))
def test_unflatten_undoes_flatten(nested):
    assert unflatten(flatten(nested)) == nested


def test_flatten_joins_names_with_dots_and_gives_floats():
    flat = flatten({"weapon": {"shotgun": 1, "bfg": {"hit": torch.tensor(2.5)}}, "death": -1})
    assert flat == {"weapon.shotgun": 1.0, "weapon.bfg.hit": 2.5, "death": -1.0}
    assert all(type(value) is float for value in flat.values())


@pytest.mark.parametrize(
    "value", [True, "1", None, [1.0, 2.0], math.nan, math.inf, 1.1e30, pytest.param(10**400, id="huge")]
)
def test_a_value_that_is_no_small_number_is_refused(value):
    with pytest.raises(EnvSetupError, match=r"'hit'.*1e\+30"):
        flatten({"weapon": {"hit": value}})


@pytest.mark.parametrize("name", ["a.b", "", 3])
def test_a_name_that_could_be_a_path_is_refused(name):
    with pytest.raises(EnvSetupError, match="without a dot"):
        flatten({name: 1.0})


def test_the_interface_is_found_below_wrappers():
    inner = Shaped()
    wrapped = gymnasium.wrappers.TimeLimit(gymnasium.wrappers.RecordEpisodeStatistics(inner), 5)
    assert find_interface(wrapped) is inner
    assert default_shaping("m:f", wrapped) == {"bait": 1.2}


def test_an_environment_without_the_interface_has_no_shaping():
    assert find_interface(Identity()) is None
    assert default_shaping("m:f", gymnasium.wrappers.TimeLimit(Identity(), 5)) == {}
