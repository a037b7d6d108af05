"""Options that were given, and that nothing in this run reads: a note on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pbt_rl.config import Config
from pbt_rl.controllers.registry import controller_entry
from pbt_rl.envs.registry import backend_of
from pbt_rl.options import table
from pbt_rl.registry import CONTROLLERS, EXPLOIT_RULES, EXPLORE_RULES, READY_RULES
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.shown import ENVIRONMENT_GROUPS, as_typed, read_groups

KINDS: Mapping[str, Mapping[str, Any]] = {
    "pbt.ready": READY_RULES,
    "pbt.exploit": EXPLOIT_RULES,
    "pbt.explore": EXPLORE_RULES,
}
"""Option that names a rule -> the rules."""
OF_CONTROLLERS = ("schedule", "search", "pbt.frequencies", "pbt.migrant_hypers")
"""Groups of options, and single ones, that only some controllers read."""


def unread(resolved: ResolvedRun) -> list[str]:
    """Return a note for each option that has another value than usual, and that this run does not read."""
    config = resolved.config
    backend, name = backend_of(config.env, config.env_options)
    made = backend.recipe_of  # none is made again for it
    recommended = backend.recipe(name, config.env_options) if made is None else made(resolved.spec)
    reasons = dict([*_reasons(config, resolved.spec.seats), *_of_learning(resolved)])
    found = []
    for one in table(config).values():
        value = one.of(config)
        if one.field in reasons and value not in (one.default, recommended.get(one.field, one.default)):
            found.append(f"note: {' '.join(as_typed(one, value))} does nothing here: {reasons[one.field]}")
    return found


def _reasons(config: Config, seats: int) -> Iterator[tuple[str, str]]:
    """Yield the options (as files write them) that this run does not read, and why."""
    for group in ENVIRONMENT_GROUPS - read_groups(config.env, seats):
        yield from _of_group(config, group, f"{config.env} does not read it")
    if config.num_policies > 1:
        yield from of_rules(config)
    elif ":" not in config.controller:
        yield from _of_controllers(config)


def of_rules(config: Config) -> Iterator[tuple[str, str]]:
    """Yield likewise the options of controllers and of rules. A controller of the user's own may read any of them."""
    if ":" in config.controller:
        return
    yield from _of_controllers(config)
    entry, pbt = controller_entry(config.controller), config.pbt
    off = entry.compares and not pbt.enabled
    if off:
        yield "controller", "--pbt.no-enabled leaves all members alone"
    why = f"{'--pbt.no-enabled' if off else f'--controller {config.controller}'} compares no members by it"
    if off or not entry.compares:
        yield from ((name, why) for name in ("pbt.copy", "pbt.custom_explore"))
    for option, rules in KINDS.items():
        chosen = option.partition(".")[2]
        rule = getattr(pbt, chosen)
        of_kind = {name for other in rules.values() for name in other.options} - {*entry.options}
        if off or not entry.compares:
            yield from ((name, why) for name in (option, *of_kind))
        elif rule in rules and not (chosen == "ready" and getattr(config, "hours", None) is not None):
            for name in of_kind.difference(rules[rule].options):
                readers = [other for other, declared in rules.items() if name in declared.options]
                yield name, f"it is read by --{option} {', '.join(readers)}"


def _of_controllers(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the options that belong to other controllers."""
    for name in sorted({*OF_CONTROLLERS}.difference(controller_entry(config.controller).options)):
        readers = [other for other, entry in CONTROLLERS.items() if name in entry.options]
        yield from _of_group(config, name, f"it is read by --controller {', '.join(readers)}")


def _of_group(config: Config, group: str, reason: str) -> Iterator[tuple[str, str]]:
    """group: of options, or a single one."""
    yield from ((one.field, reason) for one in table(config).values() if group in (one.path[0], one.field))


def _of_learning(resolved: ResolvedRun) -> Iterator[tuple[str, str]]:
    """Yield likewise what neither the algorithm nor the network reads, nor the games at the end."""
    config, spec = resolved.config, resolved.spec
    for one in table(config).values():
        if one.path[0] == "hypers" and one.path[-1] not in resolved.table:
            how = f" with {'V-trace' if config.uses_vtrace else 'GAE'}" * (config.algo == "appo")
            yield one.field, f"--algo {config.algo} does not read it{how}"
    model, learner = config.model, config.learner
    if getattr(config.hypers, "unroll", 0) > learner.rollout:
        yield (
            "hypers.unroll",
            f"a rollout has {learner.rollout} steps (--learner.rollout), and returns look no further",
        )
    if learner.lr_schedule != "kl-adaptive":
        yield "learner.lr_schedule_kl", "it is read by --learner.lr-schedule kl-adaptive"
    if learner.epochs * learner.minibatches == 1:
        yield "learner.target_kl", "a batch is one optimiser step (--learner.epochs, --learner.minibatches)"
    if model.core == "none":
        yield "model.core_size", "the network has no memory (--model.core)"
    if config.algorithm.learns_per_unit:
        once = f"--algo {config.algo} learns once from each rollout"
        yield from ((name, once) for name in ("learner.epochs", "learner.minibatches"))
    if config.mode != "async":
        fresh = f"with --mode {config.mode} no rollout is older than the policy"
        yield from ((name, fresh) for name in ("learner.max_policy_lag", "learner.proximal"))
    if not config.slots:
        yield "slot_frames", "all members train at the same time (--slots)"
    if spec.seats > 1:
        yield "final_episodes", "a score means little without its opponents"
    elif spec.tasks:
        yield "final_episodes", "an episode of each task would take too long"
