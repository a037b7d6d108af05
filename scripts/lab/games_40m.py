"""Append the curve of one Atari run to docs/lab/results/games_40m.csv, as far as it went.

    pbt-rl train --env atari/breakout --num-policies 1 --train-for-frames 40M --seed 0 --name breakout  # end it at will
    python scripts/lab/games_40m.py Breakout runs/breakout
    python scripts/lab/tables.py                     # beside published curves, in docs/lab/games.md

A row for each 250,000 frames: the mean of the last 100 games that training had played then, unclipped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results_rows import append_rows

from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import read_journal
from pbt_rl.record.saved import read_config

ROWS = Path(__file__).resolve().parents[2] / "docs" / "lab" / "results" / "games_40m.csv"
COLUMNS = ("arm", "seed", "frames", "games", "score")
EVERY = 250_000


def main() -> None:
    """Append the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("game")
    parser.add_argument("run", type=Path)
    chosen = parser.parse_args()
    config, due = read_config(chosen.run), EVERY
    rows: list[tuple[object, ...]] = []
    for event in read_journal(RunFolder(chosen.run).journal):
        if event["event"] == "progress" and event["frames"] >= due:
            (member,) = event["members"]
            rows.append((chosen.game, config.seed, due, config.pbt.objective_episodes, member["objective"]))
            due += EVERY
    append_rows(ROWS, COLUMNS, rows)


if __name__ == "__main__":
    main()
