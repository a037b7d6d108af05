"""An environment that its author edited between training and what comes after it."""

import math
from dataclasses import replace

import pytest

from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.record.environment_check import check_environment
from pbt_rl.record.journal import Journal

NUMBERS, PICTURE = ArraySpec((2,), "float32"), ArraySpec((3, 8, 8), "uint8")
SPEC = EnvSpec("m:f", {"obs": NUMBERS}, ActionSpec((2,)), frame_skip=1, shaping={"a": 1.0, "b": 0.5})
BOX = replace(SPEC, action=ActionSpec((), (-1.0,), (1.0,)))


def told(folder, was, now, *, trains):
    """What is wrong, and what is noted."""
    journal, noted = Journal(folder / "journal.jsonl"), []
    journal.start({}, 0, was)
    journal.close()
    try:
        check_environment(folder, now, noted.append, trains=trains)
    except ConfigError as error:
        return str(error), noted
    return "", noted


@pytest.mark.parametrize(
    ("was", "now", "said", "trains"),
    [
        (
            SPEC,
            replace(SPEC, obs={"obs": ArraySpec((3,), "float32")}),
            "'obs' is (3,) float32, was (2,) float32",
            False,
        ),
        (
            SPEC,
            replace(SPEC, obs={"obs": ArraySpec((2,), "uint8")}),
            "'obs' is (2,) uint8, was (2,) float32",
            False,
        ),
        (SPEC, replace(SPEC, obs={"x": NUMBERS}), "was (2,) float32; observation 'x' ", True),
        (SPEC, replace(SPEC, obs={"obs": NUMBERS, "x": PICTURE}), "'x' is (3, 8, 8) uint8, ", False),
        (SPEC, replace(SPEC, action=ActionSpec((4,))), "4 choices, were 2 choices", False),
        (SPEC, BOX, "1 numbers, were 2 choices", False),
        (SPEC, replace(SPEC, shaping={"a": 1.0, "c": 1.0}), "shaping b is gone; shaping c ", True),
        (SPEC, replace(SPEC, agents=2), "agents are 2", True),
    ],
)
def test_what_networks_do_not_fit_any_more_is_named(tmp_path, was, now, said, trains):
    error, _ = told(tmp_path, was, now, trains=trains)
    assert said in error
    assert error.endswith(f"pbt-rl train --env m:f --init-from {tmp_path} --init-strict no")


@pytest.mark.parametrize(
    ("now", "trains"),
    [
        (SPEC, True),
        (replace(SPEC, obs={"x": NUMBERS}), False),
        (replace(SPEC, shaping={"c": 1.0}), False),
        (replace(SPEC, shaping={"a": 3.0, "b": 0.5}, frame_skip=4, notes=("x",)), True),
    ],
)
def test_what_does_not_matter_is_taken(tmp_path, now, trains):
    assert told(tmp_path, SPEC, now, trains=trains) == ("", [])


def test_other_bounds_of_actions_are_noted(tmp_path):
    error, noted = told(tmp_path, BOX, replace(BOX, action=ActionSpec((), (-2.0,), (2.0,))), trains=False)
    assert not error
    assert "bounds" in noted[0]


def test_a_run_without_a_journal_is_passed_over(tmp_path):
    check_environment(tmp_path / "none", SPEC, print, trains=False)


@pytest.mark.parametrize("spec", [{"obs": {"obs": {"shape": 3}}}, {"obs": {}, "action": {"low": 5}}])
def test_a_damaged_journal_is_passed_over(tmp_path, spec):
    assert told(tmp_path, spec, SPEC, trains=False) == ("", [])


def test_missing_bounds_are_unlimited(tmp_path):
    unlimited = replace(BOX, action=ActionSpec((), (-math.inf,), (math.inf,)))
    assert told(tmp_path, unlimited, unlimited, trains=False) == ("", [])
