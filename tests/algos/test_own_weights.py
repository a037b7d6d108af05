"""Custom network modules that compute with more than weights and inputs, or do not train all weights."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from pbt_rl.algos.encoders import NetworkError
from pbt_rl.algos.own_parts import check_again
from tests.algos.test_models import VECTOR, make
from tests.algos.test_own_parts import Reads

HERE = __name__


class Listed(Reads):
    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self._layers = [{"second": nn.Linear(16, 16)}]

    def forward(self, obs):
        return self._layers[0]["second"](super().forward(obs))


class Enclosed(Reads):
    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        layer = nn.Linear(16, 16)
        self.second = lambda x: layer(x).tanh()

    def forward(self, obs):
        return self.second(super().forward(obs))


class Captures(Reads):
    """Calls its layer through a lambda, which a copy shares with the original."""

    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self.features = lambda x: self.read(x).tanh()

    def forward(self, obs):
        return self.features(obs["obs"])


class Scaled(Reads):
    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self.scale = torch.ones(16, requires_grad=True)

    def forward(self, obs):
        return super().forward(obs) * self.scale


class Projects(Reads):
    """Multiplies random numbers by weights that are 0 at first."""

    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self.matrix = torch.randn(16, 16)
        nn.init.zeros_(self.read.weight)
        nn.init.zeros_(self.read.bias)

    def forward(self, obs):
        return super().forward(obs) @ self.matrix


class Fixed(Reads):
    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self.requires_grad_(False)
        self.order = [self.read]


class Noisy(Reads):
    def forward(self, obs):
        return super().forward(obs) + torch.randn(len(obs["obs"]), 1)


class Generates(Reads):
    """Adds noise of its own generator."""

    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self.random = np.random.default_rng()

    def forward(self, obs):
        return super().forward(obs) + float(self.random.normal())


class Counts(Reads):
    """Adds noise that decreases with the number of calls, and keeps its features for a plot."""

    calls = 0

    def forward(self, obs):
        self.calls += 1
        self.features = super().forward(obs).detach()
        return self.features / self.calls + super().forward(obs)


class Centres(Reads):
    """Subtracts a running mean."""

    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self.mean = torch.zeros(16)

    def forward(self, obs):
        features = super().forward(obs)
        if self.training:
            self.mean = 0.99 * self.mean + 0.01 * features.detach().mean(0)
        return features - self.mean


class Dropping(Reads):
    def forward(self, obs):
        return nn.functional.dropout(super().forward(obs), training=self.training)


class Embeds(Reads):
    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self.embed = nn.Embedding(2, 16)

    def forward(self, obs):
        return super().forward(obs) + self.embed(obs["obs"][:, 0].long())


class Teaches(Reads):
    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self.teacher = [nn.Linear(5, 16).requires_grad_(False)]  # a list, so that it is not saved
        nn.init.ones_(self.teacher[0].weight)
        nn.init.ones_(self.teacher[0].bias)

    def forward(self, obs):
        return super().forward(obs) + self.teacher[0](obs["obs"])


class Solves(Reads):
    """Computes with the gradient of a tensor that each forward pass makes."""

    def forward(self, obs):
        features = super().forward(obs)
        with torch.enable_grad():
            start = torch.ones(len(features), 16, requires_grad=True)
            (slope,) = torch.autograd.grad((features * start).square().sum(), start, create_graph=True)
        return features - slope


@pytest.mark.parametrize(
    "encoder", ["Reads", "Fixed", "Noisy", "Embeds", "Teaches", "Solves", "Dropping", "Generates", "Counts"]
)
def test_an_unusual_part_is_accepted(encoder):
    nets = [make(VECTOR, encoder=f"{HERE}:{encoder}", seed=seed) for seed in (0, 1)]
    assert nets[0].body.encoder.size == 16
    check_again(*nets)


class Routes(Reads):
    """Uses another layer in learning than in evaluation."""

    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, obs):
        return (self.first if self.training else self.second)(super().forward(obs))


class Cuts(Reads):
    """Has a layer before which gradients end, and an unused layer that needs none."""

    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self.second, self.unused = nn.Linear(16, 16), nn.Linear(3, 3).requires_grad_(False)

    def forward(self, obs):
        return self.second(super().forward(obs).detach())


class Tanh(Reads):
    """Overwrites a tensor that the backward pass needs."""

    def forward(self, obs):
        return super().forward(obs).tanh().mul_(2)


@pytest.mark.parametrize(
    ("encoder", "named"), [("Reads", ""), ("Routes", ""), ("Cuts", "read.weight, read.bias")]
)
def test_weights_without_gradient_are_a_warning(encoder, named):
    warnings = check_again(*(make(VECTOR, encoder=f"{HERE}:{encoder}", seed=seed) for seed in (0, 1)))
    assert len(warnings) == bool(named)
    assert all(f"2 of 4 weights ({named})" in text for text in warnings)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("Tanh", "raised RuntimeError in the backward pass"),
        ("Listed", "(shapes [16, 16], [16])"),
        ("Enclosed", "(shapes [16, 16], [16])"),
        ("Scaled", "(shapes [16])"),
        ("Captures", "lambdas"),
        ("Projects", "neither parameters nor buffers"),
        ("Centres", "if other inputs preceded"),
    ],
)
def test_a_part_that_computes_with_more_than_its_weights_and_inputs_is_refused(encoder, message):
    nets = [make(VECTOR, encoder=f"{HERE}:{encoder}", seed=seed) for seed in (0, 1)]
    with pytest.raises(NetworkError, match=re.escape(message)) as error:
        check_again(*nets)
    assert str(error.value).startswith(f"encoder '{HERE}:{encoder}'")
