"""A fixed opponent for Connect Four: it wins if it can, else it blocks, else it plays anywhere.

    pbt-rl eval runs/four --episodes 400 --against scripts.examples.one_ply:player

An opponent of one's own is a factory that gets the environment's spec and returns a function of the observations
(name -> [N, ...]) and of [N] flags whether a game begins; it answers actions [N, A].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS, COLUMNS, IN_A_ROW = 6, 7, 4
Board = NDArray[np.bool_]
"""[6, 7] stones of one side; row 0 is the top."""


def player(
    spec: object,  # noqa: ARG001 - every factory gets it
) -> Callable[[Mapping[str, NDArray[Any]], NDArray[np.bool_]], NDArray[Any]]:
    """Make the opponent: observations "observation" [N, 6, 7, 2] (own stones, theirs) and "action_mask" [N, 7]."""
    rng = np.random.default_rng(0)

    def act(obs: Mapping[str, NDArray[Any]], first: NDArray[np.bool_]) -> NDArray[np.int32]:  # noqa: ARG001
        boards, masks = obs["observation"] > 0, obs["action_mask"]
        moves = [
            move(board[..., 0], board[..., 1], mask, rng) for board, mask in zip(boards, masks, strict=True)
        ]
        return np.array(moves, np.int32)[:, None]

    return act


def move(own: Board, theirs: Board, mask: NDArray[Any], rng: np.random.Generator) -> int:
    """Column to play; 0 where it is not our turn."""
    columns = np.flatnonzero(mask).tolist()
    if not columns:
        return 0
    for stones in (own, theirs):
        for column in columns:
            if wins(with_stone(stones, own | theirs, column)):
                return int(column)
    return int(rng.choice(columns))


def with_stone(stones: Board, taken: Board, column: int) -> Board:
    """The stones after one more falls into a column that is not full."""
    row = ROWS - 1 - int(taken[:, column].sum())
    after = stones.copy()
    after[row, column] = True
    return after


def wins(stones: Board) -> bool:
    """Whether four of these stones lie in a row."""
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        line = np.ones((ROWS + 2 * IN_A_ROW, COLUMNS + 2 * IN_A_ROW), np.bool_)
        padded = np.pad(stones, IN_A_ROW)
        for step in range(IN_A_ROW):
            line &= np.roll(padded, (-down * step, -right * step), (0, 1))
        if line.any():
            return True
    return False
