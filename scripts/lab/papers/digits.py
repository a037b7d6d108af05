"""A classifier of handwritten digits, tuned by validation accuracy: learning rate and dropout.

    python scripts/lab/papers/digits.py [--quick] [--workers 2]

The second use of Jaderberg et al. (2017), in small: scikit-learn's 8x8 digits, a network of two layers, stochastic
gradient descent. 200 digits are for training, 800 for validation (they choose), the rest for the test of that choice.
Needs scikit-learn.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch.nn.functional import cross_entropy

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

TRAIN, VALIDATION, BATCH, HIDDEN = 200, 800, 20, 128
MEMBERS, EPOCHS, PERIOD = 8, 60, 5
TABLE = {
    "learning_rate": HyperSpec("learning_rate", 0.02, 1e-4, 3.0, "log", tuned=True),
    "dropout": HyperSpec("dropout", 0.45, 0.0, 0.9, "linear", tuned=True),
}
Split = tuple[torch.Tensor, torch.Tensor]


@cache
def splits() -> tuple[Split, Split, Split]:
    """Returns images and labels for training, validation and test; the shuffle is always the same."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra that only this example needs

    images, labels = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order].float() / 16, labels[order]
    ends = (0, TRAIN, TRAIN + VALIDATION, len(labels))
    train, validation, test = ((images[a:b], labels[a:b]) for a, b in pairwise(ends))
    return train, validation, test


class Classifier:
    """One network. Batches and dropout are drawn from its own generator."""

    def __init__(self, seed: int, index: int) -> None:
        torch.set_num_threads(1)
        self.draws = torch.Generator().manual_seed(1000 * seed + index)
        shapes = ((64, HIDDEN), (HIDDEN, 10))
        self.layers = [torch.randn(shape, generator=self.draws) / shape[0] ** 0.5 for shape in shapes]
        self.biases = [torch.zeros(shape[1]) for shape in shapes]
        for parameter in self.parameters:
            parameter.requires_grad_()

    @property
    def parameters(self) -> list[torch.Tensor]:
        """All learned parameters."""
        return [*self.layers, *self.biases]

    def logits(self, images: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        """Returns scores of the ten classes. `[B, 64] -> [B, 10]`"""
        hidden = torch.relu(images @ self.layers[0] + self.biases[0])
        if dropout:
            kept = torch.rand(hidden.shape, generator=self.draws) >= dropout
            hidden = hidden * kept / (1 - dropout)
        scores: torch.Tensor = hidden @ self.layers[1] + self.biases[1]
        return scores

    def step(self, hypers: Mapping[str, float]) -> None:
        """Train for one epoch."""
        images, labels = splits()[0]
        for batch in torch.randperm(len(labels), generator=self.draws).split(BATCH):
            loss = cross_entropy(self.logits(images[batch], hypers["dropout"]), labels[batch])
            for parameter, gradient in zip(
                self.parameters, torch.autograd.grad(loss, self.parameters), strict=True
            ):
                parameter.data -= hypers["learning_rate"] * gradient

    def accuracy(self, split: Split) -> float:
        """Returns the share of a split's images that are recognised."""
        images, labels = split
        with torch.no_grad():
            return (self.logits(images).argmax(1) == labels).float().mean().item()

    def evaluate(self) -> float:
        """Returns the accuracy on the validation images."""
        return self.accuracy(splits()[1])

    def state(self) -> list[Any]:
        """Returns the weights."""
        return [p.detach() for p in self.parameters]

    def load(self, state: list[torch.Tensor]) -> None:
        """Take over weights."""
        for parameter, other in zip(self.parameters, state, strict=True):
            parameter.data.copy_(other)


def drawn(seed: int) -> dict[str, HyperSpec]:
    """Returns the table with defaults drawn from the prior: PBT's first member begins at the defaults."""
    rng = Random(f"defaults.{seed}")
    return {name: replace(spec, default=sample_prior(spec, rng)) for name, spec in TABLE.items()}


def train(method: str, seed: int = 0, *, epochs: int = EPOCHS, workers: int = 0) -> tuple[Result, float]:
    """Train by `pbt` or `random` search; returns the result and the best member's accuracy on the test images.

    Every member of both begins at a draw from the same prior.
    """
    controller = (
        RandomSearch(TABLE, seed, phase_frames=epochs)
        if method == "random"
        else PbtController(
            drawn(seed),
            seed,
            ready=Synchronous(PERIOD, PERIOD, 1),
            exploit=Truncation(0.25, Gap(0, 0), others_mutate=False),
            explore=PerturbFactors(TABLE, (1.2, 0.8)),
        )
    )
    result = run(
        partial(Classifier, seed), controller, steps=epochs, num_members=MEMBERS, table=TABLE, workers=workers
    )
    chosen = Classifier(seed, 0)
    chosen.load(result.best_state)
    return result, chosen.accuracy(splits()[2])


def main() -> None:
    """Compare PBT with random search: the same epochs, the same number of members."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    for method in ("random", "pbt"):
        result, test = train(
            method, epochs=EPOCHS // (10 if arguments.quick else 1), workers=arguments.workers
        )
        assert result.best is not None
        best = result.members[result.best]
        mean = sum(o for o in result.objectives if o is not None) / MEMBERS
        chosen = ", ".join(f"{name} {value:.3g}" for name, value in best.values.items())
        print(f"{method:6}  validation {best.objective:.3f} (mean {mean:.3f})  test {test:.3f}  ({chosen})")


if __name__ == "__main__":
    main()
