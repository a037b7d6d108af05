"""The id of a run at a tracker's service: a run that goes on goes on there too."""

from __future__ import annotations

import re
import secrets

from pbt_rl.display.trackers.base import TrackedRun

FILE = "id"


def run_id(run: TrackedRun) -> str:
    """Return the id in `tracking/id`, which is made if it is missing. Raises OSError."""
    run.folder.mkdir(exist_ok=True)
    path = run.folder / FILE
    if path.is_file() and not path.is_symlink():
        known = path.read_text(encoding="utf-8", errors="replace").strip()
        if re.fullmatch(r"[0-9a-f]{12}", known):
            return known
    path.unlink(missing_ok=True)
    made = secrets.token_hex(6)
    path.write_text(made + "\n", encoding="utf-8")
    return made
