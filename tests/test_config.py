"""Options of a run: every bound accepts its last value and rejects the next one; rules between options."""

import dataclasses
import json
import math
from dataclasses import dataclass, replace

import pytest

from pbt_rl.config import Config, LearnerConfig
from pbt_rl.controllers.hypers import OFF
from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import ConfigError
from pbt_rl.options import allowed, allows, changed, option, validate, walk
from pbt_rl.record.folder import config_from_json, to_json

# Name of an option -> values that it accepts, values that it rejects.
BOUNDS = {
    "nodes": (["", "ray", "ray:auto", "ray:10.0.0.1:6379"], ["dask", "ray:", "ray:a b"]),
    "copy_seconds": ([0.1], [0.0]),
    "num_policies": ([1, 100_000], [0, -1, 100_001]),
    "control": ([0, 0.25, 4], [-1, 1.5]),
    "rows": ([0, 256], [-1]),
    "evaluate_every_frames": ([0, 1], [-1]),
    "algo": (["appo", "a3c", "my_algo:DQN"], ["dqn", "", "my_algo:"]),
    "seed": ([0], [-1]),
    "name": ([None, "a", "run-1_b.c"], ["", "../x", ".x", "a b"]),
    "train_for_frames": ([1], [0]),
    "train_for_seconds": ([0.0, 0.5], [-0.1, math.nan]),
    "actors": ([0], [-1]),
    "units_per_actor": ([1], [0]),
    "envs_per_unit": ([0], [-1]),
    "decorrelate_steps": ([0], [-1]),
    "actor_timeout_seconds": ([0.001], [0.0]),
    "max_actor_restarts": ([0], [-1]),
    "learner_timeout_seconds": ([0.001], [0.0]),
    "save_every_seconds": ([0.0], [-1.0]),
    "save_every_frames": ([0], [-1]),
    "keep_checkpoints": ([1], [0]),
    "final_episodes": ([None, 0], [-1]),
    "track": ([(), ("csv", "my_tracks:Log")], [("tensorboad",), ("csv", "csv"), ("",)]),
    "slots": ([0], [-1]),
    "slot_frames": ([1], [0]),
    "controller": (["pbt", "my_rules:Class"], ["pbd", "replay", "", "my_rules:"]),
    "pbt.ready": (["synchronous"], ["now", ""]),
    "pbt.exploit": (["truncation", "my_rules:Best"], ["ttest", "", "my_rules:"]),
    "pbt.explore": (["factors", "my_rules:Jump"], ["pb3", ""]),
    "pbt.tune": (
        [(), ("gamma", "clip_ratio=0.1:0.2")],
        [("gamma", "gamma=0.9:0.99"), ("clip-ratio", "clip_ratio")],
    ),
    "pbt.prior": ([("gamma=0.9:0.99",)], [("gamma=0.9:0.99", "gamma=0.5:0.6")]),
    "pbt.ready_fraction": ([0.01, 1.0], [0.0, 1.01]),
    "pbt.period_frames": ([1], [0]),
    "pbt.period_seconds": ([0.1], [0.0]),
    "pbt.start_seconds": ([0.0], [-1.0]),
    "hours": ([0.1, None], [0.0, 10_001]),
    "pbt.period_growth": ([1.0], [0.99]),
    "pbt.start_frames": ([0], [-1]),
    "pbt.replace_fraction": ([0.0, 0.5], [-0.01, 0.51]),
    "pbt.replace_gap": ([0.0], [-0.01]),
    "pbt.replace_gap_absolute": ([0.0], [-1e-9]),
    "pbt.t_test_level": ([0.0, 1.0], [-0.01, 1.01]),
    "pbt.mutation_rate": ([0.0, 1.0], [-0.01, 1.01]),
    "pbt.perturb_min": ([1.0, 1.5], [0.99]),
    "pbt.perturb_max": ([1.1], [1.09]),
    "pbt.reset_probability": ([0.0, 1.0], [-0.01, 1.01]),
    "pbt.factors": ([(0.01,), (1.2, 0.8)], [(), (1.2, 0.0)]),
    "pbt.explore_probability": ([None, 0.0, 1.0], [-0.01, 1.01]),
    "pbt.custom_explore": (["", "module:function"], ["nowhere", "module:", ":function"]),
    "pbt.frequencies": ([(), (1,), (1, 2)], [(0, 1), (2, 2)]),
    "pbt.objective_episodes": ([1], [0]),
    "pbt.min_episodes": ([1], [0]),
    "pbt.evaluate_episodes": ([0], [-1]),
    "search.phases": ([1], [0]),
    "search.phase_frames": ([0], [-1]),
    "search.phase_episodes": ([0, 1], [-1]),
    "search.eviction_rate": ([0.0, 0.99], [-0.01, 1.0, math.nan]),
    "search.eta": ([2], [1]),
    "search.resource": ([1], [0]),
    "schedule.member": (["best", "0", "12"], ["", "x", "-1"]),
    "matchup.power": ([0.0], [-0.01]),
    "matchup.elo_k": ([0.01], [0.0]),
    "hypers.learning_rate": ([0.0, 0.02, 1.0], [-1e-9, 1.1, math.nan]),
    "hypers.entropy_coef": ([0.0, 100.0], [-0.01, 101.0]),
    "hypers.value_coef": ([0.0, 100.0], [-0.01, 101.0]),
    "hypers.clip_ratio": ([0.0, OFF], [-0.01, 1.1e9]),
    "hypers.clip_value": ([0.0, OFF], [-0.01, math.inf]),
    "hypers.kl_coef": ([0.0, 1000.0], [-0.01, 1001.0]),
    "hypers.max_grad_norm": ([1e-6, OFF], [0.0, math.inf]),
    "hypers.gamma": ([0.0, 1.0], [-0.01, 1.01, math.nan]),
    "hypers.gae_lambda": ([0.0, 1.0], [-0.01, 1.01]),
    "hypers.adam_beta1": ([0.0, 0.99999], [-0.01, 1.0]),
    "hypers.adam_beta2": ([0.0, 0.999999], [-0.01, 1.0]),
    "hypers.rmsprop_alpha": ([0.0, 0.999999], [-0.01, 1.0]),
    "hypers.vtrace_rho": ([1e-3, OFF], [0.0, math.inf]),
    "hypers.vtrace_c": ([0.0, OFF], [-0.01, math.inf]),
    "hypers.unroll": ([1, 1_000_000], [0, 1_000_001]),
    "hypers.pixel_control_coef": ([0.0, 100.0], [-0.01, 101.0]),
    "hypers.reward_prediction_coef": ([0.0, 100.0], [-0.01, 101.0]),
    "hypers.value_replay_coef": ([0.0, 100.0], [-0.01, 101.0]),
    "hypers.intrinsic_coef": ([0.0, 100.0], [-0.1, 101.0]),
    "hypers.worker_gamma": ([0.0, 1.0], [-0.1, 1.1]),
    "model.encoder": (["auto", "nature", "impala", "mlp", "my_net:small"], ["resnet", "", "my_net:"]),
    "model.core": (["none", "gru", "lstm", "my_net:core"], ["rnn", "", "my_net:"]),
    "model.core_layers": ([1], [0]),
    "model.policy_head": (["linear", "my_net:head"], ["mlp", ""]),
    "model.value_head": (["linear", "my_net:head"], ["mlp", ""]),
    "model.hidden": ([1], [0]),
    "model.layers": ([1], [0]),
    "model.core_size": ([1], [0]),
    "learner.rollout": ([1], [0]),
    "learner.batch": ([1], [0]),
    "learner.minibatches": ([1], [0]),
    "learner.epochs": ([1], [0]),
    "pbt.replace_errors": ([0.0, 2.5], [-0.1]),
    "learner.lr_schedule_kl": ([1e-9], [0.0]),
    "learner.target_kl": ([0.0], [-0.1]),
    "learner.max_policy_lag": ([1], [0]),
    "learner.threads": ([0], [-1]),
    "atari.frame_skip": ([1, 60], [0, 61]),
    "atari.frame_stack": ([1, 16], [0, 17]),
    "atari.repeat_action_probability": ([0.0, 0.99], [-0.1, 1.0]),
    "atari.noop_max": ([0], [-1]),
    "dmlab.gpus": ([(0,), (3, 0)], [(), (0, -1)]),
    "dmlab.dataset": (["dummy"], ["/nowhere"]),
    "dmlab.level_seeds": ([0], [-1]),
    "dmlab.level_cache_gb": ([0.1], [0.0]),
    "dmlab.reward_unit": ([0.1], [0.0]),
}


def config(**values):
    return changed(Config(env="toy/identity"), values)


HERE = {name.replace("-", "_") for name, _, _ in walk(config())}
"""Options of the core and of the extras that there are."""


@pytest.mark.parametrize("name", [name for name in BOUNDS if name in HERE])
def test_an_option_accepts_its_bounds_and_rejects_what_lies_outside(name):
    accepted, rejected = BOUNDS[name]
    written = name.replace("_", "-")
    for value in accepted:
        assert config(**{name: value})
    for value in rejected:
        with pytest.raises(ConfigError, match=f"^--{written} .* cannot be used: give ."):
            config(**{name: value})


def test_every_option_with_bounds_is_in_the_table():
    names = {name.replace("-", "_") for name, metadata, _ in walk(config()) if allowed(metadata)}
    assert names == BOUNDS.keys() & HERE


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("learner.batch", 0, "--learner.batch 0 cannot be used: give 1 or more"),
        ("slots", -1, "--slots -1 cannot be used: give 0 (all) or more"),
        (
            "pbt.factors",
            (1.2, 0.0),
            "--pbt.factors 1.2 0.0 cannot be used: give one or more numbers, each above 0",
        ),
        ("pbt.factors", (), "--pbt.factors (none) cannot be used: give one or more numbers, each above 0"),
        (
            "pbt.frequencies",
            (2, 2),
            "--pbt.frequencies 2 2 cannot be used: give one or more different numbers, each 1 or more",
        ),
        ("search.eviction_rate", 1.0, "--search.eviction-rate 1.0 cannot be used: give at least 0, below 1"),
        ("hypers.gamma", 2.0, "--hypers.gamma 2.0 cannot be used: give 0 to 1"),
        (
            "model.encoder",
            "resnet",
            "--model.encoder resnet cannot be used: give auto, nature, impala, a3c, mlp or module:factory",
        ),
        ("name", "", "--name '' cannot be used: give letters, digits, '.', '_' and '-', at most 200"),
    ],
)
def test_a_message_names_option_value_and_remedy(name, value, message):
    with pytest.raises(ConfigError) as error:
        config(**{name: value})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ({"pbt.perturb_min": 2.0}, ConfigError, "--pbt.perturb-max 1.5 .* at least --pbt.perturb-min, 2"),
        pytest.param(
            {"matchup.scheme": "self", "matchup.objective": "elo"}, ConfigError, "--matchup.objective elo"
        ),
        ({"algo": "a3c", "learner.lr_schedule": "kl-adaptive"}, ConfigError, "a3c measures no divergence"),
        ({"env_option": ("length",)}, EnvSetupError, "--env-option length cannot be used"),
        (
            {"atari.max_frames_per_episode": 4},
            EnvSetupError,
            "--atari.max-frames-per-episode 4 .* 4, or no game",
        ),
    ],
)
def test_options_that_contradict_each_other_are_rejected(values, kind, message):
    with pytest.raises(kind, match=message):
        config(**values)


def test_a_config_survives_json():
    written = config(**{"pbt.tune": ("gamma",), "pbt.factors": (2.0,), "slots": 2, "controller": "my:Class"})
    assert config_from_json(json.loads(json.dumps(to_json(written)))) == written


def test_the_config_of_an_older_version_is_one_clear_error():
    old = to_json(config())
    old["resident"] = old.pop("slots")
    with pytest.raises(ConfigError, match="unknown fields: resident; was it written by another version"):
        config_from_json(old)


# -- metadata -----------------------------------------------------------------------------------------------


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
    with pytest.raises(ConfigError, match=r"^--inner\.rate 1.0 cannot be used: give above 0, below 1$"):
        validate(Outer(inner=Inner(1.0)))
    with pytest.raises(ConfigError, match=r"^--kind c cannot be used: give a or b$"):
        validate(Outer(kind="c"))
    with pytest.raises(ConfigError, match=r"^--kind a:b cannot"):  # no form of one's own
        validate(Outer(kind="a:b"))


@pytest.mark.parametrize(
    ("names", "said"), [(("a",), "a"), (("a", "b"), "a or b"), (("a", "b", "c"), "a, b or c")]
)
def test_choices_are_listed_however_few_there_are(names, said):
    assert allowed({"choices": lambda: names}) == said


def test_an_option_without_metadata_allows_anything():
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


def test_optimizer_steps_of_a_batch():
    learner = LearnerConfig(epochs=3, minibatches=4)
    assert Config("toy/identity", learner=learner).optimizer_steps_of_batch == 12
    assert Config("toy/identity", learner=learner, algo="a3c").optimizer_steps_of_batch == 1
