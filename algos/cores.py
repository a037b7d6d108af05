"""Recurrent cores: GRU, LSTM and stacked cores.

`cut_TB` marks steps before which a core truncates backpropagation through time. The state continues through these
steps. If `cut_TB` is None, gradients flow back to the first step.

LSTM's forget gate (Jozefowicz et al. 2015) and GRU's update gate have an initial bias of 1. With a bias of 0 the state
of an untrained core halves at every step, and almost no gradient remains after 64 steps.

Axes: T time, B rows, F features, S recurrent state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .encoders import orthogonal


class Core(nn.Module):
    """Interface of a recurrent core, called like `GruCore.forward`.

    state_size: S. size: width of the output features.
    """

    state_size: int
    size: int


class GruCore(Core):
    """Gated recurrent unit (Cho et al. 2014) in cuDNN's form: the reset gate acts after the matrix product.

    nn.GRU is not used, because it supports neither vmap nor resets within a rollout. One matrix product projects the
    inputs of all steps. The elementwise operations and the state are float32, because bf16 loses increments below 1/256
    of the state.
    """

    def __init__(self, size: int, core_size: int) -> None:
        super().__init__()
        self.state_size = self.size = core_size
        self.input = orthogonal(nn.Linear(size, 3 * core_size), 1.0)
        self.recurrent = orthogonal(nn.Linear(core_size, 3 * core_size), 1.0)
        nn.init.ones_(self.recurrent.bias[core_size : 2 * core_size])

    def forward(
        self, x_TBF: Tensor, state_BS: Tensor, first_TB: Tensor, cut_TB: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (hidden state of each step [T, B, core_size] in x's dtype, last state [B, S] float32).

        x: features [T, B, F]. Other arguments: see `PolicyNet.forward`.
        """
        hidden, out = state_BS, []
        steps = zip(self.input(x_TBF).unbind(0), first_TB.unbind(0), _steps(cut_TB, first_TB), strict=True)
        for projected, first, cut in steps:
            hidden = torch.where(first.unsqueeze(-1), 0.0, _truncated(hidden, cut))
            x_reset, x_update, x_new = projected.float().chunk(3, -1)
            h_reset, h_update, h_new = self.recurrent(hidden.to(x_TBF.dtype)).float().chunk(3, -1)
            reset, update = (x_reset + h_reset).sigmoid(), (x_update + h_update).sigmoid()
            new = torch.tanh(x_new + reset * h_new)
            hidden = new + update * (hidden - new)
            out.append(hidden)
        return torch.stack(out).to(x_TBF.dtype), hidden


class LstmCore(Core):
    """Long short-term memory (Hochreiter and Schmidhuber 1997) with forget gates (Gers et al. 2000); see `GruCore`.

    A row of the state contains the hidden state and the cell, S = 2 * core_size. Gates: input, forget, cell, output.
    """

    def __init__(self, size: int, core_size: int) -> None:
        super().__init__()
        self.state_size, self.size = 2 * core_size, core_size
        self.input = orthogonal(nn.Linear(size, 4 * core_size), 1.0)
        self.recurrent = orthogonal(nn.Linear(core_size, 4 * core_size), 1.0)
        nn.init.ones_(self.recurrent.bias[core_size : 2 * core_size])

    def forward(
        self, x_TBF: Tensor, state_BS: Tensor, first_TB: Tensor, cut_TB: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (hidden state of each step [T, B, core_size] in x's dtype, last state [B, S] float32).

        x: features [T, B, F]. Other arguments: see `PolicyNet.forward`.
        """
        state, out = state_BS, []
        steps = zip(self.input(x_TBF).unbind(0), first_TB.unbind(0), _steps(cut_TB, first_TB), strict=True)
        for projected, first, cut in steps:
            hidden, cell = torch.where(first.unsqueeze(-1), 0.0, _truncated(state, cut)).chunk(2, -1)
            gates = projected.float() + self.recurrent(hidden.to(x_TBF.dtype)).float()
            write, forget, new, read = gates.chunk(4, -1)
            cell = forget.sigmoid() * cell + write.sigmoid() * new.tanh()
            hidden = read.sigmoid() * cell.tanh()
            state = torch.cat((hidden, cell), -1)
            out.append(hidden)
        return torch.stack(out).to(x_TBF.dtype), state


def _steps(cut_TB: Tensor | None, first_TB: Tensor) -> Sequence[Tensor | None]:
    return [None] * first_TB.shape[0] if cut_TB is None else cut_TB.unbind(0)


def _truncated(state_BS: Tensor, cut_B: Tensor | None) -> Tensor:
    return state_BS if cut_B is None else torch.where(cut_B.unsqueeze(-1), state_BS.detach(), state_BS)


class StackedCore(Core):
    """Stack of cores, from input to output. The state is the concatenation of the states of all cores.

    make: called with (input width, output width) for each layer.
    """

    def __init__(self, make: Callable[[int, int], Core], size: int, core_size: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make(core_size if i else size, core_size) for i in range(layers))
        self._sizes = [layer.state_size for layer in self.layers if isinstance(layer, Core)]
        self.state_size, self.size = sum(self._sizes), core_size

    def forward(
        self, x_TBF: Tensor, state_BS: Tensor, first_TB: Tensor, cut_TB: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        after = []
        for layer, state in zip(self.layers, state_BS.split(self._sizes, -1), strict=True):
            x_TBF, last = layer(x_TBF, state, first_TB, cut_TB)
            after.append(last)
        return x_TBF, torch.cat(after, -1)
