"""A character-level transformer, tuned by validation bits per character: learning rate and three dropouts.

    python scripts/lab/papers/characters.py [--quick] [--workers 2]

The second use of Jaderberg et al. (2017), machine translation (section 4.2), in small: dropout of the attention's
weights, of the ReLU units and of each layer's output. The text, characters.txt, is the beginning of Shakespeare's
Coriolanus (public domain), as Karpathy's char-rnn has it. Its first 10,000 characters are for training, so few that a
network without dropout learns them by heart; the next are for validation (they choose), the rest for the test of that
choice.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn
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

TEXT = Path(__file__).with_name("characters.txt")
TRAIN, VALIDATION = 10_000, 8_193
WIDTH, HEADS, CONTEXT, BATCH = 64, 4, 32, 16
UPDATES = 10
"""Per step."""
MEMBERS, STEPS, PERIOD = 8, 60, 5
TABLE = {
    "learning_rate": HyperSpec("learning_rate", 1e-3, 1e-5, 1e-1, "log", tuned=True),
    **{
        name: HyperSpec(name, 0.1, 0.01, 0.6, "log", tuned=True)
        for name in ("attention_dropout", "relu_dropout", "layer_dropout")
    },
}


@cache
def parts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the text for training, validation and test, as numbers of its characters."""
    text = TEXT.read_text(encoding="ascii")
    alphabet = {character: i for i, character in enumerate(sorted(set(text)))}
    numbers = torch.tensor([alphabet[character] for character in text])
    return numbers[:TRAIN], numbers[TRAIN : TRAIN + VALIDATION], numbers[TRAIN + VALIDATION :]


@cache
def alphabet_size() -> int:
    """Returns the number of different characters."""
    return 1 + max(int(part.max()) for part in parts())


class Drop:
    """Dropout by the rates of a member's hypers, drawn from its own generator."""

    def __init__(self, rates: Mapping[str, float], draws: torch.Generator) -> None:
        self.rates, self.draws = rates, draws

    def __call__(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Returns x with a share of its elements set to 0, the others scaled up."""
        rate = self.rates.get(name, 0.0)
        if not rate:
            return x
        return x * torch.empty_like(x).bernoulli_(1 - rate, generator=self.draws) / (1 - rate)


class Block(nn.Module):
    """Attention to earlier characters, then a layer of ReLU units; each adds its output."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.inputs, self.outputs = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.later = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)

    def forward(self, x: torch.Tensor, drop: Drop) -> torch.Tensor:
        """`[B, T, WIDTH]` -> the same."""
        B, T, _ = x.shape
        query, key, value = self.inputs(self.norms[0](x)).view(B, T, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2)) / math.sqrt(WIDTH / HEADS)
        weights = weights.masked_fill(self.later[:T, :T], -math.inf).softmax(-1)
        mixed = (drop("attention_dropout", weights) @ value).transpose(1, 2).reshape(B, T, WIDTH)
        x = x + drop("layer_dropout", self.outputs(mixed))
        hidden = drop("relu_dropout", self.wide(self.norms[1](x)).relu())
        return x + drop("layer_dropout", self.narrow(hidden))


class Network(nn.Module):
    """Predicts each next character. 60,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(alphabet_size(), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.block = Block()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, alphabet_size())

    def forward(self, text: torch.Tensor, drop: Drop) -> torch.Tensor:
        """`[B, T] -> [B, T, alphabet]`"""
        x = drop("layer_dropout", self.characters(text) + self.places.weight[: text.shape[1]])
        scores: torch.Tensor = self.head(self.norm(self.block(x, drop)))
        return scores


class Reader:
    """A network with its optimiser. Batches and dropout are drawn from its own generator."""

    def __init__(self, seed: int, index: int) -> None:
        torch.set_num_threads(1)
        self.draws = torch.Generator().manual_seed(1000 * seed + index)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(1000 * seed + index)
            self.network = Network()
        self.optimizer = torch.optim.Adam(self.network.parameters(), betas=(0.9, 0.98), fused=True)

    def step(self, hypers: Mapping[str, float]) -> None:
        """Learn from some batches."""
        self.optimizer.param_groups[0]["lr"] = hypers["learning_rate"]
        drop, text = Drop(hypers, self.draws), parts()[0]
        for _ in range(UPDATES):
            starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=self.draws)
            sequences = text[starts + torch.arange(CONTEXT + 1)]
            scores = self.network(sequences[:, :-1], drop)
            loss = cross_entropy(scores.flatten(0, 1), sequences[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self.optimizer.step()

    def bits(self, text: torch.Tensor) -> float:
        """Returns the bits per character of a text, cut into pieces of CONTEXT characters, without dropout."""
        pieces = (len(text) - 1) // CONTEXT
        given = text[: pieces * CONTEXT].view(pieces, CONTEXT)
        expected = text[1 : pieces * CONTEXT + 1].view(pieces, CONTEXT)
        with torch.no_grad():
            scores = self.network(given, Drop({}, self.draws))
            return cross_entropy(scores.flatten(0, 1), expected.flatten()).item() / math.log(2)

    def evaluate(self) -> float:
        """Returns the bits per character of the validation text, negative: more is better."""
        return -self.bits(parts()[1])

    def state(self) -> list[Any]:
        """Returns weights and moments."""
        return [self.network.state_dict(), self.optimizer.state_dict()]

    def load(self, state: list[Any]) -> None:
        """Take over weights and moments."""
        self.network.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


def drawn(seed: int) -> dict[str, HyperSpec]:
    """Returns the table with defaults drawn from the prior: PBT's first member begins at the defaults."""
    rng = Random(f"defaults.{seed}")
    return {name: replace(spec, default=sample_prior(spec, rng)) for name, spec in TABLE.items()}


def train(method: str, seed: int = 0, *, steps: int = STEPS, workers: int = 0) -> tuple[Result, float]:
    """Train by `pbt` or `random` search; returns the result and the best member's bits per character of the test text.

    Every member of both begins at a draw from the same prior.
    """
    controller = (
        RandomSearch(TABLE, seed, phase_frames=steps)
        if method == "random"
        else PbtController(
            drawn(seed),
            seed,
            ready=Synchronous(PERIOD, PERIOD, 1),
            exploit=Truncation(0.2, Gap(0, 0), others_mutate=False),
            explore=PerturbFactors(TABLE, (1.2, 0.8)),
        )
    )
    make = partial(Reader, seed)
    result = run(
        make,
        controller,
        steps=steps,
        num_members=MEMBERS,
        evaluate_every=PERIOD,
        table=TABLE,
        workers=workers,
    )
    chosen = make(0)
    chosen.load(result.best_state)
    return result, chosen.bits(parts()[2])


def main() -> None:
    """Compare PBT with random search: the same steps, the same number of members."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    for method in ("random", "pbt"):
        result, test = train(method, steps=STEPS // (10 if arguments.quick else 1), workers=arguments.workers)
        assert result.best is not None
        best = result.members[result.best]
        assert best.objective is not None
        mean = sum(o for o in result.objectives if o is not None) / MEMBERS
        chosen = ", ".join(f"{name} {value:.2g}" for name, value in best.values.items())
        print(f"{method:6}  bits {-best.objective:.3f} (mean {-mean:.3f})  test {test:.3f}  ({chosen})")


if __name__ == "__main__":
    main()
