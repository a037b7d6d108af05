"""Population-based training of anything that trains: a network, a simulation, a formula.

    factory -> members --objectives--> controller --decisions--> members, record
                  ^ step, evaluate                     | state, load, new hypers
                  +------------------------------------+

All members that have a slot take the same number of steps, then each is evaluated, then the controller is asked.
So a run is repeatable however many processes share the work: nobody's speed decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbt_rl.errors import require
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.population.assigner import SlotAssigner
from pbt_rl.tune.training import Result, Row, Training
from pbt_rl.tune.workers import LocalCrew, Member, WorkerCrew

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
    resident: int = 0,
    turn_steps: int | None = None,
    workers: int = 0,
    journal: Path | None = None,
    seed: int = 0,
) -> Result:
    """Train a population until every member that was not stopped has taken `steps` steps.

    - members: the members themselves, or a factory `make_member(index)` and `num_members`. Indices 0 .. N - 1 are the
      members at the start; a member that is restarted is made with the next index, so a factory that seeds by
      it gives other weights. (Members that were given as such go back to the state that they came with.)
    - controller: its clock, the *frames* of its reports, is the number of steps that a member has taken.
    - evaluate_every: steps between two evaluations, after which the controller is asked (also before the first
      step). window: an objective is the mean of at most this many last evaluations since the member changed.
    - table: with it, `step` is given `decode`d hypers (integers, choices, tuples), without it plain numbers.
    - resident: how many members may train at a time; 0: all. Where members take turns, the least trained first, a turn
      has `turn_steps` steps; None: a member keeps its slot until it is stopped, waits for a decision or is done.
    - workers: 0 or 1: all in this process; more: each member lives in one of so many processes. The result is the
      same, if members draw from generators of their own.
    - journal: file to write the run's record to, as `pbt-rl train` does (`runs/NAME/journal.jsonl`).
    - seed: noted in the journal; the controller and the members bring their own.

    A member whose code raises is *broken*: it is reported as such, with NaN for its objective, its steps pass without
    work, and a decision that brings new weights heals it. RunFailed if all are broken, or if a worker died.
    """
    require(steps > 0, "steps", steps, "give 1 or more")
    require(evaluate_every > 0, "evaluate-every", evaluate_every, "give 1 or more")
    require(window > 0, "window", window, "give 1 or more")
    require(workers >= 0, "workers", workers, "give 0 or more")
    if callable(members):
        require(bool(num_members), "num-members", num_members, "say how many members the factory is to make")
        make, count = members, num_members or 0
    else:
        require(workers <= 1, "workers", workers, "give a factory: members cannot move to other processes")
        make, count = list(members).__getitem__, len(members)
        require(count > 0, "members", members, "give 1 or more")
    require(0 <= resident <= count, "resident", resident, f"give 0 (all) to {count}")
    crew = WorkerCrew(make, min(workers, count)) if workers > 1 else LocalCrew(make)
    record = None
    try:
        facts = {
            "steps": steps,
            "num_members": count,
            "evaluate_every": evaluate_every,
            "window": window,
            "resident": resident,
            "turn_steps": turn_steps,
            "controller": type(controller).__name__,
        }
        record = _open_journal(journal, facts, seed, table)
        training = Training(
            crew,
            controller,
            [Row(i, values, window) for i, values in enumerate(controller.initial(count))],
            SlotAssigner(count, resident or count, turn_steps),
            record,
            table,
            steps,
            evaluate_every,
            given=not callable(members),
        )
        return training.run()
    finally:
        crew.close()
        if record is not None:
            record.close()


def _open_journal(
    path: Path | None, facts: dict[str, Any], seed: int, table: Mapping[str, HyperSpec] | None
) -> Journal | None:
    if path is None:
        return None
    from pbt_rl.record.journal import Journal  # noqa: PLC0415 - only a run that is recorded needs it

    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(path)
    journal.start({"api": "pbt_rl.pbt.run", **facts}, seed, {"table": dict(table or {})})
    return journal
