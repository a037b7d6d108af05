"""Pixel control: learn actions that change each part of the image (Jaderberg et al. 2016, section 3.1).

Axes: T steps, B segments, F features, h, w cells of the image, A = sum(nvec) choices of all action components.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..encoders import RELU_GAIN, orthogonal
from ..returns import Trajectories, gae_torch

GAMMA = 0.9
"""Discount of pixel changes."""
PIXELS = 4
"""Minimum side of a cell, in pixels. The side is a twentieth of the image's shorter side, rounded down, but at least
this number."""
CHANNELS = 32


class Cells(NamedTuple):
    """Division of the central `rows * side` x `columns * side` pixels of an image into cells."""

    rows: int
    columns: int
    side: int

    @classmethod
    def of(cls, height: int, width: int) -> Cells:
        """Divide an image: 84 x 84 into 20 x 20 cells of 4 x 4 pixels, as in the paper."""
        side = max(PIXELS, min(height, width) // 20)
        # The paper omits a border of 2 pixels on each side of 84 x 84 pixels.
        rows, columns = (max(1, (size - side) // side) for size in (height, width))
        return cls(rows, columns, side)


def pixel_change(image_TBCHW: Tensor, cells: Cells) -> Tensor:
    """Compute the absolute change between steps, averaged over a cell's pixels and channels, [T-1, B, h, w] in [0, 1].

    image: uint8 [T, B, channels, height, width].
    """
    height, width = cells.rows * cells.side, cells.columns * cells.side
    top, left = (image_TBCHW.shape[3] - height) // 2, (image_TBCHW.shape[4] - width) // 2
    part = image_TBCHW[..., top : top + height, left : left + width].float() / 255
    change = (part[1:] - part[:-1]).abs().mean(2)
    by_cell = change.unflatten(3, (cells.columns, cells.side)).unflatten(2, (cells.rows, cells.side))
    result: Tensor = by_cell.mean((3, 5))
    return result


class PixelQ(nn.Module):
    """Dueling network for Q of every cell and choice (Wang et al. 2016).

    size: F, width of the features. nvec: sizes of the action components.

    Q is V plus centred advantages. A linear layer produces a small map of 32 channels. A transposed convolution (4x4,
    stride 2) expands the map to the cells. This convolution is computed as a matrix product and a sum of overlapping
    blocks, because vmap would turn the transposed convolution into a grouped convolution. Values and advantages have no
    ReLU, because an output that is negative everywhere would have no gradient. The advantages of several action
    components are added.
    """

    def __init__(self, size: int, nvec: tuple[int, ...], cells: Cells) -> None:
        super().__init__()
        self.nvec, self.cells = nvec, cells
        self._grid = tuple(max(1, (n - 1) // 2) for n in cells[:2])  # small map: 2 * grid + 2 >= n
        rows, columns = self._grid
        self._maps = 1 + sum(nvec)
        self.map = orthogonal(nn.Linear(size, CHANNELS * rows * columns), RELU_GAIN)
        self.up = nn.Linear(CHANNELS, 16 * self._maps, bias=False)
        nn.init.normal_(self.up.weight, std=1 / (4 * CHANNELS) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(self._maps))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Map [..., F] to V [..., h, w] and the advantages [..., A, h, w]."""
        leading, (rows, columns) = features.shape[:-1], self._grid
        small = torch.relu(self.map(features)).reshape(-1, rows, columns, CHANNELS)
        # Each element of the small map gives 2x2 blocks of 2x2 cells, which overlap with its neighbours' blocks.
        # Axes: samples, rows, columns, block row, block column, cell row, cell column, maps.
        blocks = self.up(small).view(-1, rows, columns, 2, 2, 2, 2, self._maps)
        out = sum(
            nn.functional.pad(blocks[:, :, :, i, j].flatten(3), (0, 0, j, 1 - j, i, 1 - i))
            for i in (0, 1)
            for j in (0, 1)
        )
        assert isinstance(out, Tensor)
        whole = out.view(-1, rows + 1, columns + 1, 2, 2, self._maps).permute(0, 5, 1, 3, 2, 4)
        maps = whole.reshape(-1, self._maps, 2 * rows + 2, 2 * columns + 2) + self.bias[:, None, None]
        maps = maps[..., : self.cells.rows, : self.cells.columns].unflatten(0, leading)
        return maps.select(-3, 0), maps[..., 1:, :, :]

    def of_action(self, value: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        """Return Q of the actions taken, [..., h, w]. action: [..., components]."""
        q = value
        for part, chosen in zip(advantage.split(self.nvec, -3), action.unbind(-1), strict=True):
            index = chosen.long()[..., None, None, None].expand(*part.shape[:-3], 1, *part.shape[-2:])
            q = q + part.gather(-3, index).squeeze(-3) - part.mean(-3)
        return q

    def of_best(self, value: Tensor, advantage: Tensor) -> Tensor:
        """Return Q of the best action per cell, [..., h, w]."""
        q = value
        for part in advantage.split(self.nvec, -3):
            q = q + part.amax(-3) - part.mean(-3)
        return q


def q_returns(
    change_TBhw: Tensor, best_T1Bhw: Tensor, terminated_TB: Tensor, truncated_TB: Tensor, valid_TB: Tensor
) -> Tensor:
    """Compute n-step returns of pixel changes, [T, B, h, w]: sum_{k<n} gamma^k change_{t+k} + gamma^n max_a Q.

    Step t of T has n = T - t, or fewer steps if the episode ends earlier. Q is 0 after a terminal state.

    h, w: rows and columns of cells. change: `pixel_change`. best: max_a Q at each step and after the last step.
    """
    cells = change_TBhw.shape[-2:]

    def flat(x: Tensor) -> Tensor:
        return x[..., None, None].expand(*x.shape, *cells).flatten(1)

    change, best = change_TBhw.flatten(1), best_T1Bhw.flatten(1)
    one = torch.ones((), device=change.device)
    of = Trajectories(change, best, flat(terminated_TB), flat(truncated_TB), flat(valid_TB))
    never = torch.full((), change.shape[0] + 1, device=change.device)
    returns = gae_torch(of, GAMMA * one, one, never) + best[:-1]
    return returns.view(change_TBhw.shape)
