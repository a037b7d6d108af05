"""Views of small populations."""

from dataclasses import replace
from typing import Any

from pbt_rl.display.view import MemberView, RunView

INITIAL = {"learning_rate": 2.5e-4, "gamma": 0.99, "unroll": 32.0, "shaping.life_lost": -1.0}
STATS = {
    "raw_return": 11.0,
    "shaped_return": 1.5,
    "length_steps": 1800.0,
    "policy_loss": -0.01,
    "value_loss": 0.2,
    "entropy": 1.7,
    "kl": 0.004,
    "clip_fraction": 0.1,
    "explained_variance": 0.8,
    "grad_norm": 0.4,
    "learning_rate_in_use": 2e-4,
    "lag": 1.5,
}


def member(
    number: int,
    objective: float | None = 1.0,
    *,
    stopped: bool = False,
    frames: int = 1000,
    stats: dict[str, float] = STATS,
    **values: float,
) -> MemberView:
    """A member; `values` differ from the initial ones (shaping as `shaping__NAME`)."""
    moved = {name.replace("__", "."): value for name, value in values.items()}
    values = {**INITIAL, **moved}
    return MemberView(
        number, objective, 7, 2, frames, values, dict(INITIAL), dict(stats), stopped, ended=4, environments=4
    )


def view(*members: MemberView, **changes: Any) -> RunView:
    """A view of the members, at ten seconds."""
    shown = RunView(
        env_id="toy/identity",
        name="demo",
        seconds=10.0,
        frames=8000,
        steps=2000,
        frames_per_second=800.0,
        seconds_left=3600.0,
        members=list(members),
        replacements=3,
        mutations=5,
        actors=2,
        actors_restarted=1,
        learners_replaced=1,
        discarded_rollouts=4,
        lag_mean=1.25,
        lag_max=6,
        tuned=frozenset(INITIAL),
        busy_threads={"environment": 3.0, "learning": 1.0, "waiting": 0.6},
    )
    return replace(shown, **changes)
