"""Population-based training of anything that trains: a network, a simulation, a formula.

    factory -> members --objectives--> controller --decisions--> members, record
                  ^ step, evaluate                     | state, load, new hypers
                  +------------------------------------+

All members that hold a slot take the same number of steps, then each is evaluated, then the controller observes them.
A run is therefore repeatable with any number of processes: no decision depends on the speed of a member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbt_rl.errors import require
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.member import MemberRecord
from pbt_rl.pbt.objectives import ObjectiveWindow
from pbt_rl.population.assigner import SlotAssigner
from pbt_rl.tune.result import Result
from pbt_rl.tune.training import Training
from pbt_rl.tune.workers import LocalPool, Member, ProcessPool

if TYPE_CHECKING:
    from pbt_rl.record.journal import Journal


def run(
    members: Callable[[int], Member] | Sequence[Member],
    controller: Controller,
    *,
    steps: int,
    num_members: int | None = None,
    evaluate_every: int = 1,
    window: int = 1,
    table: Mapping[str, HyperSpec] | None = None,
    slots: int = 0,
    slot_steps: int | None = None,
    workers: int = 0,
    journal: Path | None = None,
    seed: int = 0,
) -> Result:
    """Train a population until every member that was not stopped has taken `steps` steps.

    - members: the members themselves, or a factory `make_member(index)` and `num_members`. The members at the start
      have the indices 0 .. N - 1; a restarted member is made with the next index, so a factory that seeds by it gives
      other weights. (Members passed as such restart from the state that they were passed in.)
    - controller: its clock, the *frames* of its reports, is the number of steps that a member has taken.
    - evaluate_every: steps between two evaluations. The controller observes after each, and before the first step.
      window: an objective is the mean of at most this many last evaluations since the member's last change.
    - table: with it, `step` receives `decode`d hypers (integers, choices, tuples), without it plain numbers.
    - slots: number of members that train at a time, the least trained first; 0: all. slot_steps: with fewer slots than
      members, a member leaves its slot to a less trained one after this many steps; None: it keeps the slot until it is
      stopped, waits for a decision or is done.
    - workers: 0 or 1: all members in this process; more: in this many processes. The result is the same if members
      draw from random generators of their own.
    - journal: file for the record of the run, in the format of `pbt-rl train` (`runs/NAME/journal.jsonl`).
    - seed: only noted in the journal; the controller and the members have seeds of their own.

    A member whose code raises is *broken*: it is reported as such, with NaN for its objective, its steps pass without
    work, and a decision that brings new weights repairs it. Raises RunFailed if all are broken, or if a worker died.
    """
    require(steps > 0, "steps", steps, "give 1 or more")
    require(evaluate_every > 0, "evaluate-every", evaluate_every, "give 1 or more")
    require(window > 0, "window", window, "give 1 or more")
    require(workers >= 0, "workers", workers, "give 0 or more")
    if callable(members):
        require(
            bool(num_members), "num-members", num_members, "give the number of members that the factory makes"
        )
        make, count = members, num_members or 0
    else:
        require(workers <= 1, "workers", workers, "give a factory: members cannot move to other processes")
        make, count = list(members).__getitem__, len(members)
        require(count > 0, "members", members, "give 1 or more")
    require(0 <= slots <= count, "slots", slots, f"give 0 (all) to {count}")
    pool = ProcessPool(make, min(workers, count)) if workers > 1 else LocalPool(make)
    record = None
    try:
        options = {
            "steps": steps,
            "num_members": count,
            "evaluate_every": evaluate_every,
            "window": window,
            "slots": slots,
            "slot_steps": slot_steps,
            "controller": type(controller).__name__,
        }
        record = _open_journal(journal, options, seed, table)
        initial = controller.initial(count)
        training = Training(
            pool,
            controller,
            [MemberRecord(i, v, ObjectiveWindow(tasks=1, window=window)) for i, v in enumerate(initial)],
            SlotAssigner(range(slots or count), slot_steps),
            record,
            table,
            steps,
            evaluate_every,
            given=not callable(members),
        )
        return training.run()
    finally:
        pool.close()
        if record is not None:
            record.close()


def _open_journal(
    path: Path | None, options: dict[str, Any], seed: int, table: Mapping[str, HyperSpec] | None
) -> Journal | None:
    if path is None:
        return None
    from pbt_rl.record.journal import Journal  # noqa: PLC0415 - only a run that is recorded needs it

    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(path)
    journal.start({"api": "pbt_rl.tune.run", **options}, seed, {"table": dict(table or {})})
    return journal
