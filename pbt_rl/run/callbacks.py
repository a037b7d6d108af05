"""User callbacks of a run.

    on_report(view)                  about every second (up to 10 s apart if views take long), and at the end
    on_decision(report, decisions)   after each comparison with decisions
    on_checkpoint(written)           after each checkpoint

view: RunView. report: PopulationReport, the controller's input. decisions: list of Decision. written: Written, such as
`path` and `frames` of the checkpoint.

If a callback returns a `Stop`, the run ends and is saved. `on_report` may instead return metrics: name -> number, or
name -> {member: number}. TensorBoard shows the newest values as `stats/NAME`. Callbacks run in the supervisor's thread.
Slow callbacks therefore delay decisions.

An exception (except KeyboardInterrupt) in a callback also ends and saves the run. `train` raises this exception after
the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

from pbt_rl.controllers.decisions import Decision, PopulationReport
from pbt_rl.display.view import EXTRA, MemberView, RunView, copied
from pbt_rl.errors import ConfigError

if TYPE_CHECKING:
    from pbt_rl.record.checkpoint_writer import Written


@dataclass(frozen=True)
class Stop:
    """Request of a callback to end and save the run. reason: recorded as the reason for the end."""

    reason: str = "stopped"

    def __post_init__(self) -> None:
        """Convert the reason to text. Replace an empty reason by the default."""
        object.__setattr__(self, "reason", str(self.reason or Stop.reason))


Metrics = Mapping[str, float | Mapping[int, float]]
"""Name of a metric -> number for the population, or {member id: number}."""
OnReport = Callable[[RunView], "Stop | Metrics | None"]
OnDecision = Callable[[PopulationReport, Sequence[Decision]], Stop | None]
OnCheckpoint = Callable[["Written"], Stop | None]


@dataclass(eq=False)
class Callbacks:
    """User callbacks and their results. Not thread-safe. Raises ConfigError if a callback is not callable.

    An exception of a callback is stored in `error`. After an exception, no callback is called.
    """

    on_report: OnReport | None = None
    on_decision: OnDecision | None = None
    on_checkpoint: OnCheckpoint | None = None
    folder: Path | None = field(default=None, init=False)
    """Folder of the run. None until the folder exists."""
    ended: str | None = field(default=None, init=False)
    """Reason to end the run. None until a callback requests the end."""
    error: BaseException | None = field(default=None, init=False)
    """Exception of a callback. None: no callback failed. `train` raises the exception after the end of the run."""

    def __post_init__(self) -> None:
        for name in ("on_report", "on_decision", "on_checkpoint"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise ConfigError(f"{name} {given!r:.100} cannot be used: give a function")
        self._own: dict[str, float] = {}
        self._of_member: dict[int, dict[str, float]] = {}

    def report(self, view: RunView) -> RunView:
        """Call `on_report`. Return the view, extended by the newest value of each metric."""
        if (on_report := self.on_report) is not None:
            self._call("on_report", lambda: self._note_report(on_report(copied(view)), view.members))
        members = [
            replace(m, stats=m.stats | self._of_member[m.member]) if m.member in self._of_member else m
            for m in view.members
        ]
        return replace(view, own=dict(self._own), members=members)

    def decided(self, report: PopulationReport, decisions: Sequence[Decision]) -> None:
        """Call `on_decision`."""
        if (on_decision := self.on_decision) is not None:
            self._call("on_decision", lambda: self._note_answer(on_decision(*deepcopy((report, decisions)))))

    def saved(self, written: Written) -> None:
        """Call `on_checkpoint`."""
        if (on_checkpoint := self.on_checkpoint) is not None:
            self._call("on_checkpoint", lambda: self._note_answer(on_checkpoint(written)))

    def _call(self, name: str, function: Callable[[], None]) -> None:
        if self.error is not None:
            return
        try:
            function()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - `train` raises it after the run was saved
            self.error, self.ended = error, f"{name} raised {type(error).__name__}"

    def _note_report(self, answer: object, members: Sequence[MemberView]) -> None:
        if not isinstance(answer, Mapping):
            self._note_answer(answer, " or a dict of metrics")
            return
        for name, value in answer.items():
            if not isinstance(name, str) or not name:
                raise TypeError(f"metric name {name!r} cannot be used: give a non-empty string")
            if not isinstance(value, Mapping):
                self._own[EXTRA + name] = _number(name, value)
                continue
            for member, its in value.items():
                if member not in range(len(members)):
                    raise ValueError(f"metric {name!r} has member {member!r}: give 0 to {len(members) - 1}")
                self._of_member.setdefault(member, {})[EXTRA + name] = _number(name, its)

    def _note_answer(self, answer: object, other: str = "") -> None:
        if isinstance(answer, Stop):
            self.ended = self.ended or answer.reason
        elif answer is not None:
            raise TypeError(f"a callback returned {answer!r:.80}: return None, pbt_rl.Stop(reason){other}")


def _number(name: str, value: object) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"metric {name!r} is {value!r:.80}: give a number")
    return float(value)
