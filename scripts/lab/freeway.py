"""How often chance crosses the road of Atari's Freeway, by the probability of going up: see docs/lab/games.md.

python scripts/lab/freeway.py        # half a minute
"""

from __future__ import annotations

import ale_py
import numpy as np

GAMES = 4
FRAME_SKIP = 4


def played(emulator: ale_py.ALEInterface, up: float, rng: np.random.Generator) -> tuple[int, int | None]:
    """Play a game by drawn actions; return its crossings, and the step of the first one."""
    actions = emulator.getMinimalActionSet()
    assert [action.name for action in actions] == ["NOOP", "UP", "DOWN"]
    emulator.reset_game()
    crossings, steps = 0.0, 0
    first: int | None = None
    while not emulator.game_over():
        action = actions[rng.choice(3, p=[(1 - up) / 2, up, (1 - up) / 2])]
        crossings += sum(emulator.act(action) for _ in range(FRAME_SKIP))
        steps += 1
        first = steps if crossings and first is None else first
    return int(crossings), first


def main() -> None:
    """Print a row for each probability."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.setInt("random_seed", 1)
    emulator.setFloat("repeat_action_probability", 0.0)
    path = ale_py.roms.get_rom_path("freeway")
    assert path is not None
    emulator.loadROM(path)
    rng = np.random.default_rng(0)
    print("| P(up) | crossings of each game | first one, in steps of 2,048 |\n| --- | --- | --- |")
    for up in (1 / 3, 0.38, 0.42, 0.46, 0.5, 0.6):
        games = [played(emulator, up, rng) for _ in range(GAMES)]
        scores, firsts = zip(*games, strict=True)
        print(f"| {up:.2f} | {', '.join(map(str, scores))} | {', '.join(str(f or '-') for f in firsts)} |")


if __name__ == "__main__":
    main()
