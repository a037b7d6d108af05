"""Paired comparison of controllers for members of `tune.run`.

    outcome = prove_members(make, table, {"pbt": my_pbt}, score=test_score, steps=1000, seeds=range(5))
    for line in outcome.lines(): print(line)

The runs are made one after the other in this process. No files are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from pbt_rl.controllers import Controller, HyperSpec, StaticController, Values, sample_prior
from pbt_rl.controllers.starts import Started
from pbt_rl.errors import require
from pbt_rl.experiments.prove.judged import Judged
from pbt_rl.experiments.prove.outcome import Outcome, Scores, outcome
from pbt_rl.tune import Member, run
from pbt_rl.tune.result import Outcome as Ended

ALONE = "random"
"""Name of the baseline arm. Its members begin with the initial values of the other arms, and are never changed."""


def prove_members(
    make: Callable[[int, int], Any],
    table: Mapping[str, HyperSpec],
    arms: Mapping[str, Callable[[int], Controller]],
    *,
    score: Callable[[Any], float],
    steps: int,
    num_members: int = 8,
    seeds: Sequence[int] = range(5),
    window: int = 1,
) -> Outcome:
    """Train the arms and the baseline `random` on each seed, and compare each arm with the baseline.

    - make: (seed, index) -> a member of `tune.run`. At the end of a run, the member with the best `evaluate()` is
      picked.
    - table: name -> HyperSpec. All arms begin with equal samples from the priors of this table.
    - arms: name -> (seed -> controller). The name `random` is not allowed.
    - score: member -> test score of this member. The test score of the picked member is the score of the run. The
      function `score` must use other data than `evaluate()`.
    - seeds: two or more.
    - steps, num_members, window: see `tune.run`.

    Raises ConfigError for fewer than two different seeds, for an arm with the name `random`, if the score of a run is
    not finite, or if no member of a run has a finite evaluation. Also raises the errors of `tune.run`.
    """
    require(len(set(seeds)) >= 2, "seeds", list(seeds), "give two or more, because one seed has no spread")
    require(ALONE not in arms, "arms", ALONE, "use another name, because this arm is built in")
    scores: Scores = {}
    for arm, build in {ALONE: lambda _seed: StaticController(table), **arms}.items():
        scores[arm] = {}
        for seed in seeds:
            members: list[Member] = [make(seed, index) for index in range(num_members)]
            rows = _drawn(table, seed, num_members)
            result = run(
                members, Started(build(seed), rows), steps=steps, window=window, table=table, progress=False
            )
            validation = tuple(map(_evaluated, members, result.members))
            why = (
                f"no member of seed {seed} has a finite evaluation at its end: check what `evaluate` returns"
            )
            require(any(map(math.isfinite, validation)), "arms", arm, why)
            pairs = zip(members, validation, strict=True)
            test = tuple(score(member) if math.isfinite(value) else value for member, value in pairs)
            frames = sum(member.steps for member in result.members)
            judged = Judged(1, frames, tuple(range(num_members)), validation, test)
            wrong = f"arm {arm}, seed {seed}: return a finite number"
            require(math.isfinite(judged.score), "score", judged.score, wrong)
            scores[arm][seed] = judged
    return outcome(scores, ALONE)


def _evaluated(member: Member, ended: Ended) -> float:
    """Return the validation score of a member. Minus infinity for a broken or diverged member."""
    value = -math.inf if ended.broken else float(member.evaluate())
    return value if math.isfinite(value) else -math.inf


def _drawn(table: Mapping[str, HyperSpec], seed: int, members: int) -> tuple[Values, ...]:
    rng = Random(f"members.{seed}")
    return tuple(
        {name: sample_prior(spec, rng) for name, spec in table.items() if spec.tuned} for _ in range(members)
    )
