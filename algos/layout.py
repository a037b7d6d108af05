"""Where the parameters of a network lie in one flat row, and how modules are pointed at such rows.

A row has the body first and the heads behind it, each beginning at a cache line. Convolution weights lie
channels-last. N parameters of one policy, P policies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

ROW_ALIGNMENT = 32


@dataclass(frozen=True)
class Slot:
    """Where one parameter lies in a flat row. Convolution weights are stored channels-last."""

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """Index behind the last number."""
        return self.start + math.prod(self.shape)

    def view(self, flat: Tensor) -> Tensor:
        """flat: [..., N] -> [..., *shape]."""
        part = flat[..., self.start : self.stop]
        if len(self.shape) != 4:
            return part.view(*flat.shape[:-1], *self.shape)
        out_channels, in_channels, height, width = self.shape
        part = part.view(*flat.shape[:-1], out_channels, height, width, in_channels)
        return part.movedim(-1, -3)


def lay_out(module: nn.Module, start: int = 0) -> list[Slot]:
    """Lay the module's parameters one after the other, in their order."""
    slots = []
    for name, parameter in module.named_parameters():
        slots.append(Slot(name, start, tuple(parameter.shape)))
        start = slots[-1].stop
    return slots


def aligned(size: int) -> int:
    """Round up so that every row begins at a cache line; the numbers between stay 0."""
    return -(-size // ROW_ALIGNMENT) * ROW_ALIGNMENT


def moved(slots: list[Slot], by: int) -> list[Slot]:
    """The same slots, `by` further on."""
    return [Slot(s.name, s.start + by, s.shape) for s in slots]


def point(module: nn.Module, slots: list[Slot], flat: Tensor, grad: Tensor) -> None:
    """Make the module's parameters views of one flat row, and their gradients views of another (if any)."""
    for slot, parameter in zip(slots, module.parameters(), strict=True):
        parameter.data = slot.view(flat)
        if grad.numel():
            parameter.grad = slot.view(grad)
        else:
            parameter.requires_grad_(False)


def stacked(prefix: str, slots: list[Slot], flat: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """Prefixed name -> parameter [P, ...] that is a view of flat [P, N], its gradient one of `grad` (if any)."""
    views = {}
    for slot in slots:
        view = slot.view(flat).detach()
        if grad.numel():
            view.requires_grad_()
            view.grad = slot.view(grad)
        views[prefix + slot.name] = view
    return views
