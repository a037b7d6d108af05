"""Child process that draws the population's figures beside training."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path

from pbt_rl.processes.child import begin_child

DPI = 100


def images(run: Path, names: Sequence[str]) -> dict[str, bytes | str]:
    """Return figure name -> PNG file, or the reason why there is no figure."""
    # Imported here, after `main` has set the priority, because the import takes as long as the drawing.
    from pbt_rl.record.history import read_run  # noqa: PLC0415
    from pbt_rl.report.pictures import PICTURES, draw  # noqa: PLC0415

    history = read_run(run)
    return {p.name: draw(p, history, DPI) for p in PICTURES if p.name in names}


def main() -> None:
    """Draw figures and write them to a file. The parent process passes run, figure names and file descriptor."""
    _, (run, names, descriptor, niceness) = begin_child()
    os.nice(niceness)
    with os.fdopen(descriptor, "wb") as file:
        pickle.dump(images(run, names), file)


if __name__ == "__main__":
    main()
