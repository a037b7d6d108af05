r"""A task and an algorithm that write down what they are called with, to see that the values of members act.

    PBT_RL_WITNESS=seen.jsonl pbt-rl train --mode serial --learner.packing loop --env scripts.lab.papers.witness:make \
        --algo scripts.lab.papers.witness:WITNESS

Each line is a name and a value that was not seen before. In serial mode, policies computed one by one: the three write
to one file, and values are no tensors of several policies. `reproduce.py --only T9` compares them with the decisions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from pbt_rl.algos.algorithm import Hypers, LossInputs, UpdateSettings
from pbt_rl.algos.appo import APPO
from pbt_rl.algos.losses import Stats
from pbt_rl.algos.optim import ADAM, Gradients
from pbt_rl.envs.toy import Shaped

LOG = "PBT_RL_WITNESS"


@cache
def saw(name: str, value: float) -> None:
    """Write a value down, the first time that it is seen."""
    with Path(os.environ[LOG]).open("a") as file:
        file.write(json.dumps([name, value]) + "\n")


class Seen(Shaped):
    """toy/shaped."""

    def set_reward_shaping(self, reward_shaping: dict[str, Any], agent_idx: int | slice) -> None:
        """Take new shaping, and write it down."""
        for name, value in reward_shaping.items():
            saw(f"shaping.{name}", float(value))
        super().set_reward_shaping(reward_shaping, agent_idx)


def make() -> Seen:
    """Make the environment."""
    return Seen()


def loss(s: LossInputs, hypers: Hypers, settings: UpdateSettings) -> tuple[Tensor, Stats]:
    """APPO's."""
    for name, value in hypers.items():
        saw(name, float(value))
    return APPO.loss(s, hypers, settings)


def step(gradients: Gradients, moments: list[Tensor], hypers: Mapping[str, Tensor]) -> None:
    """Adam's."""
    values = {"learning_rate": gradients.learning_rate_G, "adam_beta1": hypers["adam_beta1"]}
    for name, value_G in values.items():
        for value in value_G.tolist():
            saw(name, value)
    ADAM.step(gradients, moments, hypers)


WITNESS = replace(APPO, loss=loss, optimizer=replace(ADAM, step=step))
