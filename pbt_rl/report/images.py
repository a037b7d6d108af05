"""Child process that draws the figures of a run while the run trains."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path

from pbt_rl.processes.child import begin_child

DPI = 100


def images(run: Path, names: Sequence[str]) -> dict[str, bytes | str]:
    """Return figure name -> PNG file, or the reason why there is no figure."""
    # These imports take as long as the drawing. They are here, because `main` first lowers the priority.
    from pbt_rl.record.history import read_run  # noqa: PLC0415
    from pbt_rl.report.pictures import PICTURES, draw  # noqa: PLC0415

    history = read_run(run)
    return {p.name: draw(p, history, DPI) for p in PICTURES if p.name in names}


def main() -> None:
    """Draw figures and write the figures to a file. The parent process passes run, names, file and niceness."""
    _, (run, names, descriptor, niceness) = begin_child()
    os.nice(niceness)
    with os.fdopen(descriptor, "wb") as file:
        pickle.dump(images(run, names), file)


if __name__ == "__main__":
    main()
