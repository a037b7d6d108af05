"""One run of ours for `scripts/lab/games.py`: a policy by the environment's default recipe, in one process on one core.

Run it with the interpreter of the project. Exit code 0: the run is whole or the time is over; the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from curve import WINDOW, Curve

import pbt_rl
from pbt_rl.display.view import RunView


def main() -> None:
    """Train until the frames or the seconds are over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", required=True)
    parser.add_argument("--algo", default="appo")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--every", type=int, required=True, help="frames between two points of the curve")
    parser.add_argument("--seconds", type=float, required=True, help="stop after this long")
    parser.add_argument(
        "--folder", type=Path, required=True, help="of this run; curve.jsonl is written there"
    )
    parser.add_argument(
        "--score",
        default="objective",
        help="objective: the mean of the window by which members are judged, which waits until every environment has "
        "ended its game. raw_return: of the last 100 games, whichever they are",
    )
    parser.add_argument("--option", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    curve = Curve(given.folder / "curve.jsonl", given.every)
    options = {name: json.loads(value) for name, value in given.option}
    until, resumed = time.monotonic() + given.seconds, False

    def on_report(view: RunView) -> pbt_rl.Stop | None:
        nonlocal resumed
        member = view.members[0]
        if not resumed:
            curve.resume(member.frames)
            resumed = True
        over = time.monotonic() > until
        whole = member.frames >= given.frames
        score = member.objective if given.score == "objective" else member.stats.get(given.score)
        curve.note(member.frames, score, min(member.episodes, WINDOW), last=over or whole)
        return pbt_rl.Stop("the time is over") if over and not whole else None

    pbt_rl.train(
        env=given.env,
        algo=given.algo,
        seed=given.seed,
        train_for_frames=given.frames,
        mode="serial",
        num_policies=1,
        devices="cpu",
        actors=1,
        out=given.folder,
        name="run",
        on_report=on_report,
        **{"pbt.enabled": False, "learner.threads": 1, "figures": False, **options},
    )


if __name__ == "__main__":
    main()
