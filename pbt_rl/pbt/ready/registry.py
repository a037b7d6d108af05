"""The rules of readiness that `--pbt.ready` names. A new rule is one file and one entry here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbt_rl.extras import discover
from pbt_rl.pbt.entry import PERIOD_OPTIONS, ReadyRule
from pbt_rl.pbt.ready.asynchronous import Asynchronous
from pbt_rl.pbt.ready.base import Ready
from pbt_rl.pbt.ready.partially import PartiallySynchronous
from pbt_rl.pbt.ready.synchronous import Synchronous

if TYPE_CHECKING:
    from pbt_rl.pbt.options import PbtConfig


def _period(pbt: PbtConfig) -> tuple[int, int, int, float]:
    return pbt.period_frames, pbt.start_frames, pbt.min_episodes, pbt.period_growth


READY_RULES: dict[str, ReadyRule] = {
    "synchronous": ReadyRule(lambda pbt: Synchronous(*_period(pbt))),
    "asynchronous": ReadyRule(lambda pbt: Asynchronous(*_period(pbt))),
    "partially-synchronous": ReadyRule(
        lambda pbt: PartiallySynchronous(*_period(pbt), fraction=pbt.ready_fraction),
        (*PERIOD_OPTIONS, "pbt.ready_fraction"),
    ),
}
for _extra in discover("pbt_rl.pbt"):
    READY_RULES |= getattr(_extra, "READY_RULES", {})


def build_ready(pbt: PbtConfig) -> Ready:
    """Return the rule of readiness that the options name."""
    return READY_RULES[pbt.ready].build(pbt)
