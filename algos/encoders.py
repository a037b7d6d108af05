"""Encoders: observations to features. Axes: N samples, C channels, H, W pixels, L words, F features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import torch
from torch import Tensor, nn

from .layers import RELU_GAIN, A3cCnn, ImpalaCnn, Mlp, NatureCnn, WordEncoder, orthogonal
from .normalizers import SMALLEST_PICTURE

ObsShapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Name of an observation -> shape of one row (frames stacked) and dtype name."""
LAST = "last_action_reward"
"""Reserved name of an observation: the last action and reward, which no encoder needs to read."""
CNNS: Mapping[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "nature": NatureCnn,
    "impala": ImpalaCnn,
    "a3c": A3cCnn,
}
"""Kind of encoder -> what it makes of an image: (shape [C, H, W], width of its output)."""


class Encoder(nn.Module):
    """Maps observations, name -> [N, ...] as the environment gives them, to features [N, size]."""

    size: int


class ObsEncoder(Encoder):
    """One encoder per observation; several are concatenated and mixed by a linear layer. LAST joins after that."""

    def __init__(
        self, obs_shapes: ObsShapes, kind: str, hidden: int, layers: int, activation: str = "tanh"
    ) -> None:
        super().__init__()
        assert kind in ("auto", "mlp", *CNNS), kind
        images = [name for name, spec in obs_shapes.items() if is_image(*spec)]
        if kind in CNNS and not images:
            raise ValueError(
                f"encoder {kind!r} needs an image (uint8, 3-D), and none is in {dict(obs_shapes)}: use 'mlp'"
            )
        if kind == "auto":
            _refuse_unbounded_pictures(obs_shapes)
        numbers = (
            LAST in obs_shapes and obs_shapes[LAST][1] == "float32"
        )  # else an environment's own of that name
        self.last = numbers and len(obs_shapes) > 1
        self.size = hidden + (prod(obs_shapes[LAST][0]) if self.last else 0)
        self.names = tuple(name for name in obs_shapes if name != LAST or not self.last)
        parts: list[nn.Module] = []
        width = 0
        for name in self.names:
            shape, dtype = obs_shapes[name]
            width += WordEncoder.SIZE if is_text(shape, dtype) else hidden
            if is_text(shape, dtype):
                parts.append(WordEncoder(*shape))
            elif name not in images or kind == "mlp":
                parts.append(Mlp(prod(shape), hidden, layers, activation))
            else:
                parts.append(CNNS["nature" if kind == "auto" else kind](shape, hidden))
        self.parts = nn.ModuleList(parts)
        mixed = len(parts) > 1 or width != hidden
        self.mix = orthogonal(nn.Linear(width, hidden), RELU_GAIN) if mixed else None

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Map name -> [N, ...] to [N, size]."""
        features: list[Tensor] = [part(obs[name]) for name, part in zip(self.names, self.parts, strict=True)]
        mixed = features[0] if self.mix is None else torch.relu(self.mix(torch.cat(features, -1)))
        if not self.last:
            return mixed
        return torch.cat((mixed, obs[LAST].reshape(mixed.shape[0], -1).to(mixed.dtype)), -1)


def is_image(shape: tuple[int, ...], dtype: str) -> bool:
    """Whether an observation is an image (C, H, W)."""
    return dtype == "uint8" and len(shape) == 3


def is_grid(shape: tuple[int, ...], dtype: str) -> bool:
    """Whether an observation is an image too small for most convolutions: a grid of codes, mostly."""
    return is_image(shape, dtype) and min(shape[1:]) < SMALLEST_PICTURE


def _refuse_unbounded_pictures(obs_shapes: ObsShapes) -> None:
    for name, (shape, dtype) in obs_shapes.items():
        if dtype == "float32" and len(shape) > 2 and sorted(shape)[-2] >= SMALLEST_PICTURE:
            raise ValueError(
                f"observation {name!r} has the axes of a picture, {shape}, but no bounds of pixels: give its space "
                "some (such as Box(0, 1, ...)), or read it as numbers (mlp), or by an encoder of your own "
                "(module:factory)"
            )


def is_text(shape: tuple[int, ...], dtype: str) -> bool:
    """Whether an observation is a sequence of hashed words."""
    return dtype == "int32" and len(shape) == 1
