"""The final games: before the best member is named, the first of the ranking play fresh episodes.

The objective of a member is the mean of its last episodes in training: the highest of many such means is high by
luck too. Fresh episodes, in the environment as `pbt-rl eval` makes it, tell more. Each member plays in a process of
its own, from the checkpoint of the run's end; nothing here changes a member or a decision.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

from pbt_rl.config import Config
from pbt_rl.display.ranking import known_objective
from pbt_rl.display.view import FinalGames, MemberView, RunView
from pbt_rl.envs.base import EnvSpec
from pbt_rl.pbt.objectives import mean, spread
from pbt_rl.play.rounds import JUDGE, FinalRound, FinalSetup
from pbt_rl.procs.child import Child
from pbt_rl.record.checkpoints import Checkpoint
from pbt_rl.run.fleet import log_folder
from pbt_rl.run.resolved import ResolvedRun

CANDIDATES = 4
"""So many of the ranking play, and at most so many at the same time."""
EPISODES = 20
"""If the user says nothing."""
SHARE = 0.1
"""Of the time that the run has trained, at most; so long may they take if the user says nothing."""
MOST_SECONDS = 60.0
LEAST_SECONDS = 6.0
"""With less time nobody would finish: a process needs two or three seconds to begin."""
ASKED_SECONDS = 600.0
"""So long may they take if the user has given their number."""
POLL_SECONDS = 0.1

FinalChild = Child[None, FinalRound]


def final_seconds(config: Config, spec: EnvSpec, trained_seconds: float) -> float:
    """Return how long final games may take; 0 if there are to be none.

    None in games of several agents, where a score means little without its opponents, and with tasks, where it takes an
    episode of each. In `serial` mode none unless asked for, by their number or by evaluations: how many end in time
    differs from run to run.
    """
    if config.final_episodes == 0 or spec.seats > 1 or spec.tasks:
        return 0.0
    if config.final_episodes is not None or config.pbt.evaluate_episodes:
        return ASKED_SECONDS
    if config.mode == "serial":
        return 0.0
    seconds = min(MOST_SECONDS, SHARE * trained_seconds)
    return seconds if seconds >= LEAST_SECONDS else 0.0


def candidates(members: Sequence[MemberView], checkpoint: Checkpoint, config: Config) -> list[int]:
    """Return who plays, of those whose weights are saved: the first of the ranking, stopped ones too.

    If the user asks for final games, as many members that have no objective since their last change, too: fresh copies
    of good ones. With evaluations everyone plays.
    """
    saved = {one.member for one in checkpoint.members()}
    known = [m for m in members if known_objective(m) is not None and m.member in saved]
    best = sorted(known, key=lambda m: (-(known_objective(m) or 0.0), m.member))
    ranking = [m.member for m in best]
    unknown = sorted(saved - {*ranking})
    if config.pbt.evaluate_episodes:
        return [*ranking, *unknown]
    return [*ranking[:CANDIDATES], *unknown[: CANDIDATES if config.final_episodes and ranking else 0]]


def judged(
    view: RunView,
    resolved: ResolvedRun,
    checkpoint: Checkpoint,
    trained_seconds: float,
    stop: Callable[[], bool],
    note: Callable[[str], None],
) -> RunView:
    """Return the view of the end with final games, if there are to be any. checkpoint: of the run's end."""
    config = resolved.config
    seconds = final_seconds(config, resolved.spec, trained_seconds)
    members = candidates(view.members, checkpoint, config)
    if not (seconds and members):
        return view
    games = play_final_games(config, checkpoint, members, seconds, log_folder(resolved), stop, note)
    return replace(view, members=[replace(m, final=games.get(m.member)) for m in view.members])


def play_final_games(
    config: Config,
    checkpoint: Checkpoint,
    members: Sequence[int],
    seconds: float,
    logs: Path | None,
    stop: Callable[[], bool],
    note: Callable[[str], None],
) -> dict[int, FinalGames]:
    """Return member -> its games, for all of these members; nothing if not every one of them has finished a round.

    stop: gives up. note: is told what begins and what went wrong.
    """
    episodes = config.final_episodes or EPISODES
    names = ", ".join(map(str, members))
    note(f"final games: {episodes} episodes of each of the members {names}, for at most {seconds:.0f} s")
    deadline = time.monotonic() + seconds
    children: dict[int, FinalChild] = {}
    scores: dict[int, list[float]] = {member: [] for member in members}
    waiting = deque(members)
    try:
        while (waiting or children) and time.monotonic() < deadline and not stop():
            while waiting and len(children) < CANDIDATES:
                member = waiting.popleft()
                setup = FinalSetup(config, checkpoint, member, episodes)
                log = None if logs is None else logs / f"final_{member}.log"
                children[member] = Child(JUDGE, f"final games of member {member}", setup, (), log)
            wait(
                [source for child in children.values() for source in (child.connection, child.sentinel)],
                POLL_SECONDS,
            )
            for member, child in list(children.items()):
                ended = child.exit_code() is not None  # asked first: what it has sent before is read below
                scores[member] += [x for message in child.messages() for x in message.objectives]
                if ended:
                    _note_ending(child, note)
                    children.pop(member).end(0.0)
    finally:
        for child in children.values():
            child.end(0.0)
    if not all(scores.values()):
        note(
            "final games: not every member has finished one in time; the best is named by its objective in training"
        )
        return {}
    return {member: FinalGames(mean(own), spread(own), len(own)) for member, own in scores.items()}


def _note_ending(child: FinalChild, note: Callable[[str], None]) -> None:
    if child.exit_code():
        note(child.how_it_ended())
