"""Layers that encoders and cores are made of. Axes: N samples, C channels, H, W pixels, L words, F features."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import TypeVar

import torch
from torch import Tensor, nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
RELU_GAIN = sqrt(2)


def orthogonal(layer: Layer, gain: float) -> Layer:
    """Draw orthogonal weights and zero the bias, in place."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class Mlp(nn.Module):
    """Tanh layers with orthogonal weights, as in PPO's reference implementation for vectors."""

    def __init__(self, size: int, hidden: int, layers: int, scale: float) -> None:
        super().__init__()
        sizes = [size] + [hidden] * layers
        self.layers = nn.ModuleList(orthogonal(nn.Linear(*pair), RELU_GAIN) for pair in pairwise(sizes))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, ...] to [N, hidden]."""
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        x = x.reshape(x.shape[0], -1).to(first.weight.dtype) * self.scale
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class NatureCnn(nn.Module):
    """Network of Mnih et al. 2015: convolutions 32 of 8/4, 64 of 4/2, 64 of 3/1, then a linear layer."""

    def __init__(self, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < 36:
            raise ValueError(
                f"encoder 'nature' needs images of 36x36 or more, not {height}x{width}: use 'impala' or 'mlp'"
            )
        rows, columns = ((((x - 8) // 4 + 1) - 4) // 2 - 1 for x in (height, width))
        self.conv1 = orthogonal(nn.Conv2d(channels, 32, 8, 4), RELU_GAIN)
        self.conv2 = orthogonal(nn.Conv2d(32, 64, 4, 2), RELU_GAIN)
        self.conv3 = orthogonal(nn.Conv2d(64, 64, 3, 1), RELU_GAIN)
        self.linear = orthogonal(nn.Linear(64 * rows * columns, hidden), RELU_GAIN)

    def forward(self, image: Tensor) -> Tensor:
        """Map [N, C, H, W] uint8 to [N, hidden]."""
        x = torch.relu(conv_pixels(self.conv1, image))
        x = torch.relu(self.conv2(x))
        x = torch.relu(self.conv3(x))
        return torch.relu(self.linear(flatten_image(x)))


class ImpalaCnn(nn.Module):
    """Residual network of Espeholt et al. 2018, Figure 3 (large): stages of 16, 32 and 32 channels."""

    def __init__(self, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        channels, height, width = shape
        stages: list[ImpalaStage] = []
        for out_channels in (16, 32, 32):
            stages.append(ImpalaStage(channels, out_channels, pixels=not stages))
            channels, height, width = out_channels, (height + 1) // 2, (width + 1) // 2
        self.stages = nn.Sequential(*stages)
        self.linear = orthogonal(nn.Linear(channels * height * width, hidden), RELU_GAIN)

    def forward(self, image: Tensor) -> Tensor:
        """Map [N, C, H, W] uint8 to [N, hidden]."""
        x = torch.relu(self.stages(image))
        return torch.relu(self.linear(flatten_image(x)))


class ImpalaStage(nn.Module):
    """Convolution, max-pooling to half the size (rounded up), two residual blocks of two convolutions."""

    def __init__(self, channels: int, out_channels: int, *, pixels: bool) -> None:
        super().__init__()
        self.pixels = pixels
        sizes = [channels] + [out_channels] * 5
        self.convs = nn.ModuleList(
            orthogonal(nn.Conv2d(*pair, 3, padding=1), RELU_GAIN) for pair in pairwise(sizes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, C, H, W], uint8 if `pixels`, to [N, out_channels, ceil(H / 2), ceil(W / 2)]."""
        entry, *blocks = self.convs
        assert isinstance(entry, nn.Conv2d)
        x = torch.max_pool2d(conv_pixels(entry, x) if self.pixels else entry(x), 3, 2, 1)
        for first, second in zip(blocks[::2], blocks[1::2], strict=True):
            x = x + second(torch.relu(first(torch.relu(x))))
        return x


class WordEncoder(nn.Module):
    """Encode a sentence of hashed words: an embedding of 20 for each, side by side in order, and a layer of 64.

    A word is a number above 0, taken modulo the number of embeddings as in IMPALA; 0 stands for none. IMPALA reads
    the embeddings with an LSTM of 64. That is 16 steps one after the other: acting for 8 rows took 9.4 ms with it and
    7.6 with this (ResNet, bf16, one core), learning 2 % longer; under vmap it is 1,500 operations, all else of
    the network 800, each of them a launch on a GPU.
    """

    BUCKETS, WIDTH, SIZE = 1000, 20, 64

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(self.BUCKETS, self.WIDTH))
        self.linear = orthogonal(nn.Linear(words * self.WIDTH, self.SIZE), RELU_GAIN)

    def forward(self, words: Tensor) -> Tensor:
        """Map [N, L] int32 to [N, 64]."""
        read_NLF = self.embedding[(words % self.BUCKETS).long()] * (words != 0).unsqueeze(-1)
        return torch.relu(self.linear(read_NLF.flatten(1)))


def conv_pixels(conv: nn.Conv2d, image: Tensor) -> Tensor:
    """Convolve pixels / 255 by scaling the few weights, not the many pixels; bf16 holds 0..255 exactly."""
    x = channels_last(image.to(conv.weight.dtype))
    return torch.conv2d(x, conv.weight / 255, conv.bias, conv.stride, conv.padding)


def channels_last(image: Tensor) -> Tensor:
    """Lay [N, C, H, W] out with C innermost; written with permute because vmap supports no memory formats."""
    return image.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def flatten_image(x: Tensor) -> Tensor:
    """Flatten [N, C, H, W] to [N, H * W * C]: in this order a channels-last image needs no copy."""
    return x.permute(0, 2, 3, 1).flatten(1)
