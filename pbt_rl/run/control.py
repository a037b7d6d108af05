"""A control group: members that begin as the population does, train as long, and are left alone.

ids 0 .. num_policies - 1    the population: the controller compares and changes them
ids num_policies ...         controls: no controller sees them, so none is a donor or is changed
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
    """A controller of the first members; the others are left alone.

    Control i begins with the weights (`drawn_net`) and the values of member i, so that the luck of the draw is the same
    in both groups; if there are more controls than members, the others are drawn as the controller draws members.
    Controls are evaluated when the population is, because frames of an evaluation teach nothing.
    """

    population: int
    """Members that the controller sees."""
    _evaluated: set[int] = field(default_factory=set, init=False)
    """Members of the population that are being evaluated."""

    def initial(self, num_members: int) -> list[Values]:
        """Return the values of the population and, behind them, those of the controls."""
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
        """Return what the controller decides of its members."""
        decisions = self.controller.observe(self.seen(report))
        return [*decisions, *self._evaluations(report, decisions)]

    def _evaluations(self, report: PopulationReport, decisions: list[Decision]) -> list[Decision]:
        """Let controls be evaluated from when the first member is until no member is any more."""
        before = bool(self._evaluated)
        begun = [d for d in decisions if isinstance(d, Evaluate)]
        self._evaluated -= {d.member for d in decisions}
        self._evaluated |= {d.member for d in begun}
        controls = [m for m in report.members if m.member >= self.population and not m.broken]
        if begun and not before:
            episodes = begun[0].episodes
            return [
                Evaluate(m.member, episodes, "a control, evaluated as the population is") for m in controls
            ]
        if before and not self._evaluated:
            return [Continue(m.member, "a control, evaluated and left alone") for m in controls]
        return []


def around(
    controller: Controller, config: Config, entry: ControllerEntry, _tuned: Mapping[str, HyperSpec]
) -> Controller:
    """Return the controller that does not see the controls of a run, if there are any. Raises ConfigError."""
    if not config.controls:
        return controller
    why = ""
    if entry.searches:
        why = (
            f"--controller {config.controller} draws members and stops them, so that they have no frames to compare "
            "at: compare two runs instead"
        )
    elif entry.follows:
        why = f"--controller {config.controller} compares no members: give other --seed or --hypers"
    elif config.controller == "pbt" and not config.pbt.enabled:
        why = "with --pbt.enabled no every member is left alone: leave out one of the two"
    require(not why, "control", f"{config.control:g}", why)
    return Controlled(controller, config.num_policies)


def check(config: Config, spec: EnvSpec, _plan: Plan) -> None:
    """Raise ConfigError if controls would be opponents of the population."""
    why = (
        f"the members of {config.env} play each other, so that controls would be opponents of the population"
    )
    fits = not config.controls or spec.seats == 1
    require(fits, "control", f"{config.control:g}", f"{why}: leave it out")


def notes(config: Config) -> list[str]:
    """Return which members are controls, for the plan of a run."""
    more, last = config.controls, config.members - 1
    if not more:
        return []
    which = (
        f"member {last} is a control, which begins as the first member does and is"
        if more == 1
        else f"members {config.num_policies} to {last} are controls, which begin as the first members do and are"
    )
    return [f"note: {which} never changed or copied (--control)"]
