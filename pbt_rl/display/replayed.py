"""How much of a run's work on GPUs is replayed, added up over its learners: as curves and in summary.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pbt_rl.display.view import RunView


@dataclass(frozen=True)
class Replayed:
    """How many calls of one kind there were on a GPU, and how many of them repeated recorded ones."""

    replayed: int
    of: int
    why_not: str = ""
    """Why recording failed, if it did."""


def replayed(view: RunView) -> dict[str, Replayed]:
    """Return `turns` and `steps` of all learners; empty without a GPU."""
    found: dict[str, Replayed] = {}
    for learner in view.accelerated:
        for name, one in learner.items():
            so_far = found.get(name, Replayed(0, 0))
            found[name] = Replayed(
                so_far.replayed + one.replayed, so_far.of + one.of, so_far.why_not or one.why_not
            )
    return found


def shares(view: RunView) -> dict[str, float]:
    """Return the share of each kind that is replayed, as far as there was any."""
    return {name: one.replayed / one.of for name, one in replayed(view).items() if one.of}


def scalars(view: RunView) -> dict[str, float]:
    """Return tag -> share."""
    return {f"throughput/replayed_{name}": share for name, share in shares(view).items()}


def in_summary(view: RunView) -> dict[str, Any]:
    """Return `replayed`; nothing without a GPU."""
    counts = {name: asdict(one) for name, one in replayed(view).items()}
    return {"replayed": counts} if counts else {}


class Remarks:
    """Says once why not all is replayed."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, view: RunView) -> list[str]:
        """Return what is to be said now."""
        why = {one.why_not for one in replayed(view).values() if one.why_not}
        new = sorted(why - self._said)
        self._said |= why
        return [
            f"the GPU replays not all of its work ({one}): this run is slower than it could be" for one in new
        ]
