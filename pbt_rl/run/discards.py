"""Rollouts that are thrown away: how many, and what to change if they are many."""

from __future__ import annotations

from pbt_rl.display.view import MANY_DISCARDED, RunView
from pbt_rl.run.describe import lag_remedies
from pbt_rl.run.resolved import ResolvedRun

ENOUGH_ROLLOUTS = 100
"""Before this many were sampled nothing is said: the first ones are few, and their share means nothing."""
NEAR_LIMIT = 0.75
"""If rollouts that were learned from came as near to the limit on the lag as this, others passed it."""


def discarded_share(resolved: ResolvedRun, discarded: int, steps: int) -> float:
    """Return the share of discarded rollouts among all. discarded: rollouts of one policy; steps: of all members."""
    sampled = _rollouts(resolved, steps)
    return min(1.0, discarded / sampled) if sampled >= 1 else 0.0


def discard_warning(resolved: ResolvedRun, view: RunView) -> str | None:
    """Return what to change if a run throws many rollouts away; None if it does not, or if it is too early to tell."""
    if view.discarded_share < MANY_DISCARDED or _rollouts(resolved, view.steps) < ENOUGH_ROLLOUTS:
        return None
    config, limit = resolved.config, resolved.config.learner.max_policy_lag
    if view.lag_max >= NEAR_LIMIT * limit:
        others = f"a larger --learner.batch, fewer --actors (now {resolved.plan.actors}), or a limit of {2 * limit}"
        remedies = ", ".join(lag_remedies(resolved)) or others
        why = f"they were older than --learner.max-policy-lag {limit}. Use {remedies}"
    elif config.searches:
        why = (
            "a configuration that stops or starts again leaves those under way. Train each for longer: "
            "a larger --train-for-frames, --search.phase-frames or --search.phase-episodes"
        )
    elif resolved.plan.packs[0].slots < len(resolved.plan.packs[0].members):
        why = f"their members left their slots. Use longer turns: --slot-frames above {config.slot_frames:,}"
    else:
        why = (
            "their weights were replaced meanwhile. Compare members less often: a longer --pbt.period-frames"
        )
    share, number = view.discarded_share, view.discarded_rollouts
    return f"WARNING: {share:.0%} of all rollouts ({number:,}) were sampled in vain: {why}"


def _rollouts(resolved: ResolvedRun, steps: int) -> float:
    """Return how many rollouts of one policy these steps make."""
    packs = resolved.plan.packs
    envs = sum(pack.envs_per_policy for pack in packs) / len(packs)
    return steps / (envs * resolved.config.learner.rollout)
