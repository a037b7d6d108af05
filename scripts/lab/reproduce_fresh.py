"""Fresh games of the members that a run has saved: how good they are, and whether the program picks the best one.

    python scripts/lab/reproduce_fresh.py RUN...

plays every saved member of each run, and prints the score of the picked member, of the best one, and the regret: the
difference. A score in a run is a mean over training games of weights that still change, and few of them; fresh games
are of the weights that are saved, on seeds of their own, and none of them is left out for being long.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pbt_rl.envs.base import default_shaping_source
from pbt_rl.envs.registry import evaluation_options, make_unit, probe
from pbt_rl.play.member import Player, Policy, load_pack, play, shares
from pbt_rl.record.saved import Source, find_saved, read_config

GAMES, ROWS, SEED = 100, 25, 123_456


@dataclass(frozen=True)
class Fresh:
    """Fresh scores of one run's saved members."""

    scores: dict[int, float]
    picked: int
    """The member that the program calls best."""

    @property
    def regret(self) -> float:
        """How much better the best member is than the picked one."""
        return max(self.scores.values()) - self.scores[self.picked]


def fresh_games(run: Path, games: int = GAMES, seed: int = SEED, *, at: int | None = None) -> Fresh:
    """Play whole games with sampled actions, all members on the same seeds. at: frames of a kept checkpoint."""
    config = read_config(run)
    options = evaluation_options(config.env, config.env_options)
    spec = probe(config.env, options)
    best = find_saved(Source(run, at), print)
    scores = {}
    for saved in best.checkpoint.members():
        policy = find_saved(Source(run, at, str(saved.member)), print)
        player = Player(Policy(load_pack(config, spec, policy, seed), spec, config.model, seed, greedy=False))
        rows = min(ROWS, games)
        with closing(make_unit(spec.env_id, rows, seed, options, default_shaping_source(spec))) as unit:
            played = play(unit, player, shares(games, rows))
        scores[saved.member] = fmean(episode.objective for episode in played)
    return Fresh(scores, best.member)


def main() -> None:
    """Print a line per run."""
    for path in map(Path, sys.argv[1:]):
        found = fresh_games(path)
        scores = ", ".join(f"{member} {score:.0f}" for member, score in sorted(found.scores.items()))
        best = max(found.scores.values())
        print(
            f"{path.name}: picked {found.picked} {found.scores[found.picked]:.0f}, best {best:.0f}, "
            f"regret {found.regret:.0f} ({scores})",
            flush=True,
        )


if __name__ == "__main__":
    main()
