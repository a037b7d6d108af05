"""What the processes tell the supervisor, and what the supervisor tells the monitor. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pbt_rl.pbt.hypers import Values


@dataclass(frozen=True)
class Episode:
    """One finished episode of one member.

    generation: the member's generation when the episode began; an older one does not count for the objective.
    task: index in `EnvSpec.tasks`; 0 where there are none.
    """

    member: int
    generation: int
    objective: float
    raw_return: float
    shaped_return: float
    length_steps: int
    extra: dict[str, float] = field(default_factory=dict)
    """`info["episode_extra_stats"]`."""
    task: int = 0


@dataclass(frozen=True)
class Game:
    """One finished game of an environment of several agents, seat by seat. Only games whose players are all known."""

    members: tuple[int, ...]
    generations: tuple[int, ...]
    """Of each member when the game began; with an older one it does not count."""
    objectives: tuple[float, ...]


@dataclass(frozen=True)
class MemberStats:
    """One member's learning statistics since the last report (means over its updates).

    values: `policy_loss`, `value_loss`, `entropy`, `kl`, `clip_fraction`, `explained_variance`, `grad_norm`,
    `learning_rate_in_use` (after the schedule), `lag` (updates between acting and learning); absent while the
    member has had no update since the last report.
    """

    member: int
    steps: int
    """Steps learned from, in total (also counted: none that was masked or discarded)."""
    frames: int
    """Emulator frames sampled for it, in total, over all generations."""
    updates: int
    values: dict[str, float] = field(default_factory=dict)
    generation: int = 0
    """The generation that the learner knows it in: `broken` is told of that one."""
    broken: bool | None = None
    """All optimiser steps since the last report were left out, as no gradient was finite. None without any step."""


@dataclass(frozen=True)
class SlotChange:
    """One slot of a pack changes hands; None stands for nobody.

    generation, values: of the member that enters, who goes on with them.
    """

    slot: int
    leaves: int | None
    enters: int | None
    generation: int
    values: Values


@dataclass(frozen=True)
class LearnerReport:
    """What one learner process did since its last report (sums and means over that time unless said otherwise)."""

    device: str
    members: list[MemberStats]
    episodes: list[Episode]
    stage_seconds: dict[str, float]
    """Busy thread-seconds by stage: `inference`, `learning`, `waiting` (inference had nothing to serve)..."""
    lag_max: int
    """Largest policy lag of any step learned from, ever, in updates."""
    discarded_rollouts: int
    """Rollouts of older generations or over the lag limit that were thrown away, in total."""
    games: list[Game] = field(default_factory=list)
    """Finished games, where environments have several seats."""


@dataclass(frozen=True)
class Applied:
    """The proof that a decision was applied, read back from where it acts.

    parked: the member holds no slot. Its state was changed where it is kept, nothing acts on its values, and the
    `in_...` are empty; another proof, without a donor, follows when it takes a slot.
    """

    member: int
    donor: int | None
    generation: int
    milliseconds: float
    """From the moment the learner took up the message to new weights serving inference."""
    in_optimizer: dict[str, float]
    in_loss: dict[str, float]
    in_environment: dict[str, float]
    """The shaping table as the actors read it, without the prefix."""
    donor_unchanged: bool
    parked: bool = False


@dataclass(frozen=True)
class Edit:
    """Change one member in place. `values` are final.

    weights: `keep`; `copy` those of `donor` (on this pack); `import` from the exchange memory; `fresh`.
    donor_generation: the donor's remembered state of that generation; None for the donor as it is.
    """

    member: int
    generation: int
    weights: Literal["keep", "copy", "import", "fresh"]
    donor: int | None
    values: Values
    donor_generation: int | None = None
