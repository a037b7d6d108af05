"""Environments that the learner steps itself (`EnvSpec.resident`), without actors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from pbt_rl.actors.tables import ShapingTable
from pbt_rl.algos.distributions import Distribution
from pbt_rl.algos.pack import Pack
from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.learner.setup import LearnerSetup
from pbt_rl.learner.shared import AnyRollout, SharedState
from pbt_rl.run.plan import Machine, PackPlan, Plan

if TYPE_CHECKING:
    from pbt_rl.learner.sampler import ServedUnit


class SlotShaping(Protocol):
    """The shaping of the slots, which their rows read; `ShapingTable` is one."""

    @property
    def shaping_version(self) -> Any:
        """[P] writes of each slot's shaping."""

    def write(self, slot: int, version: int, values: Mapping[str, float]) -> None:
        """Let a slot's rows have these values."""

    def read(self, slot: int) -> tuple[int, dict[str, float]]:
        """Return the version and the values."""


class AnySampler(Protocol):
    """What a learner samples with; `Sampler` is one."""

    generator: torch.Generator
    between_policies: Callable[[], object]

    @property
    def units(self) -> Sequence[ServedUnit]:
        """Units that it serves."""

    @property
    def begun(self) -> bool:
        """Whether a rollout is half done."""

    def rollouts(self) -> Sequence[AnyRollout]:
        """Return the memory of rollouts."""

    def serve(self) -> bool:
        """Sample what can be sampled now; return whether there was anything."""

    def resume_finished(self) -> None:
        """Go on after a batch was learned from."""

    def take_resets(self) -> None:
        """Zero the recurrent state of slots whose weights were exchanged."""

    def close(self) -> None:
        """Release everything."""


class Simulators(Protocol):
    """What has environments stepped by the learner: `pbt_rl.learner.simulators.run`."""

    def lay_out(
        self,
        config: Config,
        machine: Machine,
        devices: Sequence[str],
        members: Sequence[tuple[int, ...]],
        slots: Sequence[int],
    ) -> Plan:
        """Return the plan: `members` and `slots` are of each device."""

    def waits_for(self, packs: Iterable[PackPlan], *, begun: bool) -> str:
        """Say what happens before the first frames. begun: its learners run."""

    def make_sampler(
        self,
        setup: LearnerSetup,
        pack: Pack,
        shared: SharedState,
        table: ShapingTable,
        distribution: Distribution,
        beat: Callable[[], None],
        give_up: Callable[[str], object],
    ) -> tuple[AnySampler, SlotShaping]:
        """Return what samples, and the shaping that its rows read.

        beat: to be called while it does anything. give_up: ends the run with an error of the user's, from any thread.
        """


def simulators(spec: EnvSpec) -> Simulators | None:
    """Return what steps an environment in the learner; None if actors do."""
    if not spec.resident:
        return None
    from pbt_rl.learner.simulators import run  # noqa: PLC0415 - it samples with this room

    return run
