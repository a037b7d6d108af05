"""The blows of a storm: which processes of a run get what, when; and the table of all that were struck."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

SAVE_SECONDS = 2.0
"""Between two checkpoints."""
MOMENTS = ("start", "training", "checkpoint", "replacement", "end")
NEVER, TERM = float("inf"), -1.0


@dataclass(frozen=True)
class Blow:
    """What is done to which process, and when."""

    moment: str
    victim: str
    seconds: float
    """Of SIGSTOP until SIGCONT; 0: SIGKILL; infinite: for ever; negative: SIGTERM."""

    @property
    def name(self) -> str:
        """Column of the table."""
        return {0.0: "SIGKILL", NEVER: "SIGSTOP", TERM: "SIGTERM"}.get(self.seconds, "SIGSTOP, SIGCONT")


@dataclass
class Tally:
    """What happened in all runs."""

    blows: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(victim, what it got) -> how often."""
    moments: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    resumes: int = 0
    anew: int = 0
    """Runs that had no checkpoint yet when they were killed."""
    worst_loss_seconds: float = 0.0
    losses: int = 0
    failures: list[str] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)

    def show(self) -> str:
        """Return the tables of blows, and what was seen."""
        columns = ("SIGKILL", "SIGSTOP, SIGCONT", "SIGSTOP", "SIGTERM")
        victims = sorted({victim for victim, _ in self.blows})
        lines = [f"{'victim':12}" + "".join(f"{column:>18}" for column in columns)]
        lines += [
            f"{victim:12}" + "".join(f"{self.blows[victim, column]:18}" for column in columns)
            for victim in victims
        ]
        for name, counts in (("moments", self.moments), ("ends", self.ends), ("runs", self.runs)):
            lines.append(f"{name}: " + ", ".join(f"{what} {n}" for what, n in sorted(counts.items())))
        lines.append(
            f"{self.blows.total()} blows, {self.resumes} resumes, {self.anew} begun anew; worst loss "
            f"{self.worst_loss_seconds:.1f} s of {self.losses} (saved every {SAVE_SECONDS:.0f} s); "
            f"{len(self.failures)} failures"
        )
        return "\n".join([*lines, *self.failures])


def draw_blows(rng: random.Random, *, serial: bool) -> Iterator[Blow]:
    """Draw the blows of one life; the last is one that may end it."""
    kept = ("drawing",) if serial else ("actor", "actor", "keeper", "drawing")
    fatal = () if serial else ("learner", "learner")
    for _ in range(rng.randrange(6)):
        victim = rng.choice(kept)
        yield Blow(rng.choice(MOMENTS[:4]), victim, 0.0 if victim == "keeper" else _draw_pause(rng))
    victim = rng.choice((*fatal, "supervisor", "supervisor", "everything"))
    seconds = 0.0 if victim == "everything" else _draw_pause(rng)
    if victim == "supervisor" and rng.random() < 0.25:
        seconds = TERM
    yield Blow(rng.choice(MOMENTS), victim, seconds)


def _draw_pause(rng: random.Random) -> float:
    """Draw what `Blow.seconds` is, without SIGTERM."""
    return rng.choice((0.0, 0.0, rng.uniform(0.1, 2.0), NEVER))
