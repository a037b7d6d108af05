"""What goes wrong unseen in a run that trains, with what to change."""

from __future__ import annotations

from pbt_rl.advice.plan import lag_remedies
from pbt_rl.config import Config
from pbt_rl.display.view import MANY_DISCARDED, RunView
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.views import rollouts_in

ENOUGH_ROLLOUTS = 100
"""Before this many were sampled nothing is said: the first ones are few, and their share means nothing."""
NEAR_LIMIT = 0.75
"""If rollouts that were learned from came as near to the limit on the lag as this, others passed it."""
LONG_SECONDS = 3600.0
"""A first comparison that is further away than this is pointed out."""
STEADY_SECONDS = 30.0
"""Before, the speed of a run says little about hours."""
LONG_WAIT = 3
"""Periods that a comparison may wait for episodes before that is said."""


class Remarks:
    """Says each of them once."""

    def __init__(self, resolved: ResolvedRun) -> None:
        self._resolved = resolved
        self._said: set[str] = set()
        """Kinds of remarks."""
        self._episodes = self._restarted = 0
        """Episodes of all members, and restarts of actors when their number rose last."""
        self._due_frames: int | None = None
        """Frames of the member with the fewest, when a comparison that waits for episodes was due."""

    def __call__(self, view: RunView) -> list[str]:
        """Return what is to be said now."""
        kinds = {
            "discarded": discard_warning(self._resolved, view),
            "late": late_comparison_warning(self._resolved.config, view),
            "endless": self._restarts_without_episode(view),
            "waits": self._comparison_that_waits(view),
        }
        found = {kind: text for kind, text in kinds.items() if text and kind not in self._said}
        self._said |= found.keys()
        return list(found.values())

    def _restarts_without_episode(self, view: RunView) -> str | None:
        """Return a line if an environment always fails before its episode ends, but too slowly for an error."""
        episodes = sum(one.episodes for one in view.members)
        if episodes != self._episodes:
            self._episodes, self._restarted = episodes, view.actors_restarted
        times = view.actors_restarted - self._restarted
        if times <= self._resolved.config.max_actor_restarts:
            return None
        return (
            f"warning: actors were restarted {times} times, and no episode has ended in between: members without "
            "episodes have no objective and are not compared. Mend what the errors above name, or make episodes shorter"
        )

    def _comparison_that_waits(self, view: RunView) -> str | None:
        """Return a line if a comparison has been due for long, and waits for episodes to end.

        Long is a period if no episode has ended at all, else LONG_WAIT of them: in a run with short periods, such as
        `make demo`, some comparison waits for one.
        """
        frames = min((one.frames for one in view.members if not (one.stopped or one.control)), default=0)
        if view.comparison_in_seconds != 0:
            self._due_frames = None
            return None
        if self._due_frames is None:
            self._due_frames = frames
        waited = frames - self._due_frames
        any_ended = any(one.episodes for one in view.members)
        if waited < (LONG_WAIT if any_ended else 1) * self._resolved.config.pbt.period_frames:
            return None
        ended = "episodes are long" if any_ended else "no episode has ended"
        return (
            f"WARNING: a comparison of members has waited for {waited:,} frames of each, over --pbt.period-frames: "
            f"{ended}, and every environment of a member has to end one. Let episodes end (such as by a TimeLimit), or "
            "give each member fewer environments"
        )


def discard_warning(resolved: ResolvedRun, view: RunView) -> str | None:
    """Return what to change if a run throws many rollouts away; None if it does not, or if it is too early to tell."""
    if view.discarded_share < MANY_DISCARDED or rollouts_in(resolved, view.steps) < ENOUGH_ROLLOUTS:
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


def late_comparison_warning(config: Config, view: RunView) -> str | None:
    """Return a line if the first comparison lies hours away."""
    first, seconds = max(config.pbt.start_frames, config.pbt.period_frames), view.comparison_in_seconds
    if view.seconds < STEADY_SECONDS or seconds is None or seconds < LONG_SECONDS:
        return None
    if min((one.frames for one in view.members if not one.stopped), default=first) >= first:
        return None
    return (
        f"note: the first comparison of members is about {seconds / 3600:.0f} h away (at {first:,} frames of each, "
        "--pbt.start-frames and --pbt.period-frames)"
    )
