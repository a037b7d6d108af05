"""What `--hours` chooses and how many comparisons come of it, on five environments: the table of docs/tuning.md.

python scripts/lab/hours.py --hours 0.04 --out /tmp/hours        # 15 minutes; a run that is there is only counted
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium
import numpy as np

from pbt_rl.journals.events import Round
from pbt_rl.journals.reading import journal_events
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.saved import read_config
from pbt_rl.simulators.options import SimulatorOptions

ENVIRONMENTS = {
    "cartpole": "gym/CartPole-v1",
    "lake": "gym/FrozenLake-v1",
    "breakout": "atari/breakout",
    "pendulum": "tensors/pendulum",
    "slow": "hours:Slow",
}
STEP_SECONDS = 0.004


class Slow(gymnasium.Env[Any, Any]):
    """4 ms a step; episodes of 5 to 60 steps. A point for the action that is shown."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._left, self._shown = int(self.np_random.integers(5, 60)), int(self.np_random.integers(3))
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a while."""
        time.sleep(STEP_SECONDS)
        reward = float(action == self._shown)
        self._left, self._shown = self._left - 1, int(self.np_random.integers(3))
        return self._observed(), reward, self._left == 0, False, {}

    def _observed(self) -> Any:
        return np.eye(3, dtype=np.float32)[self._shown]


def main() -> None:
    """Train what is missing, and print a row for each environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=0.04)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    given = parser.parse_args()
    print(
        "| environment | members | environments of each | period | comparisons | members compared | audit |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, env in ENVIRONMENTS.items():
        folder = RunFolder(given.out.resolve() / name)
        if not folder.is_run:
            where = ["--out", str(folder.path.parent), "--name", name]
            train = ["train", "--env", env, "--hours", str(given.hours), *where]
            command = [sys.executable, "-m", "pbt_rl", *train, "--figures", "no"]
            subprocess.run(command, check=True, stdout=sys.stderr, cwd=Path(__file__).parent)
        print(row(env, folder), flush=True)


def row(env: str, folder: RunFolder) -> str:
    """Return what a run did."""
    events = list(journal_events(folder.path))
    rounds = [e for e in events if isinstance(e, Round)]
    config = read_config(folder.path)
    compared = fmean(len(e.decisions) for e in rounds) if rounds else 0.0
    audit = subprocess.run(
        [sys.executable, "-m", "pbt_rl", "audit", folder.path], check=False, stdout=sys.stderr
    )
    each = (
        config.actors * config.units_per_actor * config.envs_per_unit
        or config.group(SimulatorOptions).rows
        or "as planned"
    )
    cells = (
        f"`{env}`",
        config.num_policies,
        each,
        f"{config.pbt.period_seconds:g} s",  # type: ignore[attr-defined] # of an extra
        len(rounds),
        f"{compared:.1f}",
        "bit for bit" if audit.returncode == 0 else "differs",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
