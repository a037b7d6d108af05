"""What a run has come to, in a sentence; and why its members were never compared, if so."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from pbt_rl.controllers.history.lineage import Lineage
from pbt_rl.controllers.history.noise import Noise
from pbt_rl.display.ranking import best, best_member, number, replacements
from pbt_rl.display.terminal import counted
from pbt_rl.display.view import RunView
from pbt_rl.record.events import Round
from pbt_rl.record.reading import journal_events
from pbt_rl.registry import READY_RULES
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.shown import compares, environments_each, first_comparison


def verdict(resolved: ResolvedRun, view: RunView, folder: Path) -> tuple[str, str]:
    """Return the best member, comparisons and descent; and why there was no comparison, empty if there was one.

    folder: of the run, whose journal is read. Raises ConfigError if that is damaged.
    """
    lineage, noise = Lineage(), Noise()
    for event in journal_events(folder):
        lineage.take(event)
        if isinstance(event, Round):
            noise.note(event)
    parts = [_best(view)]
    if not compares(resolved.config):
        return parts[0], ""
    if not noise.comparisons:
        return parts[0], _uncompared(resolved, view)
    parts.append(f"{replacements(view)} in {counted(noise.comparisons, 'comparison')}")
    population = [m for m in lineage.members if m < resolved.config.num_policies]
    founders = Counter(lineage.line(lineage.present(m).key)[0].member for m in population)
    if view.replacements:
        shares = (f"{n} of {len(population)} from member {founder}" for founder, n in founders.most_common(3))
        rest = f" and {len(founders) - 3} more" if len(founders) > 3 else ""
        parts.append(f"members descend: {', '.join(shares)}{rest}")
    return "; ".join(parts), ""


def _best(view: RunView) -> str:
    """Return the best member and its score in final games; without them, in training."""
    named = best_member(view.members)
    final = next((m.final for m in view.members if m.member == named), None)
    if final is None:
        return best(view)
    return f"best: member {named}, {number(final.mean)} in {counted(final.episodes, 'fresh game')}"


def _uncompared(resolved: ResolvedRun, view: RunView) -> str:
    """Return why nobody was compared, and which option would have had them compared."""
    config, pbt = resolved.config, resolved.config.pbt
    first, trained = first_comparison(config), view.training_seconds
    by_time = READY_RULES[pbt.ready].by_time
    reached = trained if by_time else min((m.frames for m in view.members if not m.stopped), default=0)
    unit = "s" if by_time else "frames each"
    said = f"members were never compared: the first comparison is due at {first:,.0f} {unit}, "
    if reached < first:
        longer = math.ceil(1.5 * first * (1 if by_time else trained / max(reached, 1)))
        budget = f"give --train-for-seconds {longer}"
        if not config.train_for_seconds:
            budget = f"give --train-for-frames {2 * first}"
        if longer < config.train_for_seconds or (
            not config.train_for_seconds and first < config.train_for_frames
        ):
            budget = "resume it"  # it was ended before its time
        kind = "seconds" if by_time else "frames"
        lower = f"lower --pbt.start-{kind} and --pbt.period-{kind}"
        return f"{said}and this run ended at {reached:,.0f}: {budget}, or {lower}"
    nearest = max(view.members, key=lambda m: m.ended)
    option = "--rows" if resolved.plan.packs[0].groups else "--envs-per-unit"
    fewer = max(1, resolved.plan.packs[0].envs_per_policy // 2)
    return (
        f"{said}and waited for an episode of each of a member's {environments_each(resolved)} environments "
        f"(member {nearest.member}: {nearest.ended} of {nearest.environments}): "
        f"give {option} {fewer}, or train longer"
    )
