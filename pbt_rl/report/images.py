"""The process that draws the population's figures for TensorBoard beside a run, at the lowest priority."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from pbt_rl.process import begin_child
from pbt_rl.report.pictures import PICTURES, draw
from pbt_rl.report.read import read_run

NAMES = ("objective", "forest", "schedules")
DPI = 100


def images(run: Path) -> dict[str, bytes]:
    """Name -> PNG file of each figure for which the run has something to show."""
    record = read_run(run)
    drawn = {p.name: draw(p, record, DPI) for p in PICTURES if p.name in NAMES}
    return {name: image for name, image in drawn.items() if isinstance(image, bytes)}


def main() -> None:
    """Draw what the parent asks for into the file that it gives."""
    os.nice(19)
    _, (run, descriptor) = begin_child()
    with os.fdopen(descriptor, "wb") as file:
        pickle.dump(images(run), file)


if __name__ == "__main__":
    main()
