import math

import pytest

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.hypers import Hypers, HyperSpec, hyper_table, shaping_table


def test_clamp():
    spec = HyperSpec("x", 1.0, -1.0, 2.5, "linear", tuned=True)
    assert [spec.clamp(v) for v in (-9.0, 0.3, 9.0, math.inf)] == [-1.0, 0.3, 2.5, 2.5]
    with pytest.raises(ValueError, match=r"x is NaN.*-1\.\.2\.5"):
        spec.clamp(math.nan)


def test_integers_are_clamped_to_whole_numbers_inside_the_bounds():
    spec = HyperSpec("n", 3, 2.5, 9.5, "integer", tuned=True)
    assert [spec.clamp(v) for v in (0, 2.6, 4.4, 9.5, math.inf)] == [3, 3, 4, 9, 9]


def test_a_default_out_of_bounds_is_refused_with_the_option_and_the_bounds():
    with pytest.raises(ConfigError, match=r"--hypers.learning-rate 0.5 .*1e-06..0.01"):
        Hypers(learning_rate=0.5)
    with pytest.raises(ValueError, match="gamma"):
        Hypers(gamma=math.nan)


def test_tables():
    table = hyper_table(Hypers(gamma=0.9))
    assert table["gamma"].default == 0.9
    shaping = shaping_table({"up": 2.0, "down": -2.0, "off": 0.0})
    bounds = {name: (spec.low, spec.high) for name, spec in shaping.items()}
    assert bounds == {
        "shaping.up": (0.02, 200.0),
        "shaping.down": (-200.0, -0.02),
        "shaping.off": (-1.0, 1.0),
    }
