"""Control group: members that start like the members that PBT trains, but that PBT never changes.

ids 0 .. num_policies - 1    members that the controller compares and changes
ids num_policies ..          controls: the controller does not receive them, and they are never donors
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

from pbt_rl.config import Config
from pbt_rl.controllers.controllers import ControllerWrapper
from pbt_rl.controllers.decisions import Continue, Controller, Decision, Evaluate, PopulationReport
from pbt_rl.controllers.entry import ControllerEntry
from pbt_rl.controllers.hypers import HyperSpec, Values
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import require
from pbt_rl.plan import Plan


@dataclass(eq=False)
class Controlled(ControllerWrapper):
    """Wrapper that hides the controls from a controller.

    Control i (member num_policies + i) starts with the weights (`initialised_net`) and values of member i. The values
    of additional controls are sampled like the values of members.
    Controls are evaluated while other members are evaluated, because a member does not train during its evaluation.
    Frames of evaluations count towards the budget. Without evaluations, controls would train for more frames.
    """

    population: int
    """Number of members that are not controls."""
    _evaluated: set[int] = field(default_factory=set, init=False)
    """Members under evaluation that are not controls."""

    def initial(self, num_members: int) -> list[Values]:
        """Return the initial values of all members, with the controls last."""
        controls = num_members - self.population
        drawn = (
            deepcopy(self.controller).initial(controls)[self.population :]
            if controls > self.population
            else []
        )
        values = self.controller.initial(self.population)
        return [*values, *map(dict, values[:controls]), *drawn]

    def seen(self, report: PopulationReport) -> PopulationReport:
        """Return the report without the controls."""
        return replace(report, members=tuple(m for m in report.members if m.member < self.population))

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Return the controller's decisions, followed by decisions that start or end the evaluation of controls."""
        decisions = self.controller.observe(self.seen(report))
        return [*decisions, *self._evaluations(report, decisions)]

    def _evaluations(self, report: PopulationReport, decisions: list[Decision]) -> list[Decision]:
        """Return decisions that evaluate the controls while at least one other member is under evaluation."""
        before = bool(self._evaluated)
        begun = [d for d in decisions if isinstance(d, Evaluate)]
        self._evaluated -= {d.member for d in decisions}
        self._evaluated |= {d.member for d in begun}
        controls = [m for m in report.members if m.member >= self.population and not m.broken]
        if begun and not before:
            episodes = begun[0].episodes
            return [
                Evaluate(m.member, episodes, "a control, evaluated with the population") for m in controls
            ]
        if before and not self._evaluated:
            return [Continue(m.member, "a control, evaluated and left alone") for m in controls]
        return []


def around(
    controller: Controller, config: Config, entry: ControllerEntry, _tuned: Mapping[str, HyperSpec]
) -> Controller:
    """Wrap a controller if the run has controls. Raises ConfigError if the controller does not support controls."""
    if not config.controls:
        return controller
    why = ""
    if entry.searches:
        why = (
            f"--controller {config.controller} stops members early, so controls would not have equal frames: compare "
            "two runs instead"
        )
    elif entry.follows:
        why = f"--controller {config.controller} does not compare members: give another --seed or other --hypers"
    elif config.controller == "pbt" and not config.pbt.enabled:
        why = "with --pbt.no-enabled no member is changed: leave out one of the two options"
    require(not why, "control", f"{config.control:g}", why)
    return Controlled(controller, config.num_policies)


def check(config: Config, spec: EnvSpec, _plan: Plan) -> None:
    """Raise ConfigError if controls would play against the members that PBT trains."""
    why = f"the members of {config.env} play against each other, and controls would be opponents of the population"
    fits = not config.controls or spec.agents == 1
    require(fits, "control", f"{config.control:g}", f"{why}: leave out --control")


def notes(config: Config) -> list[str]:
    """Return a note that lists the controls. Empty without controls."""
    more, last = config.controls, config.members - 1
    if not more:
        return []
    which = (
        f"member {last} is a control, with the initial values of the first member"
        if more == 1
        else f"members {config.num_policies} to {last} are controls, with the initial values of the first members"
    )
    return [f"note: {which}; PBT never changes or copies controls (--control)"]
