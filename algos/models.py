"""The network of a policy: encoder -> optional recurrent core (together the *body*) -> heads.

    net = make_model({"obs": ((4, 84, 84), "uint8")}, param_size=6, core="gru")
    params_TBD, value_TB, state_BS = net(obs, state_BS, first_TB)

Axes: T time, B rows, N = T * B, C channels, F features, S recurrent state, D distribution parameters.

The body computes in the dtype of its weights, so `net.body.to(torch.bfloat16)` is all that a faster
precision takes; the heads and the recurrent state stay float32. All state is in parameters, and nothing is
changed in place: it works under torch.func.functional_call and under vmap over stacked parameters.
Initial weights are drawn from torch's global generator.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from itertools import pairwise
from math import prod, sqrt
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from .distributions import ACTION_MASK, mask_logits

ObsShapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Name of an observation -> shape of one row (frames stacked) and dtype name."""
Core = Literal["none", "gru", "lstm"]
LAST = "last_action_reward"
"""Reserved name of an observation: the last action and reward, which no encoder needs to read."""

_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)
_RELU_GAIN = sqrt(2)


def make_model(
    obs_shapes: ObsShapes,
    param_size: int,
    *,
    gaussian: bool = False,
    encoder: str = "auto",
    hidden: int = 512,
    layers: int = 2,
    core: Core = "none",
    core_size: int = 256,
    nvec: tuple[int, ...] = (),
) -> PolicyNet:
    """Build a policy with fresh weights, float32, convolutions channels-last.

    param_size: D. gaussian: D / 2 means from the features and as many log deviations, which are parameters
    of their own; else D logits. encoder: `auto` (Nature CNN for images, MLP for the rest), `nature`, `impala`
    (MLP for what is no image), `mlp`, or `module:factory` (see `UserEncoder`). An image is uint8 of shape
    (C, H, W), a text is int32 of shape (L,) (see `WordEncoder`); other observations are flattened. One named LAST
    joins the features as it is (Espeholt et al. 2018, Figure 3). hidden: F of the encoder without that. layers: hidden
    layers of an MLP.
    nvec: sizes of the action's components, needed where an observation is named ACTION_MASK: the encoder does not
    see that one, it masks the logits (see `mask_logits`).
    Raises ValueError for an encoder that cannot be used with these observations.
    """
    masked = ACTION_MASK in obs_shapes
    assert not masked or sum(nvec) == param_size, "a mask has one number for each logit"
    obs_shapes = {name: spec for name, spec in obs_shapes.items() if name != ACTION_MASK}
    body_encoder: Encoder
    if ":" in encoder:
        body_encoder = UserEncoder(encoder, obs_shapes)
    else:
        body_encoder = ObsEncoder(obs_shapes, encoder, hidden, layers)
    size = body_encoder.size
    body_core = {"none": None, "gru": GruCore, "lstm": LstmCore}[core]
    body = Body(body_encoder, body_core and body_core(size, core_size))
    heads = Heads(size if core == "none" else core_size, param_size, gaussian=gaussian)
    net = PolicyNet(body, heads, nvec if masked else ())
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


class PolicyNet(nn.Module):
    """Body in its own dtype, heads in float32. `state_size` is S, 0 without a recurrent core.

    masked: sizes of the action's components where an action mask comes with the observations, else ().
    """

    def __init__(self, body: Body, heads: Heads, masked: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.masked = masked
        self.body = body
        self.heads = heads
        self.state_size = body.core.state_size if body.core is not None else 0

    def forward(
        self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (params [T, B, D], value [T, B], state after the last step [B, S]), all float32.

        obs: name -> [T, B, ...] as the environment gives it. state: [B, S] float32 before the first step.
        first: [T, B] bool, the step begins an episode: the state is zeroed before it.
        """
        seen = {name: x for name, x in obs.items() if name != ACTION_MASK}
        features_TBF, state = self.body(seen, state, first)
        params_TBD, value_TB = self.heads(features_TBF.float())
        return self.mask(params_TBD, obs), value_TB, state

    def mask(self, params: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Params [..., D] with the actions that the observations [..., D] forbid taken out, if there is a mask."""
        return mask_logits(params, obs[ACTION_MASK], self.masked) if self.masked else params


class Heads(nn.Module):
    """Policy and value as linear functions of the features; a Gaussian's log deviations depend on nothing."""

    def __init__(self, size: int, param_size: int, *, gaussian: bool) -> None:
        super().__init__()
        assert not (gaussian and param_size % 2), "a Gaussian has a mean and a deviation for each component"
        means = param_size // 2 if gaussian else param_size
        self.policy = _orthogonal(nn.Linear(size, means), 0.01)
        self.value = _orthogonal(nn.Linear(size, 1), 1.0)
        self.log_std = nn.Parameter(torch.zeros(means)) if gaussian else None

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """[..., F] float32 -> params [..., D], value [...]."""
        params, value = self.policy(features), self.value(features).squeeze(-1)
        if self.log_std is not None:
            params = torch.cat((params, self.log_std.expand_as(params)), -1)
        return params, value


class Body(nn.Module):
    """Encoder and, if any, recurrent core: what may be cast to bf16."""

    def __init__(self, encoder: Encoder, core: GruCore | LstmCore | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.core = core

    def forward(self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Arguments of `PolicyNet.forward` -> (features [T, B, F] in the weights' dtype, state [B, S])."""
        features_NF = self.encoder({name: x.flatten(0, 1) for name, x in obs.items()})
        features_TBF = features_NF.unflatten(0, first.shape)
        if self.core is None:
            return features_TBF, state
        out_TBF, state = self.core(features_TBF, state, first)
        return out_TBF, state


class GruCore(nn.Module):
    """Gated recurrent unit (Cho et al. 2014) in cuDNN's form: the reset gate acts after the matrix product.

    Plain matrix products in place of nn.GRU: that one works neither under vmap nor with resets inside a
    rollout. The inputs of all steps are projected in one product; the elementwise part, state included, is
    float32, because bf16 loses increments below 1/256 of the state.
    """

    def __init__(self, size: int, core_size: int) -> None:
        super().__init__()
        self.state_size = core_size
        self.input = _orthogonal(nn.Linear(size, 3 * core_size), 1.0)
        self.recurrent = _orthogonal(nn.Linear(core_size, 3 * core_size), 1.0)

    def forward(self, x_TBF: Tensor, state_BS: Tensor, first_TB: Tensor) -> tuple[Tensor, Tensor]:
        """Return (hidden state of each step [T, B, core_size] in x's dtype, last state [B, S] float32)."""
        hidden, out = state_BS, []
        for projected, first in zip(self.input(x_TBF).unbind(0), first_TB.unbind(0), strict=True):
            hidden = torch.where(first.unsqueeze(-1), 0.0, hidden)
            x_reset, x_update, x_new = projected.float().chunk(3, -1)
            h_reset, h_update, h_new = self.recurrent(hidden.to(x_TBF.dtype)).float().chunk(3, -1)
            reset, update = (x_reset + h_reset).sigmoid(), (x_update + h_update).sigmoid()
            new = torch.tanh(x_new + reset * h_new)
            hidden = new + update * (hidden - new)
            out.append(hidden)
        return torch.stack(out).to(x_TBF.dtype), hidden


class LstmCore(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with forget gates); see `GruCore`.

    A state row is the hidden state, then the cell: S = 2 * core_size. Gates: input, forget, cell, output.
    """

    def __init__(self, size: int, core_size: int) -> None:
        super().__init__()
        self.state_size = 2 * core_size
        self.input = _orthogonal(nn.Linear(size, 4 * core_size), 1.0)
        self.recurrent = _orthogonal(nn.Linear(core_size, 4 * core_size), 1.0)

    def forward(self, x_TBF: Tensor, state_BS: Tensor, first_TB: Tensor) -> tuple[Tensor, Tensor]:
        """Return (hidden state of each step [T, B, core_size] in x's dtype, last state [B, S] float32)."""
        state, out = state_BS, []
        for projected, first in zip(self.input(x_TBF).unbind(0), first_TB.unbind(0), strict=True):
            hidden, cell = torch.where(first.unsqueeze(-1), 0.0, state).chunk(2, -1)
            gates = projected.float() + self.recurrent(hidden.to(x_TBF.dtype)).float()
            write, forget, new, read = gates.chunk(4, -1)
            cell = forget.sigmoid() * cell + write.sigmoid() * new.tanh()
            hidden = read.sigmoid() * cell.tanh()
            state = torch.cat((hidden, cell), -1)
            out.append(hidden)
        return torch.stack(out).to(x_TBF.dtype), state


class Encoder(nn.Module):
    """Maps observations, name -> [N, ...] as the environment gives them, to features [N, size]."""

    size: int


class ObsEncoder(Encoder):
    """One encoder an observation; several are concatenated and mixed by a linear layer. LAST joins after that."""

    def __init__(self, obs_shapes: ObsShapes, kind: str, hidden: int, layers: int) -> None:
        super().__init__()
        assert kind in ("auto", "nature", "impala", "mlp"), kind
        images = [name for name, spec in obs_shapes.items() if _is_image(name, *spec)]
        if kind in ("nature", "impala") and not images:
            raise ValueError(
                f"encoder {kind!r} needs an image (uint8, 3-D), and none is in {dict(obs_shapes)}: use 'mlp'"
            )
        self.last = LAST in obs_shapes and len(obs_shapes) > 1
        self.size = hidden + (prod(obs_shapes[LAST][0]) if self.last else 0)
        self.names = tuple(name for name in obs_shapes if name != LAST or not self.last)
        parts: list[nn.Module] = []
        width = 0
        for name in self.names:
            shape, dtype = obs_shapes[name]
            width += WordEncoder.SIZE if _is_text(shape, dtype) else hidden
            if _is_text(shape, dtype):
                parts.append(WordEncoder(*shape))
            elif name not in images or kind == "mlp":
                scale = 1 / 255 if name in images else 1.0
                parts.append(Mlp(prod(shape), hidden, layers, scale))
            elif kind == "impala":
                parts.append(ImpalaCnn(shape, hidden))
            else:
                parts.append(NatureCnn(shape, hidden))
        self.parts = nn.ModuleList(parts)
        mixed = len(parts) > 1 or width != hidden
        self.mix = _orthogonal(nn.Linear(width, hidden), _RELU_GAIN) if mixed else None

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Name -> [N, ...] to [N, size]."""
        features: list[Tensor] = [part(obs[name]) for name, part in zip(self.names, self.parts, strict=True)]
        mixed = features[0] if self.mix is None else torch.relu(self.mix(torch.cat(features, -1)))
        if not self.last:
            return mixed
        return torch.cat((mixed, obs[LAST].reshape(mixed.shape[0], -1).to(mixed.dtype)), -1)


class Mlp(nn.Module):
    """Tanh layers with orthogonal weights, as PPO's reference implementation has them for vectors."""

    def __init__(self, size: int, hidden: int, layers: int, scale: float) -> None:
        super().__init__()
        sizes = [size] + [hidden] * layers
        self.layers = nn.ModuleList(_orthogonal(nn.Linear(*pair), _RELU_GAIN) for pair in pairwise(sizes))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """[N, ...] -> [N, hidden]."""
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
        self.conv1 = _orthogonal(nn.Conv2d(channels, 32, 8, 4), _RELU_GAIN)
        self.conv2 = _orthogonal(nn.Conv2d(32, 64, 4, 2), _RELU_GAIN)
        self.conv3 = _orthogonal(nn.Conv2d(64, 64, 3, 1), _RELU_GAIN)
        self.linear = _orthogonal(nn.Linear(64 * rows * columns, hidden), _RELU_GAIN)

    def forward(self, image: Tensor) -> Tensor:
        """[N, C, H, W] uint8 -> [N, hidden]."""
        x = torch.relu(_conv_pixels(self.conv1, image))
        x = torch.relu(self.conv2(x))
        x = torch.relu(self.conv3(x))
        return torch.relu(self.linear(_flatten_image(x)))


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
        self.linear = _orthogonal(nn.Linear(channels * height * width, hidden), _RELU_GAIN)

    def forward(self, image: Tensor) -> Tensor:
        """[N, C, H, W] uint8 -> [N, hidden]."""
        x = torch.relu(self.stages(image))
        return torch.relu(self.linear(_flatten_image(x)))


class ImpalaStage(nn.Module):
    """Convolution, max-pooling to half the size (rounded up), two residual blocks of two convolutions."""

    def __init__(self, channels: int, out_channels: int, *, pixels: bool) -> None:
        super().__init__()
        self.pixels = pixels
        sizes = [channels] + [out_channels] * 5
        self.convs = nn.ModuleList(
            _orthogonal(nn.Conv2d(*pair, 3, padding=1), _RELU_GAIN) for pair in pairwise(sizes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W], uint8 if `pixels` -> [N, out_channels, ceil(H / 2), ceil(W / 2)]."""
        entry, *blocks = self.convs
        assert isinstance(entry, nn.Conv2d)
        x = torch.max_pool2d(_conv_pixels(entry, x) if self.pixels else entry(x), 3, 2, 1)
        for first, second in zip(blocks[::2], blocks[1::2], strict=True):
            x = x + second(torch.relu(first(torch.relu(x))))
        return x


class WordEncoder(nn.Module):
    """A sentence of hashed words: an embedding of 20 for each, side by side in their order, and a layer of 64.

    A word is a number above 0, taken modulo the number of embeddings as in IMPALA; 0 stands for none. IMPALA reads
    the embeddings with an LSTM of 64. That is 16 steps one after the other: acting for 8 rows took 9.4 ms with it and
    7.6 with this (ResNet, bf16, one core), learning 2 % longer; under vmap it is 1,500 operations where all else of the
    network is 800, each of them a launch on a GPU.
    """

    BUCKETS, WIDTH, SIZE = 1000, 20, 64

    def __init__(self, places: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(self.BUCKETS, self.WIDTH))
        self.linear = _orthogonal(nn.Linear(places * self.WIDTH, self.SIZE), _RELU_GAIN)

    def forward(self, words: Tensor) -> Tensor:
        """[N, L] int32 -> [N, 64]."""
        read_NLF = self.embedding[(words % self.BUCKETS).long()] * (words != 0).unsqueeze(-1)
        return torch.relu(self.linear(read_NLF.flatten(1)))


class UserEncoder(Encoder):
    """A user's own encoder, named by `module:factory`.

    factory(obs_shapes) returns an nn.Module that maps name -> [N, ...] to [N, F], both in the dtype of its
    weights; images arrive scaled to 0..1, texts as they are (int32). It may hold constant buffers, but none that a
    forward changes, as batch normalisation does: all policies would share them. F is found by a dry run.
    """

    def __init__(self, path: str, obs_shapes: ObsShapes) -> None:
        super().__init__()
        self.names = tuple(obs_shapes)
        self.images = frozenset(name for name, spec in obs_shapes.items() if _is_image(name, *spec))
        self.texts = frozenset(name for name, spec in obs_shapes.items() if _is_text(*spec))
        self.module = _call_factory(path, obs_shapes)
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        with torch.no_grad():
            out = self(
                {n: torch.zeros((2, *shape), dtype=getattr(torch, d)) for n, (shape, d) in obs_shapes.items()}
            )
        if not (isinstance(out, Tensor) and out.ndim == 2 and len(out) == 2 and out.is_floating_point()):
            got = f"{list(out.shape)} {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"encoder {path!r} returned {got} for 2 observations: return a float tensor [2, F]"
            )
        changed = [
            name for name, buffer in self.module.named_buffers() if not torch.equal(buffer, buffers[name])
        ]
        if changed:
            raise ValueError(
                f"encoder {path!r} changes its buffers {', '.join(changed)} in a forward; policies would "
                "share them: use a normalisation without running statistics, such as GroupNorm or LayerNorm"
            )
        self.size = out.shape[1]

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Name -> [N, ...] to [N, F]."""
        weight = next(self.module.parameters(), None)
        dtype = torch.float32 if weight is None else weight.dtype
        ready = {name: _channels_last(obs[name].to(dtype)) / 255 for name in self.images}
        ready |= {name: obs[name] for name in self.texts}
        out: Tensor = self.module(
            {name: ready[name] if name in ready else obs[name].to(dtype) for name in self.names}
        )
        return out


def _call_factory(path: str, obs_shapes: ObsShapes) -> nn.Module:
    module_name, _, factory_name = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"encoder {path!r} cannot be loaded: {error}. Write module:factory, as Python imports it"
        ) from error
    module = factory(obs_shapes) if callable(factory) else factory
    if not isinstance(module, nn.Module):
        raise ValueError(  # noqa: TRY004 - the user's option is wrong, not our call
            f"encoder {path!r} gave {type(module).__name__}: its factory must return a torch.nn.Module"
        )
    return module


def _is_image(name: str, shape: tuple[int, ...], dtype: str) -> bool:
    if dtype == "uint8" and len(shape) == 2:
        raise ValueError(
            f"observation {name!r} is a uint8 image without channels {shape}: give it as (C, H, W)"
        )
    return dtype == "uint8" and len(shape) == 3


def _is_text(shape: tuple[int, ...], dtype: str) -> bool:
    return dtype == "int32" and len(shape) == 1


def _conv_pixels(conv: nn.Conv2d, image: Tensor) -> Tensor:
    """Convolve pixels / 255 by scaling the few weights, not the many pixels; bf16 holds 0..255 exactly."""
    x = _channels_last(image.to(conv.weight.dtype))
    return torch.conv2d(x, conv.weight / 255, conv.bias, conv.stride, conv.padding)


def _channels_last(image: Tensor) -> Tensor:
    """[N, C, H, W] with C innermost in memory; written with permute because vmap knows no memory formats."""
    return image.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def _flatten_image(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, H * W * C]: in this order a channels-last image needs no copy."""
    return x.permute(0, 2, 3, 1).flatten(1)


def _orthogonal(layer: _Layer, gain: float) -> _Layer:
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
