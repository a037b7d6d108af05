"""A small GAN on a ring of eight Gaussians, tuned by how well it covers them: two learning rates.

    python scripts/lab/papers/gan.py [--quick] [--workers 2]

The third use of Jaderberg et al. (2017): generator and discriminator have learning rates of their own, the score
is not differentiable, and perturbation is by 2 or 1/2 (section 4.3). Score: a point belongs to a Gaussian if it
lies within three deviations of its centre; each Gaussian counts with the share of points that belong to it, at most
1/8. So 1 covers all Gaussians evenly, 1/8 is one of them only (mode collapse), 0 is noise.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import torch
from torch import nn
from torch.nn.functional import softplus

from pbt_rl.controllers import (
    Gap,
    HyperSpec,
    PbtController,
    PerturbFactors,
    RandomSearch,
    Synchronous,
    Truncation,
    sample_prior,
)
from pbt_rl.tune import Result, run

MODES, DEVIATION, BATCH, NOISE, HIDDEN = 8, 0.1, 128, 4, 64
UPDATES = 25
"""Per network and step."""
MEMBERS, STEPS, PERIOD = 6, 60, 5
TABLE = {
    name: HyperSpec(name, 1e-3, 1e-5, 1e-1, "log", tuned=True)
    for name in ("generator_rate", "discriminator_rate")
}
CENTRES = torch.tensor(
    [(math.cos(2 * math.pi * i / MODES), math.sin(2 * math.pi * i / MODES)) for i in range(MODES)]
)


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Returns a network of two hidden layers."""
    layers = (nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(HIDDEN, outputs))


class Gan:
    """A generator, a discriminator, and an Adam for each."""

    def __init__(self, seed: int, index: int) -> None:
        torch.set_num_threads(1)
        self.draws = torch.Generator().manual_seed(1000 * seed + index)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(1000 * seed + index)
            self.generator, self.discriminator = network(NOISE, 2), network(2, 1)
        self.optimizers = [
            torch.optim.Adam(n.parameters(), betas=(0.5, 0.99), fused=True)
            for n in (self.generator, self.discriminator)
        ]

    def made(self, points: int) -> torch.Tensor:
        """Returns points of the generator. `[points, 2]`"""
        made: torch.Tensor = self.generator(torch.randn(points, NOISE, generator=self.draws))
        return made

    def real(self, points: int) -> torch.Tensor:
        """Returns points of the mixture. `[points, 2]`"""
        which = torch.randint(MODES, (points,), generator=self.draws)
        return CENTRES[which] + DEVIATION * torch.randn(points, 2, generator=self.draws)

    def step(self, hypers: Mapping[str, float]) -> None:
        """Update both, with the loss that does not saturate (Goodfellow et al. 2014)."""
        rates = (hypers["generator_rate"], hypers["discriminator_rate"])
        for optimizer, rate in zip(self.optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate
        generators, discriminators = self.optimizers
        for _ in range(UPDATES):
            real, made = self.real(BATCH), self.made(BATCH)
            loss = (
                softplus(-self.discriminator(real)).mean()
                + softplus(self.discriminator(made.detach())).mean()
            )
            discriminators.zero_grad()
            loss.backward()
            discriminators.step()
            generators.zero_grad()
            softplus(-self.discriminator(made)).mean().backward()
            generators.step()

    def evaluate(self) -> float:
        """Returns the coverage of the modes, for the same noise every time."""
        return self.coverage(0, 1000)

    def coverage(self, noise_seed: int, points: int) -> float:
        """Returns the coverage of the modes by this many points of this noise."""
        noise = torch.randn(points, NOISE, generator=torch.Generator().manual_seed(noise_seed))
        with torch.no_grad():
            distances = torch.cdist(self.generator(noise), CENTRES)
        shares = (distances < 3 * DEVIATION).float().mean(0)
        return shares.clamp(max=1 / MODES).sum().item()

    @property
    def parts(self) -> tuple[nn.Module | torch.optim.Optimizer, ...]:
        """All parts that have a state."""
        return self.generator, self.discriminator, *self.optimizers

    def state(self) -> list[Any]:
        """Returns weights and moments."""
        return [part.state_dict() for part in self.parts]

    def load(self, state: list[Any]) -> None:
        """Take over weights and moments."""
        for part, other in zip(self.parts, state, strict=True):
            part.load_state_dict(other)


def drawn(seed: int) -> dict[str, HyperSpec]:
    """Returns the table with defaults drawn from the prior: PBT's first member begins at the defaults."""
    rng = Random(f"defaults.{seed}")
    return {name: replace(spec, default=sample_prior(spec, rng)) for name, spec in TABLE.items()}


def train(method: str, seed: int = 0, *, steps: int = STEPS, workers: int = 0) -> Result:
    """Train a population by `pbt` or `random` search. Every member of both begins at a draw from the same prior.

    (PBT's first member begins at the defaults of its table; `drawn` draws them too, so that good ones help nobody.)
    """
    controller = (
        RandomSearch(TABLE, seed, phase_frames=steps)
        if method == "random"
        else PbtController(
            drawn(seed),
            seed,
            ready=Synchronous(PERIOD, PERIOD, 1),
            exploit=Truncation(0.2, Gap(0, 0), others_mutate=False),
            explore=PerturbFactors(TABLE, (2.0, 0.5)),
        )
    )
    return run(partial(Gan, seed), controller, steps=steps, num_members=MEMBERS, window=3, workers=workers)


def main() -> None:
    """Compare PBT with random search: the same steps, the same number of members."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    for method in ("random", "pbt"):
        steps = STEPS // (10 if arguments.quick else 1)
        result = train(method, steps=steps, workers=arguments.workers)
        assert result.best is not None
        best = result.members[result.best]
        mean = sum(o for o in result.objectives if o is not None) / MEMBERS
        rates = ", ".join(f"{name} {value:.2g}" for name, value in best.values.items())
        print(f"{method:6}  coverage {best.objective:.3f} (mean {mean:.3f})  ({rates})")


if __name__ == "__main__":
    main()
