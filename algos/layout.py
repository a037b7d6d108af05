"""Where the parameters of a network lie in one flat vector, and how modules are pointed at such vectors.

A vector has the body first and the heads behind it, each beginning at a cache line. Convolution weights lie
channels-last. N parameters of one policy, P policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .models import PolicyNet

ALIGNMENT = 32


@dataclass(frozen=True)
class Segment:
    """Where one parameter lies in a flat vector. Convolution weights are stored channels-last."""

    name: str
    start: int
    shape: tuple[int, ...]
    learned: bool = True
    """Whether it has a gradient."""

    @property
    def stop(self) -> int:
        """Index behind the last number."""
        return self.start + math.prod(self.shape)

    def view(self, flat: Tensor) -> Tensor:
        """View flat [..., N] as [..., *shape]."""
        part = flat[..., self.start : self.stop]
        if len(self.shape) != 4:
            return part.view((*flat.shape[:-1], *self.shape))  # one tuple: a single number has no axes
        out_channels, in_channels, height, width = self.shape
        part = part.view(*flat.shape[:-1], out_channels, height, width, in_channels)
        return part.movedim(-1, -3)


@dataclass(frozen=True)
class NetLayout:
    """Segments of a whole network in one vector of `size` numbers."""

    body: list[Segment]
    heads: list[Segment]
    body_size: int
    """Size of the body, which is also the start of the heads."""
    size: int

    @classmethod
    def of(cls, net: PolicyNet) -> NetLayout:
        """Lay out a network like this one."""
        body = lay_out(net.body)
        body_size = aligned(max((s.stop for s in body), default=0))  # a user's encoder may have no parameters
        heads = lay_out(net.heads, body_size)
        return cls(body, heads, body_size, aligned(max((s.stop for s in heads), default=body_size)))

    @torch.no_grad()
    def write(self, net: PolicyNet, flat: Tensor) -> None:
        """Copy a network's parameters into a vector."""
        for segments, module in ((self.body, net.body), (self.heads, net.heads)):
            for segment, parameter in zip(segments, module.parameters(), strict=True):
                segment.view(flat).copy_(parameter)

    def named(self, flat: Tensor) -> Mapping[str, Tensor]:
        """Views of a vector by the names of the network's `state_dict`."""
        named = {f"body.{s.name}": s.view(flat) for s in self.body}
        return named | {f"heads.{s.name}": s.view(flat) for s in self.heads}


def lay_out(module: nn.Module, start: int = 0) -> list[Segment]:
    """Lay the module's parameters one after the other, in their order."""
    segments = []
    for name, parameter in module.named_parameters():
        segments.append(Segment(name, start, tuple(parameter.shape), parameter.requires_grad))
        start = segments[-1].stop
    return segments


def aligned(size: int) -> int:
    """Round up so that every vector begins at a cache line; the numbers between stay 0."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def moved(segments: list[Segment], by: int) -> list[Segment]:
    """Return the same segments, `by` further on."""
    return [replace(s, start=s.start + by) for s in segments]


def point(module: nn.Module, segments: list[Segment], flat: Tensor, grad: Tensor) -> None:
    """Make the module's parameters views of one flat vector, and their gradients views of another (if any)."""
    for segment, parameter in zip(segments, module.parameters(), strict=True):
        parameter.data = segment.view(flat)
        if grad.numel():
            parameter.grad = segment.view(grad)
        else:
            parameter.requires_grad_(False)


def stacked(prefix: str, segments: list[Segment], flat: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """Prefixed name -> parameter [P, ...] that is a view of flat [P, N], its gradient one of `grad` (if any)."""
    views = {}
    for segment in segments:
        view = segment.view(flat).detach()
        if grad.numel() and segment.learned:
            view.requires_grad_()
            view.grad = segment.view(grad)
        views[prefix + segment.name] = view
    return views
