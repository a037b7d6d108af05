"""Fixed opponent for connection games, which wins if possible, otherwise blocks, otherwise plays at random.

    pbt-rl eval runs/x --episodes 400 --against scripts.examples.one_ply:tictactoe
    pbt-rl eval runs/x --episodes 400 --against scripts.examples.one_ply:connect_four

A custom opponent is a factory: spec -> function. The function receives observations (name -> [N, ...]) and [N] flags of
new episodes, and returns actions [N, A]. The observations of these games are "observation" [N, rows, columns, 2] (own
stones, stones of the opponent) and "action_mask" [N, choices].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Board = NDArray[np.bool_]
"""Stones of one side [rows, columns]. Row 0 is the top."""
Square = Callable[[Board, int], tuple[int, int]]
"""Function (taken squares, choice) -> row and column of the new stone."""
Act = Callable[[Mapping[str, NDArray[Any]], NDArray[np.bool_]], NDArray[Any]]


def connect_four(spec: object) -> Act:  # noqa: ARG001 - required of factories
    """Create the opponent for four in a row. A stone falls to the lowest free square of its column."""
    return opponent(4, lambda taken, column: (len(taken) - 1 - int(taken[:, column].sum()), column))


def tictactoe(spec: object) -> Act:  # noqa: ARG001 - required of factories
    """Create the opponent for three in a row. Choices are numbered along the rows of the observation."""
    return opponent(3, lambda _taken, choice: (choice // 3, choice % 3))


def opponent(in_a_row: int, square: Square) -> Act:
    """Create the opponent of a game. in_a_row: number of stones of a winning line."""
    rng = np.random.default_rng(0)

    def act(obs: Mapping[str, NDArray[Any]], first: NDArray[np.bool_]) -> NDArray[np.int32]:  # noqa: ARG001
        moves = []
        for board, mask in zip(obs["observation"] > 0, obs["action_mask"], strict=True):
            own, theirs = board[..., 0], board[..., 1]
            choices = np.flatnonzero(mask).tolist() or [0]  # empty if it is the other side's move
            winning = [
                c for s in (own, theirs) for c in choices if wins(after(s, square(own | theirs, c)), in_a_row)
            ]
            moves.append(winning[0] if winning and mask.any() else rng.choice(choices))
        return np.array(moves, np.int32)[:, None]

    return act


def after(stones: Board, square: tuple[int, int]) -> Board:
    """Return the stones with an additional stone."""
    more = stones.copy()
    more[square] = True
    return more


def wins(stones: Board, in_a_row: int) -> bool:
    """Return True if `in_a_row` consecutive stones are in a line."""
    padded = np.pad(stones, in_a_row)
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        shifted = [np.roll(padded, (-down * i, -right * i), (0, 1)) for i in range(in_a_row)]
        if np.logical_and.reduce(shifted).any():
            return True
    return False
