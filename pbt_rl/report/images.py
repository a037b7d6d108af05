"""The process that draws the population's figures for TensorBoard while a run trains."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from pbt_rl.display.tensorboard import DrawingSetup
from pbt_rl.procs.child import begin_child

NAMES = ("objective", "evaluations", "forest", "schedules")
DPI = 100


def images(run: Path) -> dict[str, bytes]:
    """Return name -> PNG file of each figure that can be drawn."""
    # Imported here, at the priority that the parent set, since the import takes as long as the drawing.
    from pbt_rl.report.pictures import PICTURES, draw  # noqa: PLC0415
    from pbt_rl.report.read import read_run  # noqa: PLC0415

    history = read_run(run)
    drawn = {p.name: draw(p, history, DPI) for p in PICTURES if p.name in NAMES}
    return {name: image for name, image in drawn.items() if isinstance(image, bytes)}


def main() -> None:
    """Draw the figures of the run into the file, both passed by the parent."""
    _, setup = begin_child()
    assert isinstance(setup, DrawingSetup)
    os.nice(setup.priority)
    with os.fdopen(setup.descriptor, "wb") as file:
        pickle.dump(images(setup.run), file)


if __name__ == "__main__":
    main()
