"""Options of a run: every bound accepts its last value and rejects the next one; rules between options."""

import dataclasses
import json
import math
from dataclasses import dataclass, replace

import pytest

from pbt_rl.config import Config, LearnerConfig
from pbt_rl.errors import ConfigError, EnvSetupError
from pbt_rl.options.declare import changed, option, table
from pbt_rl.options.values import allowed, allows, displayed, validate
from pbt_rl.record.folder import config_from_json, to_json

NAMES = {
    "nodes": (["", "ray", "ray:auto", "ray:10.0.0.1:6379"], ["dask", "ray:", "ray:a b"]),
    "algo": (["appo", "a3c", "my_algo:DQN"], ["dqn", "", "my_algo:"]),
    "name": ([None, "a", "run-1_b.c"], ["", "../x", ".x", "a b"]),
    "track": ([(), ("csv", "my_tracks:Log")], [("tensorboad",), ("csv", "csv"), ("",)]),
    "controller": (["pbt", "my_rules:Class"], ["pbd", "replay", "", "my_rules:"]),
    "pbt.ready": (["synchronous"], ["now", ""]),
    "pbt.exploit": (["truncation", "my_rules:Best"], ["ttest", "", "my_rules:"]),
    "pbt.explore": (["factors", "my_rules:Jump"], ["pb3", ""]),
    "pbt.tune": (
        [(), ("gamma", "clip_ratio=0.1:0.2")],
        [("gamma", "gamma=0.9:0.99"), ("clip-ratio", "clip_ratio")],
    ),
    "pbt.prior": ([("gamma=0.9:0.99",)], [("gamma=0.9:0.99", "gamma=0.5:0.6")]),
    "pbt.factors": ([(0.01,), (1.2, 0.8)], [(), (1.2, 0.0)]),
    "pbt.custom_explore": (["", "module:function"], ["nowhere", "module:", ":function"]),
    "pbt.frequencies": ([(), (1,), (1, 2)], [(0, 1), (2, 2)]),
    "schedule.member": (["best", "0", "12"], ["", "x", "-1"]),
    "model.encoder": (["auto", "nature", "impala", "mlp", "my_net:small"], ["resnet", "", "my_net:"]),
    "model.core": (["none", "gru", "lstm", "my_net:core"], ["rnn", "", "my_net:"]),
    "model.hidden": ([(1,), (256, 128)], [(), (256, 0)]),
    "pbt.perturb_max": ([1.1, 1.5], [0.5, math.nan]),
    "model.policy_head": (["linear", "my_net:head"], ["mlp", ""]),
    "model.value_head": (["linear", "my_net:head"], ["mlp", ""]),
    "dmlab.gpus": ([(0,), (3, 0)], [(), (0, -1)]),
    "dmlab.dataset": (["dummy"], ["/nowhere"]),
}
"""Option that is no number -> values that it accepts, values that it rejects."""
LIMITS = {"at_least": (0, -1), "above": (1, 0), "at_most": (0, 1), "below": (-1, 0)}
"""Bound -> steps from it to a value that is accepted, and to one that is not."""


def config(**values):
    return changed(Config(env="toy/identity"), values)


KNOWN = {one.field: (one.metadata, one.of(config())) for one in table(config()).values()}


def bounds(name):
    """Values at the bounds of a number as its help (frozen in options.txt) has them: accepted, rejected."""
    metadata, value = KNOWN[name]
    step = 1 if isinstance(value, int) else 1e-9 * max(1, *(abs(metadata.get(bound, 0)) for bound in LIMITS))
    found = [(metadata[bound], steps) for bound, steps in LIMITS.items() if bound in metadata]
    return [[bound + step * steps[i] for bound, steps in found] for i in (0, 1)]


@pytest.mark.parametrize("name", [name for name, (metadata, _) in KNOWN.items() if allowed(metadata)])
def test_an_option_accepts_its_bounds_and_rejects_what_lies_outside(name):
    accepted, rejected = NAMES.get(name) or bounds(name)
    for value in accepted:
        assert config(**{name: value})
    assert rejected
    for value in rejected:
        with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')} "):
            config(**{name: value})


@pytest.mark.parametrize("name", ["hypers.gamma", "pbt.replace_fraction", "hypers.max_grad_norm"])
def test_what_is_no_number_is_within_no_bounds(name):
    for value in (math.nan, math.inf):
        with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')} {value} "):
            config(**{name: value})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pbt.perturb_min": 2.0}, "--pbt.perturb-max 1.5 .* --pbt.perturb-min, 2"),
        ({"matchup.scheme": "self", "matchup.objective": "elo"}, "--matchup.objective elo"),
        ({"algo": "a3c", "learner.lr_schedule": "kl-adaptive"}, "a3c"),
        ({"env_option": ("length",)}, "--env-option length"),
        ({"atari.max_frames_per_episode": 4}, "--atari.max-frames-per-episode 4 "),
    ],
)
def test_options_that_contradict_each_other_are_rejected(values, message):
    with pytest.raises((ConfigError, EnvSetupError), match=message):
        config(**values)


def test_a_config_survives_json():
    written = config(**{"pbt.tune": ("gamma",), "pbt.factors": (2.0,), "slots": 2, "controller": "my:Class"})
    assert config_from_json(json.loads(json.dumps(to_json(written)))) == written


@dataclass(frozen=True)
class Inner:
    rate: float = option(0.5, above=0, below=1)


@dataclass(frozen=True)
class Outer:
    kind: str = option("a", choices=lambda: ("a", "b"))
    free: str = "anything"
    inner: Inner = dataclasses.field(default_factory=Inner)


def test_one_loop_checks_nested_options():
    validate(Outer())
    with pytest.raises(ConfigError, match=r"^--inner\.rate 1.0 .*0.* 1$"):
        validate(Outer(inner=Inner(1.0)))
    with pytest.raises(ConfigError, match=r"^--kind c .*a.* b$"):
        validate(Outer(kind="c"))
    with pytest.raises(ConfigError, match=r"^--kind a:b cannot"):  # no form of one's own
        validate(Outer(kind="a:b"))
    assert allows({}, object())
    assert allowed({}) == ""


def test_only_what_may_be_old_is_learned_from_around_the_begin_of_its_batch():
    default = Config("toy/identity")
    assert (default.clips_around_batch, default.uses_vtrace) == (True, False)
    for mode in ("sync", "serial"):
        fresh = replace(default, mode=mode)
        assert (fresh.clips_around_batch, fresh.uses_vtrace) == (False, False)
    around_acting = replace(default, learner=replace(default.learner, proximal=False))
    assert (around_acting.clips_around_batch, around_acting.uses_vtrace) == (False, True)
    assert not replace(default, algo="a3c").clips_around_batch
    learner = LearnerConfig(epochs=3, minibatches=4)
    assert Config("toy/identity", learner=learner).optimizer_steps_of_batch == 12
    assert Config("toy/identity", learner=learner, algo="a3c").optimizer_steps_of_batch == 1


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("envs-per-vector-env", 0, "planned"),
        ("envs-per-vector-env", 2, "2"),
        ("train-for-frames", 40_000_000, "40,000,000"),
        ("track", (), "none"),
        ("track", ("csv", "wandb"), "csv wandb"),
        ("init-strict", True, "True"),
    ],
)
def test_a_value_is_shown_as_it_is_meant(option, value, text):
    assert displayed(table(Config)[option].metadata, value) == text
