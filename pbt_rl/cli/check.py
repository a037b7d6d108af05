"""Command `pbt-rl envs check`: step an environment as training does, and report mistakes of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isinf
from statistics import fmean

import numpy as np

from pbt_rl.cli.dry_run import DryRun, Played
from pbt_rl.config import Config
from pbt_rl.envs import lookup
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.conventions import INFORMS
from pbt_rl.envs.time_limits import time_limit

SHORT_STEPS = 500
"""Maximum steps per row in the short runs, which are compared with the main run."""
MANY_SHAPING_VALUES = 12
ADVICE_ON_SEEDS = (
    "; sample only from self.np_random, which super().reset(seed=seed) seeds. If you use another generator, seed it in "
    "reset(seed), and keep its state if the seed is None"
)


@dataclass
class Report:
    """Findings about an environment.

    facts: pairs (title, text). notes: texts about possibly intended behaviour. mistakes: texts about mistakes.
    """

    facts: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Format the findings as lines."""
        text = [f"{title:<12} {fact}" for title, fact in self.facts]
        text += [f"note: {note}" for note in self.notes]
        text += [f"MISTAKE: {mistake}" for mistake in self.mistakes]
        return [*text, f"mistakes: {len(self.mistakes)}" if self.mistakes else "no mistakes found"]


def check(
    env_id: str,
    options: lookup.EnvOptions,
    steps: int = 4000,
    seed: int = 0,
    timeout_seconds: float = 30.0,
    config: Config | None = None,
    device: str = "cpu",
) -> Report:
    """Check an environment.

    Raises ConfigError, EnvSetupError or the environment's exception if the environment cannot be constructed or reset.

    env_id, options: as for training. seed: seed of the environments in the main run.
    steps: number of steps of the main run, summed over all rows. Shorter runs follow.
    timeout_seconds: time limit of each construction, reset and step of the vector env.
    config: options of a run in this environment. The network of the run is checked, too. None: no network is checked.
    device: device of a device simulator. Other environments do not use it.
    """
    limit = f"{timeout_seconds:g} s (--timeout-seconds)"
    with time_limit(timeout_seconds, f"{env_id} hangs: construction and reset took more than {limit}"):
        spec = lookup.probe(env_id, options)
    dry_run = DryRun(env_id, options, spec, timeout_seconds)
    main = dry_run.play(-(-steps // dry_run.rows), seed)
    if main.error is not None and not main.begun:
        raise main.error
    report = Report(_describe(spec), [*spec.notes], [*spec.mistakes])
    if config is not None:
        _report_network(report, config, spec)
    if spec.simulator:
        from pbt_rl.learner.simulators.simulator_check import check_rows

        mistakes, notes = check_rows(env_id, options, spec, steps, seed, device)
        report.mistakes += mistakes
        report.notes += notes
        if mistakes:
            return report
    _report_speed(report, main, dry_run)
    _report_episodes(report, main, dry_run)
    _report_objective(report, main)
    _report_mask(report, main)
    _report_warnings(report, main)
    if main.broke:
        report.mistakes.append(f"at step {len(main.digests) + 1}: {main.broke}")
    elif _report_seeds(report, dry_run, main, seed) and spec.shaping:
        _report_shaping(report, dry_run, main, seed)
    return report


# -- findings -----------------------------------------------------------------------------------------------


def _describe(spec: EnvSpec) -> list[tuple[str, str]]:
    obs = ", ".join(
        f"{name} {'x'.join(map(str, array.shape))} {array.dtype}" for name, array in spec.obs.items()
    )
    action = []
    if spec.action.nvec:
        action.append(f"discrete, {' x '.join(map(str, spec.action.nvec))}")
    if spec.action.low:
        pairs = zip(spec.action.low, spec.action.high, strict=True)
        bounds = ["unbounded" if isinf(low) and isinf(high) else f"{low:g}..{high:g}" for low, high in pairs]
        action.append(f"continuous, {', '.join(bounds)}")
    shaping = ", ".join(f"{name} {value:g}" for name, value in spec.shaping.items()) or "none"
    return [
        ("environment", spec.env_id + (f", {spec.agents} agents" if spec.agents > 1 else "")),
        ("observation", obs),
        ("action", "; ".join(action)),
        ("frames", f"{spec.frame_skip} a step"),
        ("shaping", shaping),
    ]


def _report_network(report: Report, config: Config, spec: EnvSpec) -> None:
    from pbt_rl.learner.own_loss import check_network
    from pbt_rl.run.shown import network_sees

    try:
        check_network(config, spec, ["cpu"])
        report.facts += [
            ("network", line.removeprefix("network inputs: ")) for line in network_sees(config, spec)
        ]
    except ValueError as error:
        report.mistakes.append(str(error))


def _report_speed(report: Report, played: Played, dry_run: DryRun) -> None:
    ledger, steps = played.ledger, len(played.digests) * dry_run.rows
    if not steps:
        return
    cores = "" if dry_run.engine else " on one core"
    text = f"{steps / sum(played.seconds):,.0f} steps/s{cores}, {dry_run.rows} rows, {steps} steps"
    if ledger is not None and ledger.step_seconds:
        resets, each = sum(ledger.reset_seconds), fmean(ledger.reset_seconds)
        text += (
            f"; resets take {resets / (resets + sum(ledger.step_seconds)):.0%} of the environment's time "
            f"({1e3 * each:.3g} ms each, a step {1e3 * fmean(ledger.step_seconds):.3g} ms)"
        )
    report.facts.append(("speed", text))


def _report_warnings(report: Report, played: Played) -> None:
    # Leave out the warning about shaping if another warning reports that only some episodes have an objective.
    some = any(text.startswith('info["true_objective"] is missing at some') for text in played.warnings)
    for text in played.warnings:
        if not (some and text.startswith("there is reward shaping")):
            (report.notes if text.startswith((INFORMS, "picture ")) else report.mistakes).append(text)
    if played.ledger is not None:
        for name, count in played.ledger.outside.items():
            times = f" ({count} times)" if count > 1 else ""
            report.notes.append(
                f"observation {name!r} lies outside the bounds of its space: {played.ledger.examples[name]}{times}"
            )


def _report_episodes(report: Report, played: Played, dry_run: DryRun) -> None:
    if played.lengths:
        text = (
            f"{len(played.lengths)} with random actions: {played.terminated} terminated, {played.truncated} truncated; "
            f"{_range(played.lengths)} steps; return {_range(played.returns)}"
        )
        report.facts.append(("episodes", text))
        if not any(reward.any() for reward in played.rewards_TR):
            report.notes.append("every reward was 0 with random actions")
    elif not played.broke:
        limit = "" if dry_run.engine else ", or a time limit (gymnasium.wrappers.TimeLimit)"
        report.notes.append(
            f"no episode ended in {len(played.digests)} steps of a row, but only finished episodes count for the "
            f"objective: give more --steps{limit}"
        )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.4g}..{max(values):.4g}, mean {fmean(values):.4g}"


def _report_objective(report: Report, played: Played) -> None:
    ledger, text = played.ledger, ""
    if not played.objectives:
        return
    if ledger is not None and ledger.objectives == ledger.ends:
        text = 'info["true_objective"] '
    elif ledger is not None and not ledger.objectives:
        recorded = played.objectives != played.returns
        text = 'info["episode"]["r"] (rewards are changed), ' if recorded else "the episode's return, "
    report.facts.append(("objective", f"{text}{_range(played.objectives)}"))


def _report_mask(report: Report, played: Played) -> None:
    if not played.masked_share:
        return
    idle = played.idle_rows / (len(played.rewards_TR[0]) * len(played.masked_share))
    text = f"forbids {fmean(played.masked_share):.0%} of the choices"
    report.facts.append(("action mask", text + (f"; allows none in {idle:.0%} of the steps" if idle else "")))
    if not any(played.masked_share):
        report.notes.append("the action mask never forbade an action")


def _report_seeds(report: Report, dry_run: DryRun, main: Played, seed: int) -> bool:
    """Compare runs with equal seeds, and runs with different seeds. Return True if equal seeds gave equal steps."""
    steps = min(SHORT_STEPS, len(main.digests))
    again = dry_run.play(steps, seed)
    if again.digests != main.digests[:steps]:
        same = [a == b for a, b in zip(again.digests, main.digests, strict=False)]
        at = same.index(False) if False in same else len(same)
        backend, name = lookup.backend_of(dry_run.env_id, dry_run.options)
        reason = backend.unreproducible(name)
        if at < len(same) and again.rounded[at] == main.rounded[at]:
            reason = reason or "by less than 0.001, which may be rounding errors of a simulator"
        if reason:
            report.notes.append(f"not deterministic under a seed, step {at + 1} differs: {reason}")
        else:
            report.mistakes.append(
                "not deterministic under a seed: in two new environments with equal seeds and actions, "
                f"step {at + 1} differs" + ("" if dry_run.engine else ADVICE_ON_SEEDS)
            )
        return False
    other = dry_run.play(steps, seed + 1)
    differs = other.digests != main.digests[: len(other.digests)]
    report.facts.append(
        (
            "seeds",
            f"equal seeds give the same {steps} steps; other seeds give {'other' if differs else 'the same'} steps",
        )
    )
    if main.ledger is not None:
        beside = dry_run.play(steps, seed, other_actions=True).first_digests
        if beside != main.first_digests[: len(beside)]:
            report.notes.append(
                "environments of one process share state: other actions in the second environment change the steps of "
                "the first. Keep all state in self, not in class attributes, globals or global random numbers"
            )
    if not differs:
        report.notes.append("not seeded: another seed changes nothing. This is correct if nothing is random")
    return True


def _report_shaping(report: Report, dry_run: DryRun, main: Played, seed: int) -> None:
    """Run with one doubled shaping weight at a time, and compare the rewards with those of the main run.

    A weight of 0 becomes 1. Weights after the first MANY_SHAPING_VALUES are not checked.
    """
    defaults, steps = dry_run.spec.shaping, min(SHORT_STEPS, len(main.digests))
    moved: list[str] = []
    unmoved: list[str] = []
    for name in list(defaults)[:MANY_SHAPING_VALUES]:
        changed = dry_run.play(steps, seed, {**defaults, name: 2 * defaults[name] or 1.0})
        mistakes = [text for text in changed.warnings if text.startswith("shaping: ")]
        if changed.broke:
            mistakes.append(f"with shaping {name} doubled: {changed.broke}")
        if mistakes:
            report.mistakes += mistakes
            return
        same = np.array_equal(changed.rewards_TR, main.rewards_TR[: len(changed.rewards_TR)])
        (unmoved if same else moved).append(name)
    if moved:
        report.facts.append(("rewards", f"change with shaping: {', '.join(moved)}"))
    if unmoved:
        doubt = "" if dry_run.engine else "; does set_reward_shaping reach the reward?"
        report.notes.append(
            f"no reward changed in {steps} steps when these values were doubled: {', '.join(unmoved)}{doubt}"
        )
