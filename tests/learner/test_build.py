"""What of a network's options is refused before a run starts."""

import threading
from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from pbt_rl.algos.distributions import Categorical, DiagonalGaussian
from pbt_rl.config import Config, LearnerConfig, ModelConfig
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec
from pbt_rl.envs.spaces import obs_leaves
from pbt_rl.errors import ConfigError
from pbt_rl.learner import build
from pbt_rl.learner.build import build_distribution, build_net, compute_dtype, initialised_net, normalized_obs
from pbt_rl.learner.own_loss import check_network

OBS = {"obs": ArraySpec((4,), "float32")}
DISCRETE = EnvSpec("toy/x", OBS, ActionSpec(nvec=(3, 2)))
BOTH = EnvSpec("toy/x", OBS, ActionSpec((3,), (-1.0,), (2.0,)))


IMAGE = EnvSpec("toy/x", {"obs": ArraySpec((4, 84, 84), "uint8")}, ActionSpec(nvec=(3,)))


class OneDtype(nn.Module):
    """An encoder whose layer takes no float32 numbers beside bfloat16 weights."""

    def __init__(self, shapes):
        super().__init__()
        self.layer = nn.Bilinear(4, 4, 8)

    def forward(self, obs):
        return self.layer(obs["obs"], obs["obs"])


def test_the_distribution_is_that_of_the_actions_and_options():
    from pbt_rl.algos.distributions import Hybrid, TanhGaussian

    clipped = DiagonalGaussian(1, (-1.0,), (2.0,), (0.5,), (1.5,))
    assert build_distribution(BOTH, ModelConfig()) == Hybrid(Categorical((3,)), clipped)
    tanh = ModelConfig(action_bounds="tanh")
    assert build_distribution(BOTH, tanh) == Hybrid(Categorical((3,)), TanhGaussian((-1.0,), (2.0,)))
    assert build_distribution(DISCRETE, ModelConfig()) == Categorical((3, 2))


@pytest.mark.parametrize(
    "options", [{"action_bounds": "tanh"}, {"action_std": "state"}, {"initial_std": (0.5,)}]
)
def test_options_of_continuous_actions_are_refused_without_any(options):
    with pytest.raises(
        ConfigError, match=r"--model\.(action-bounds tanh|action-std state|initial-std 0.5) .*toy/"
    ):
        build_net(DISCRETE, ModelConfig(encoder="mlp", **options))
    build_net(BOTH, ModelConfig(encoder="mlp", **options))


def test_a_tanh_without_a_bound_is_refused():
    action = ActionSpec(low=(-1.0, 0.0, -inf), high=(1.0, inf, inf))
    free = replace(BOTH, action=action)
    with pytest.raises(ConfigError, match=r"--model\.action-bounds tanh .*\b2 .*toy/x.*\b3 "):
        build_net(free, ModelConfig(encoder="mlp", action_bounds="tanh"))
    build_net(free, ModelConfig(encoder="mlp"))
    assert build_distribution(free, ModelConfig()).low == action.low


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_an_own_part_is_tried_in_the_dtype_that_the_run_uses(precision):
    config = Config(
        env="toy/x",
        model=ModelConfig(encoder=f"{__name__}:OneDtype"),
        learner=LearnerConfig(precision=precision),
    )
    if precision == "float32":
        check_network(config, DISCRETE, ["cpu"])
        return
    with pytest.raises(ConfigError, match=rf"--model: encoder '{__name__}:OneDtype' raised .*float32"):
        check_network(config, DISCRETE, ["cpu"])
    assert torch.get_default_dtype() == torch.float32


class Fourier(nn.Module):
    """An encoder with a buffer that is drawn, by the seed if there is one."""

    seed: int | None = None

    def __init__(self, shapes):
        super().__init__()
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        self.register_buffer("frequencies", torch.randn(4, 8, generator=generator))
        self.layer = nn.Linear(8, 8)

    def forward(self, obs):
        return self.layer(torch.cos(obs["obs"] @ self.frequencies))


class Locked(Fourier):
    """An encoder that cannot be copied."""

    seed = 0

    def __init__(self, shapes):
        super().__init__(shapes)
        self.lock = threading.Lock()


class Unregistered(Fourier):
    """An encoder with random numbers that are not a buffer."""

    def __init__(self, shapes):
        super().__init__(shapes)
        del self.frequencies
        self.frequencies = torch.randn(4, 8)


def test_random_numbers_that_no_checkpoint_has_are_refused():
    config = Config(env="toy/x", model=ModelConfig(encoder=f"{__name__}:Unregistered"))
    with pytest.raises(
        ConfigError, match=r"--model: encoder .*Unregistered.* neither parameters nor buffers"
    ):
        check_network(config, DISCRETE, ["cpu"])


class Tanh(nn.Module):
    """An encoder whose backward pass needs its result."""

    def __init__(self, shapes):
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, obs):
        return self.layer(obs["obs"]).tanh()


class Passes(nn.Module):
    """An encoder whose features are the observation itself."""

    def __init__(self, shapes):
        super().__init__()

    def forward(self, obs):
        return obs["obs"]


class Doubles(nn.Module):
    """A core that writes to its features."""

    state_size = 0

    def __init__(self, features):
        super().__init__()

    def forward(self, x, state, first):
        return x.mul_(2), state


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(
    ("encoder", "said"), [("Tanh", "backward pass.*inplace"), ("Passes", "input obs in place")]
)
def test_parts_that_cannot_be_trained_together_are_refused(encoder, said, precision):
    model = ModelConfig(encoder=f"{__name__}:{encoder}", core=f"{__name__}:Doubles")
    config = Config(env="toy/x", model=model, learner=LearnerConfig(precision=precision))
    with pytest.raises(ConfigError, match=rf"--model: the network .*{said}"):
        check_network(config, DISCRETE, ["cpu"])
    assert check_network(replace(config, model=replace(model, core="none")), DISCRETE, ["cpu"]) == ()


def test_a_part_that_cannot_be_copied_is_refused():
    config = Config(env="toy/x", model=ModelConfig(encoder=f"{__name__}:Locked"))
    with pytest.raises(ConfigError, match=r"--model: .*\(.*lock.*\).*copy\.deepcopy"):
        check_network(config, DISCRETE, ["cpu"])


def test_buffers_that_are_drawn_anew_for_every_network_are_refused(monkeypatch):
    """One of them serves all policies of a pack; other packs, evaluation and a resumed run would have another."""
    config = Config(env="toy/x", model=ModelConfig(encoder=f"{__name__}:Fourier"))
    with pytest.raises(ConfigError, match=r"--model: buffers .*: body\.encoder\.module\.frequencies"):
        check_network(config, DISCRETE, ["cpu"])
    monkeypatch.setattr(Fourier, "seed", 0)
    check_network(config, DISCRETE, ["cpu"])


@pytest.mark.parametrize(
    ("amx", "products", "intels", "dtype"),
    [
        (True, True, True, torch.bfloat16),
        (False, True, False, torch.bfloat16),
        (False, True, True, torch.float32),  # an Intel whose AMX is hidden is slower at bf16
        (False, False, False, torch.float32),
    ],
)
def test_images_are_computed_in_bf16_where_it_is_faster(monkeypatch, amx, products, intels, dtype):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: products)
    monkeypatch.setattr(build, "processor_is", lambda _vendor: intels)
    cpu = torch.device("cpu")
    assert compute_dtype("auto", cpu, IMAGE) == dtype
    assert compute_dtype("auto", cpu, DISCRETE) == torch.float32
    assert compute_dtype("bf16", cpu, DISCRETE) == torch.bfloat16


def test_all_numbers_are_normalised_whatever_their_shape():
    space = spaces.Dict(
        {
            "matrix": spaces.Box(-9, 9, (3, 4)),
            "ram": spaces.Box(0, 255, (128,), np.uint8),
            "bits": spaces.MultiBinary((2, 2)),
            "picture": spaces.Box(0, 255, (3, 40, 40), np.uint8),
        }
    )
    spec = EnvSpec("m:f", {leaf.name: leaf.spec for leaf in obs_leaves(space, "m:f")}, ActionSpec((2,)))
    config = Config(env="m:f", learner=LearnerConfig(normalize_observations=True))
    assert normalized_obs(config, spec) == {"matrix": 12, "ram": 128, "bits": 4}


def test_members_begin_with_the_stds_in_turns():
    config = Config("toy/x", num_policies=3, model=ModelConfig(encoder="mlp", initial_std=(1.0, 0.5)))
    found = [initialised_net(config, BOTH, 0, member).heads.log_std.exp().tolist() for member in range(3)]
    assert found == [[1.0], [0.5], [1.0]]


def test_a_control_begins_with_the_weights_and_the_std_of_its_member():
    model = ModelConfig(encoder="mlp", initial_std=(1.0, 0.5))
    config = Config("toy/x", num_policies=3, control=3, model=model)
    nets = [
        [p.tolist() for p in initialised_net(config, BOTH, 0, member).parameters()] for member in range(6)
    ]
    assert nets[3:] == nets[:3]
    assert nets[0] != nets[2]
