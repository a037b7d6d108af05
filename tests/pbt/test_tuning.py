import pytest

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.hypers import Hypers, hyper_table, shaping_table
from pbt_rl.pbt.tuning import chosen

TABLE = hyper_table(Hypers()) | shaping_table({"life_lost": -1.0, "bonus": 0.0})


def test_no_name_leaves_the_table_as_it_is():
    assert chosen(TABLE, ()) == dict(TABLE)


def test_only_named_values_are_tuned_in_the_tables_order():
    table = chosen(TABLE, ("shaping.bonus", "gamma"))
    assert [name for name, spec in table.items() if spec.tuned] == ["gamma", "shaping.bonus"]
    assert list(table) == list(TABLE)
    assert chosen(table, ("shaping.bonus", "gamma")) == table


def test_bounds_of_the_users_own():
    spec = chosen(TABLE, ("learning_rate=1e-4:5e-4",))["learning_rate"]
    assert (spec.low, spec.high, spec.tuned, spec.default) == (1e-4, 5e-4, True, 2.5e-4)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("learning_rate=", "LOW:HIGH"),
        ("learning_rate=1e-4", "LOW:HIGH"),
        ("learning_rate=5e-4:1e-4", "LOW:HIGH"),
        ("learning_rate=nan:1e-3", "LOW:HIGH"),
        ("learning_rate=1e-5:1e-4", r"0.00025 \(--hypers.learning-rate\), is outside"),
        ("learning_rate=0:1e-3", "it must stay within 1e-06..0.01"),
        ("gamma=0.9:1", "it must stay within 0.8..0.9999"),
        ("learning-rate=1:2", "did you mean learning_rate"),
        ("zzz", "known names are .*shaping.bonus"),
    ],
)
def test_entries_that_cannot_be_used(entry, said):
    with pytest.raises(ConfigError, match=f"--pbt.tune {entry} cannot be used: .*{said}"):
        chosen(TABLE, (entry,))
