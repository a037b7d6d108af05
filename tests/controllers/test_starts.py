import json
from random import Random

import pytest

from pbt_rl.config import Hypers
from pbt_rl.controllers.controllers import PbtController
from pbt_rl.controllers.explore import Perturb
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.controllers.starts import Started, read_rows
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.controllers.tuning import chosen
from pbt_rl.errors import ConfigError

TABLE = chosen(hyper_table(Hypers()), ("learning_rate", "unroll"))


def controller():
    tuned = {name: spec for name, spec in TABLE.items() if spec.tuned}
    return PbtController(TABLE, 3, ready=None, exploit=None, explore=Perturb(tuned, 1.0, 1.1, 1.5))


def test_given_values_lie_over_the_controllers():
    rows = read_rows(("gamma=1", "", "learning_rate=1e-3, unroll=7"), TABLE, 4)
    plain, started = controller().initial(4), Started(controller(), rows).initial(4)
    assert started == [
        plain[0] | {"gamma": 1.0},
        plain[1],
        plain[2] | {"learning_rate": 1e-3, "unroll": 7.0},
        plain[3],
    ]


def test_its_state_is_the_controllers():
    one, other = (Started(controller(), ({"gamma": 1.0},)) for _ in range(2))
    one.initial(3)
    restore_state(other, json.loads(json.dumps(save_state(one))))
    assert other.controller._rng.getstate() == one.controller._rng.getstate() != Random(3).getstate()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (("", "", ""), r"\b3 members .*\b2\b"),
        (("learning_rat=1",), "learning_rate"),
        (("nowhere.csv,x=1",), "NAME=VALUE"),
        (("learning_rate=fast",), "number"),
        (("learning_rate=nan",), "number"),
        (("learning_rate=0.5",), "1e-06 to 0.01; --pbt.tune"),
        (("gamma=1.1",), "0 to 1$"),
        (("unroll=2.5",), "2 to 1024"),
    ],
)
def test_rows_that_cannot_be_used(rows, said):
    with pytest.raises(ConfigError, match=f"--pbt.start-values .*{said}"):
        read_rows(rows, TABLE, 2)
