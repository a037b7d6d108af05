"""What all toys have in common: a state that can be saved."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

Obs = Any
Info = dict[str, Any]
Step = tuple[Obs, float, bool, bool, Info]


class Toy(gymnasium.Env[Obs, Any]):
    """A toy's state is its random generator and those of its attributes that are numbers or arrays of numbers."""

    def save_state(self) -> dict[str, Any]:
        """See `SavesState`."""
        numbers = {k: v for k, v in vars(self).items() if isinstance(v, bool | int | float)}
        arrays = {k: v.tolist() for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return {"numbers": numbers, "arrays": arrays, "generator": self.np_random.bit_generator.state}

    def restore_state(self, state: dict[str, Any]) -> None:
        """See `SavesState`."""
        for name, number in state["numbers"].items():
            setattr(self, name, number)
        for name, numbers in state["arrays"].items():
            setattr(self, name, np.array(numbers, getattr(self, name).dtype))
        self.np_random.bit_generator.state = state["generator"]
