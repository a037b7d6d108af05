"""Encoders from observations to features, and their layers.

Axes: N samples, C channels, H, W pixels, O, h, w channels and pixels of an output, L words, F features, P policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import gcd, prod, sqrt
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .kernels import processor_is
from .normalizers import SMALLEST_PICTURE


class NetworkError(ValueError):
    """Error of a user's network module, which raised an exception or returned an invalid result.

    The message names the module. It contains the line of the user's code and the shapes, if they are known.
    """


Layer = TypeVar("Layer", bound=nn.Linear | nn.Conv2d)
RELU_GAIN = sqrt(2)
NATURE_GAIN = 1.0
"""Gain of the initial weights of NatureCnn. PPO's reference implementation has sqrt(2), for pixels in [0, 1]. In a
trial on Breakout, a gain of 1 with normalised returns was better than sqrt(2) without them (docs/lab/games.md)."""


def orthogonal(layer: Layer, gain: float) -> Layer:
    """Initialise orthogonal weights and zero biases, in place. Return the layer."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


_MINUS_1 = torch.tensor(-1.0)
_SLOW_TANH = processor_is("AuthenticAMD")
"""True if torch.tanh is slow, because MKL computes tanh slowly on AMD CPUs."""


def tanh(x: Tensor) -> Tensor:
    """Compute torch.tanh(x), three times as fast for float32 on AMD CPUs.

    On AMD CPUs tanh is computed from torch.sigmoid, because torch.tanh would take most of the inference time of a small
    network. The results differ by at most 2e-7. Other processors, other dtypes and exported networks use torch.tanh.
    Time for 1,024 x 64 numbers (torch 2.13 with MKL), without the scaling before and after torch.sigmoid:

                   torch.tanh    torch.sigmoid
        Zen 4      167 us        30 us
        Xeon       23 us         51 us
    """
    exported = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call] # torch's
    if not _SLOW_TANH or x.device.type != "cpu" or x.dtype != torch.float32 or exported:
        return torch.tanh(x)
    # torch derives this itself: an autograd.Function would take four times as long under vmap.
    return torch.add(_MINUS_1, (x * 2).sigmoid_(), alpha=2)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "tanh": tanh,
    "elu": nn.functional.elu,
    "relu": nn.functional.relu,
}
"""Activations of an MLP. tanh: as in PPO's reference implementation. ELU: usual in robotics. ReLU: for grids of
integer codes, as in MiniGrid."""


class Mlp(nn.Module):
    """Multi-layer perceptron with orthogonal weights and an activation after each layer.

    size: number of inputs. widths: number of outputs of each layer.

    uint8 pixels are divided by 255. Images of another dtype are already normalised (normalizers.py).
    """

    def __init__(self, size: int, widths: Sequence[int], activation: str = "tanh") -> None:
        super().__init__()
        self.activation = activation
        pairs = pairwise((size, *widths))
        self.layers = nn.ModuleList(orthogonal(nn.Linear(*pair), RELU_GAIN) for pair in pairs)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, ...] to [N, widths[-1]]."""
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        pixels = x.dtype == torch.uint8
        x = x.reshape(x.shape[0], -1).to(first.weight.dtype)
        if pixels:
            x = x * (1 / 255)
        for layer in self.layers:
            x = ACTIVATIONS[self.activation](layer(x))
        return x


class Conv(nn.Conv2d):
    """Convolution that can run as one matrix product over all patches.

    products: True if the convolution is computed as a matrix product. vmap then computes one batched product for
    all policies, which is fast for all shapes, needs no algorithm selection, and sums in one order. If False,
    vmap computes a grouped convolution, which has fast kernels for a few shapes only.
    """

    products = False

    def forward(self, image: Tensor) -> Tensor:
        """Map [N, C, H, W] to [N, output channels, h, w], with channels innermost in memory."""
        return self._convolve(image, self.weight) if self.products else super().forward(image)

    def of_pixels(self, image: Tensor) -> Tensor:
        """Convolve uint8 pixels [N, C, H, W], scaled to 0..1, to [N, output channels, h, w].

        The weights, not the image, are divided by 255, because the image is larger than the weights. bf16 represents
        0..255 exactly. Images of another dtype than uint8 are already normalised (normalizers.py).
        """
        weight = self.weight / 255 if image.dtype == torch.uint8 else self.weight
        if self.products:
            return self._convolve(image, weight)
        x = channels_last(image.to(weight.dtype))
        return torch.conv2d(x, weight, self.bias, self.stride, self.padding)

    def _convolve(self, image: Tensor, weight: Tensor) -> Tensor:
        assert self.bias is not None
        assert isinstance(self.padding, tuple)
        x_NHWC = image.permute(0, 2, 3, 1).to(weight.dtype)
        if any(self.padding):
            rows, columns = self.padding
            x_NHWC = nn.functional.pad(x_NHWC, (0, 0, columns, columns, rows, rows))
        of_one = (x_NHWC, weight.permute(0, 2, 3, 1), self.bias)
        out, _ = _Products.apply(*(x.unsqueeze(0) for x in of_one), self.stride)  # type: ignore[no-untyped-call] # torch's
        result: Tensor = out.squeeze(0).permute(0, 3, 1, 2)
        return result


class _Products(torch.autograd.Function):
    """Convolutions of P policies as one batched matrix product.

    Inputs, all of one dtype: images [P, N, H, W, C], weights [P, O, kernel rows, kernel columns, C], biases [P, O].
    O: output channels. Outputs: [P, N, h, w, O], and the patches (see `_patches`).
    """

    @staticmethod
    def forward(
        image: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        rows, columns = weight.shape[2:4]
        patches = _patches(image, (rows, columns), stride)
        out = torch.baddbmm(bias.unsqueeze(1), patches.flatten(1, 3), weight.flatten(2).transpose(1, 2))
        return out.view(*patches.shape[:4], -1), patches

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        image, weight, _, ctx.stride = inputs
        ctx.size = image.shape[2:4]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        patches, weight = ctx.saved_tensors
        grad = grad.contiguous()
        policies, samples, *_rest, out = grad.shape
        parts = gcd(samples, SUMS)
        grad_MO, patches_MK = (x.view(policies * parts, -1, x.shape[-1]) for x in (grad, patches))
        of_weight = torch.bmm(grad_MO.transpose(1, 2), patches_MK).unflatten(0, (policies, parts)).sum(1)
        of_image = _image_gradient(grad, weight, ctx.stride, ctx.size) if ctx.needs_input_grad[0] else None
        return of_image, of_weight.view(weight.shape), grad.view(policies, -1, out).sum(1), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, tuple[int, int]]:
        *tensors, stride = inputs

        def joined(x: Tensor, dim: int | None) -> Tensor:
            return (x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)

        of_all = _Products.apply(*map(joined, tensors, in_dims), stride)  # type: ignore[no-untyped-call] # torch's
        return tuple(x.unflatten(0, (info.batch_size, -1)) for x in of_all), (0, 0)


SUMS = 16
"""Maximum number of partial sums of the weight gradient. With a single sum, a small weight tensor would occupy few
of a GPU's processors."""
WIDTHS = (torch.complex128, torch.complex64, torch.int32, torch.int16)
"""Dtypes of the elements that `_patches` copies: 16, 8, 4 and 2 bytes."""


def _patches(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Extract kernel patches: [..., H, W, C] to [..., h, w, kernel rows * kernel columns * C].

    The result is a copy of a view with overlapping strides. Numbers are copied in elements of up to 16 bytes, because a
    GPU's strided copy takes the same time per element of any width. Packing `bmm` uses this function. An earlier form
    of `bmm` took half the time of `vmap` and `loop` on an H200 (docs/reference/gpus.md).
    """
    *leading, rows, columns, channels = x.shape
    heights, widths = ((n - k) // s + 1 for n, k, s in zip((rows, columns), kernel, stride, strict=True))
    flat = x.contiguous().view(-1, columns * channels)
    offsets = (columns * channels, stride[1] * channels, kernel[1] * channels, flat.storage_offset())
    bytes_of_all = gcd(*(n * x.element_size() for n in offsets))
    wide = flat.view(next(d for d in WIDTHS if bytes_of_all % d.itemsize == 0))
    line = wide.shape[1]
    shape = (flat.shape[0] // rows, heights, widths, kernel[0], line * kernel[1] // columns)
    strides = (rows * line, stride[0] * line, line * stride[1] // columns, line, 1)
    patches = wide.as_strided(shape, strides, wide.storage_offset()).reshape(*shape[:3], -1)
    return patches.view(x.dtype).view(*leading, heights, widths, -1)


def _image_gradient(grad: Tensor, weight: Tensor, stride: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Compute the gradient of images [P, N, *size, C] from the gradient `grad` of the outputs, [P, N, h, w, O].

    This gradient is a transposed convolution. It is computed by convolving the padded output gradients with the flipped
    weights (stride 1). The stride[0] * stride[1] pixel positions within a stride have different weights. Therefore
    these positions are computed as channels and interleaved afterwards. Each number is written once, whereas col2im
    adds overlapping patches.
    """
    policies, samples = grad.shape[:2]
    out, *kernel, channels = weight.shape[1:]
    blocks = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    more = [b * s - k for b, s, k in zip(blocks, stride, kernel, strict=True)]
    whole = nn.functional.pad(weight, (0, 0, 0, more[1], 0, more[0]))
    in_blocks = whole.view(policies, out, blocks[0], stride[0], blocks[1], stride[1], channels)
    turned = in_blocks.flip(2, 4).permute(0, 2, 4, 1, 3, 5, 6).flatten(4).flatten(1, 3)
    edges = [b - 1 for b in blocks for _ in (0, 1)]
    patches = _patches(
        nn.functional.pad(grad, (0, 0, *edges[2:], *edges[:2])), (blocks[0], blocks[1]), (1, 1)
    )
    rows, columns = patches.shape[2:4]
    found = torch.bmm(patches.flatten(1, 3), turned).view(policies, samples, rows, columns, *stride, channels)
    image = found.permute(0, 1, 2, 4, 3, 5, 6).reshape(
        policies, samples, rows * stride[0], columns * stride[1], -1
    )
    return nn.functional.pad(image, (0, 0, 0, size[1] - image.shape[3], 0, size[0] - image.shape[2]))


def compute_by_products(net: nn.Module) -> None:
    """Make a network compute its convolutions as matrix products from now on (`Conv.products`)."""
    for module in net.modules():
        if isinstance(module, Conv):
            module.products = True


class NatureCnn(nn.Module):
    """Network of Mnih et al. 2015: three convolutions and a linear layer.

    Convolutions: 32 channels, kernel 8, stride 4; 64 channels, kernel 4, stride 2; 64 channels, kernel 3, stride 1.
    Raises ValueError if a side of the image is shorter than 36 pixels.
    """

    def __init__(self, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < 36:
            raise ValueError(
                f"encoder 'nature' needs images of at least 36x36, not {height}x{width}: "
                "use --model.encoder impala or mlp"
            )
        rows, columns = ((((x - 8) // 4 + 1) - 4) // 2 - 1 for x in (height, width))
        self.conv1 = orthogonal(Conv(channels, 32, 8, 4), NATURE_GAIN)
        self.conv2 = orthogonal(Conv(32, 64, 4, 2), NATURE_GAIN)
        self.conv3 = orthogonal(Conv(64, 64, 3, 1), NATURE_GAIN)
        self.linear = orthogonal(nn.Linear(64 * rows * columns, hidden), NATURE_GAIN)

    def forward(self, image: Tensor) -> Tensor:
        """Map images [N, C, H, W], see `Conv.of_pixels`, to [N, hidden]."""
        x = torch.relu(self.conv1.of_pixels(image))
        x = torch.relu(self.conv2(x))
        x = torch.relu(self.conv3(x))
        return torch.relu(self.linear(flatten_image(x)))


class A3cCnn(nn.Module):
    """Network of Mnih et al. 2016 (A3C) and 2013: two convolutions and a linear layer.

    Convolutions: 16 channels, kernel 8, stride 4; 32 channels, kernel 4, stride 2. Raises ValueError if a side of the
    image is shorter than 20 pixels.
    """

    def __init__(self, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < 20:
            raise ValueError(
                f"encoder 'a3c' needs images of at least 20x20, not {height}x{width}: "
                "use --model.encoder impala or mlp"
            )
        rows, columns = (((x - 8) // 4 + 1 - 4) // 2 + 1 for x in (height, width))
        self.conv1 = orthogonal(Conv(channels, 16, 8, 4), RELU_GAIN)
        self.conv2 = orthogonal(Conv(16, 32, 4, 2), RELU_GAIN)
        self.linear = orthogonal(nn.Linear(32 * rows * columns, hidden), RELU_GAIN)

    def forward(self, image: Tensor) -> Tensor:
        """Map images [N, C, H, W], see `Conv.of_pixels`, to [N, hidden]."""
        x = torch.relu(self.conv1.of_pixels(image))
        x = torch.relu(self.conv2(x))
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
        """Map images [N, C, H, W], see `Conv.of_pixels`, to [N, hidden]."""
        x = torch.relu(self.stages(image))
        return torch.relu(self.linear(flatten_image(x)))


class ImpalaStage(nn.Module):
    """Stage: convolution, max-pooling to half the size (rounded up), two residual blocks of two convolutions."""

    def __init__(self, channels: int, out_channels: int, *, pixels: bool) -> None:
        super().__init__()
        self.pixels = pixels
        sizes = [channels] + [out_channels] * 5
        self.convs = nn.ModuleList(
            orthogonal(Conv(*pair, 3, padding=1), RELU_GAIN) for pair in pairwise(sizes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, C, H, W] to [N, out_channels, ceil(H / 2), ceil(W / 2)].

        If `pixels`, the input contains images (see `Conv.of_pixels`), otherwise features.
        """
        entry, *blocks = self.convs
        assert isinstance(entry, Conv)
        x = torch.max_pool2d(entry.of_pixels(x) if self.pixels else entry(x), 3, 2, 1)
        for first, second in zip(blocks[::2], blocks[1::2], strict=True):
            x = x + second(torch.relu(first(torch.relu(x))))
        return x


class WordEncoder(nn.Module):
    """Encoder of sentences of hashed words: concatenated embeddings of size 20, linear layer of 64.

    words: L, words per sentence. A word is a positive integer; 0 means no word. The index of a word's embedding is the
    word modulo BUCKETS, as in IMPALA.

    IMPALA encodes the embeddings by an LSTM of 64, which takes 16 sequential steps. With this LSTM, inference for 8
    rows took 9.4 ms instead of 7.6 ms (ResNet, bf16, one core), and learning took 2 % longer. Under vmap the LSTM would
    launch 1,500 kernels on a GPU, and the rest of the network launches 800.
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


def channels_last(image: Tensor) -> Tensor:
    """Copy [N, C, H, W] to memory with C innermost, unless it is there already.

    permute is used, because vmap does not support memory formats.
    """
    return image.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def flatten_image(x: Tensor) -> Tensor:
    """Flatten [N, C, H, W] to [N, H * W * C], without a copy if C is innermost in memory."""
    return x.permute(0, 2, 3, 1).flatten(1)


ObsShapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Name of an observation -> row shape (with stacked frames) and dtype name."""
LAST = "last_action_reward"
"""Reserved observation name of the last action and reward."""
CNNS: Mapping[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "nature": NatureCnn,
    "impala": ImpalaCnn,
    "a3c": A3cCnn,
}
"""Encoder kind -> constructor with arguments image shape [C, H, W] and output width."""


class Encoder(nn.Module):
    """Module that maps observations (name -> [N, ...], after normalisation) to features [N, size]."""

    size: int


class ObsEncoder(Encoder):
    """Encoder with one part per observation.

    A linear layer and a ReLU map the concatenated outputs of the parts to the last width. Both are omitted if there is
    a single part whose output has this width.

    A float32 observation LAST (last action and reward) is appended to the result without an encoder, unless it is the
    only observation.

    kind: `auto` (Nature CNN for images), `mlp`, or a name in CNNS.
    widths: widths of the layers of an MLP. The last width is the output width of all parts except `WordEncoder`.

    Raises ValueError if a CNN gets no image, or an image with a side below its minimum. Also raises ValueError if
    `auto` gets an image without pixel bounds.
    """

    def __init__(
        self, obs_shapes: ObsShapes, kind: str, widths: Sequence[int], activation: str = "tanh"
    ) -> None:
        super().__init__()
        hidden = widths[-1]
        assert kind in ("auto", "mlp", *CNNS), kind
        images = [name for name, spec in obs_shapes.items() if is_image(*spec)]
        if kind in CNNS and not images:
            raise ValueError(
                f"encoder {kind!r} needs an image (uint8, 3-D), but there is none in {dict(obs_shapes)}: "
                "use --model.encoder mlp"
            )
        if kind == "auto":
            _refuse_unbounded_pictures(obs_shapes)
        # An environment may give the name LAST to an observation of another dtype.
        numbers = LAST in obs_shapes and obs_shapes[LAST][1] == "float32"
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
                parts.append(Mlp(prod(shape), widths, activation))
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
    """True if an observation is an image: uint8 (C, H, W)."""
    return dtype == "uint8" and len(shape) == 3


def is_grid(shape: tuple[int, ...], dtype: str) -> bool:
    """True for an image that is too small for most convolutions.

    Most such images are grids of integer codes, as in MiniGrid.
    """
    return is_image(shape, dtype) and min(shape[1:]) < SMALLEST_PICTURE


def _refuse_unbounded_pictures(obs_shapes: ObsShapes) -> None:
    for name, (shape, dtype) in obs_shapes.items():
        if dtype == "float32" and len(shape) > 2 and sorted(shape)[-2] >= SMALLEST_PICTURE:
            raise ValueError(
                f"observation {name!r} has the shape of an image, {shape}, but no pixel bounds: bound its space "
                "(such as Box(0, 1, ...)), or use --model.encoder mlp or a custom encoder (module:factory)"
            )


def is_text(shape: tuple[int, ...], dtype: str) -> bool:
    """True if an observation is a sequence of hashed words: int32 (L,)."""
    return dtype == "int32" and len(shape) == 1
