"""Running statistics of observations and returns, one set per policy.

The statistics, a mapping name -> [P, ...], are part of the state of a pack. Acting reads a copy of the statistics.

Axes: P policies, G policies of a group, T time, B rows, M rows of a piece, N elements of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

OBS_CLIP = 5.0
SMALLEST_PICTURE = 36
"""Images with a shorter side below this size are normalised like vectors, because most of these images are grids of
integer codes, as in MiniGrid."""
PIXEL_VARIANCE_EPSILON = 1e-3
"""Number that is added to the variance of pixels in [0, 1], so that tiny changes of almost constant pixels are not
amplified."""
PIXEL_SHARE = 61
"""Use every 61st image of a batch, because statistics of all images are too slow. 61 is prime: the used images are
spread over the rows if the number of rows is not a multiple of 61."""
PIECE = {"cpu": 2**18}
"""Device type -> maximum number of elements in a piece of a batch (see `_pieces`). A piece of this size fits the cache
of a CPU. Without pieces, a batch of 65,536 rows of 48 numbers takes 72 ms per rollout step instead of 2.8 ms, and
several times the memory."""
DEVICE_PIECE = 2**24
RETURN_STATS_RATE = 0.01
RETURN_SCALE_MIN = 0.01


@dataclass(frozen=True)
class Normalizers:
    """Normalisation options of a run, and the updates of the statistics.

    obs_sizes: name of a normalised observation -> elements per row.
    returns: True if returns are normalised.
    pixels: dtype of normalised images.
    """

    obs_sizes: Mapping[str, int]
    returns: bool
    pixels: torch.dtype = torch.float32

    def empty(self, zeros: Callable[..., Tensor]) -> dict[str, Tensor]:
        """Return initial statistics. zeros: zeros(*shape, dtype=...) makes a tensor [policies, *shape]."""
        stats = {"return_square": zeros() + 1}
        for name, size in self.obs_sizes.items():
            stats[f"obs_mean.{name}"] = zeros(size)
            stats[f"obs_var.{name}"] = zeros(size) + 1
            stats[f"obs_count.{name}"] = zeros(dtype=torch.float64)
        return stats

    @torch.no_grad()
    def observe_returns(
        self, stats: Mapping[str, Tensor], span: slice, target_GTB: Tensor, valid_GTB: Tensor
    ) -> None:
        """Update the exponential moving average of squared returns over valid steps.

        target: value targets [G, T, B] in reward units. span: the G slots.

        The average starts at 1. The first batches do not initialise the average, because returns of the first batches
        may be near zero. Targets that are divided by a scale near zero are huge and leave dead ReLU units (seen on
        Pong). The average of a policy does not change without valid steps, or if a valid target is not finite. If
        `returns` is False, this method does nothing.
        """
        if not self.returns:
            return
        count_G, square_G = valid_GTB.sum((1, 2)), stats["return_square"][span]
        mean_G = torch.where(valid_GTB, target_GTB, 0.0).square().sum((1, 2)) / count_G.clamp(min=1)
        change_G = RETURN_STATS_RATE * (mean_G - square_G)
        square_G += torch.where((count_G > 0) & (mean_G < math.inf), change_G, 0.0)

    @torch.no_grad()
    def observe_obs(
        self, stats: Mapping[str, Tensor], span: slice, obs_GTB: Mapping[str, Tensor], valid_GTB: Tensor
    ) -> None:
        """Update the running mean and variance of observations over valid steps, piece by piece.

        obs: name -> [G, T, B, ...], before normalisation. span: the G slots.

        The update is the parallel form of Chan et al. (1979). Images are scaled to [0, 1] and subsampled (PIXEL_SHARE).
        Images below SMALLEST_PICTURE are treated like vectors.
        """
        for name in self.obs_sizes:
            mean, var, count = (stats[f"obs_{part}.{name}"][span] for part in ("mean", "var", "count"))
            x, valid = obs_GTB[name], valid_GTB
            if _is_picture(x):
                some = torch.arange(0, valid.shape[1] * valid.shape[2], PIXEL_SHARE, device=x.device)
                t, b = some // valid.shape[2], some % valid.shape[2]
                x, valid = x[:, t, b].unsqueeze(1) / 255, valid[:, t, b].unsqueeze(1)
            n, mean_GN = count.unsqueeze(1), mean.double()
            square_GN = var * n
            for piece, counts in _pieces(x.flatten(3), valid):
                n_new, mean_new, square_new = _moments(piece, counts)
                total = (n + n_new).clamp(min=1)
                delta = mean_new - mean_GN
                square_GN = square_GN + square_new + delta**2 * (n * n_new / total)
                mean_GN = mean_GN + delta * (n_new / total)
                n = n + n_new
            var.copy_(torch.where(n > 0, square_GN / n.clamp(min=1), var.double()).float())
            mean.copy_(mean_GN.float())
            count.copy_(n.squeeze(1))

    def normalize_obs(
        self, stats: Mapping[str, Tensor], span: slice, obs_GTB: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Shift, scale and clip to +-OBS_CLIP the observations in `obs_sizes`. Return other observations unchanged.

        Images get the dtype `pixels`. Vectors and images below SMALLEST_PICTURE become float32.
        """
        out = dict(obs_GTB)
        for name in self.obs_sizes:
            mean, var = stats[f"obs_mean.{name}"][span], stats[f"obs_var.{name}"][span]
            if _is_picture(obs_GTB[name]):
                out[name] = self._normalize_images(obs_GTB[name], mean, var)
                continue
            x = obs_GTB[name]
            mean, var = (y.view(-1, 1, 1, *x.shape[3:]) for y in (mean, var))
            scaled = (x - mean) / (var + 1e-6).sqrt()
            out[name] = scaled.clamp(-OBS_CLIP, OBS_CLIP)
        return out

    def _normalize_images(self, image_GTBCHW: Tensor, mean_GN: Tensor, var_GN: Tensor) -> Tensor:
        """Normalise images, with C innermost in memory as convolutions expect.

        Mean and variance get the same memory layout, because mixed layouts are slow.
        """

        def laid_out(x: Tensor) -> Tensor:
            return x.to(self.pixels).movedim(-3, -1).contiguous().movedim(-1, -3)

        scale_GN = (var_GN + PIXEL_VARIANCE_EPSILON).rsqrt()
        shift, scale = (
            laid_out(x_GN.view(-1, 1, 1, *image_GTBCHW.shape[3:]))
            for x_GN in (-mean_GN * scale_GN, scale_GN / 255)
        )
        return torch.addcmul(shift, laid_out(image_GTBCHW), scale).clamp_(-OBS_CLIP, OBS_CLIP)


def _pieces(x_GTBN: Tensor, valid_GTB: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Split a batch into pieces [G, M, N] and their masks [G, M], without a copy if the memory layout allows this.

    A piece covers at most one time step, or the whole batch if the batch is small enough.
    """
    policies, steps, rows, size = x_GTBN.shape
    most = max(1, PIECE.get(x_GTBN.device.type, DEVICE_PIECE) // (policies * size))
    if steps * rows <= most:
        yield x_GTBN.flatten(1, 2), valid_GTB.flatten(1, 2)
        return
    for t in range(steps):
        yield from zip(x_GTBN[:, t].split(most, 1), valid_GTB[:, t].split(most, 1), strict=True)


def _moments(x_GMN: Tensor, valid_GM: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return count [G, 1], mean [G, N] and sum of squared deviations [G, N] of the valid rows, float64."""
    counts = valid_GM.unsqueeze(-1)
    whole = x_GMN.device.type == "cpu" and bool(valid_GM.all())  # would synchronise a GPU
    n = counts.sum(1).double()
    at_least_1 = n.clamp(min=1).float()
    x_GMN = x_GMN.float() if whole else torch.where(counts, x_GMN.float(), 0.0)
    mean = x_GMN.sum(1) / at_least_1
    apart = x_GMN - mean.unsqueeze(1)
    if not whole:
        apart *= counts
    rest = apart.sum(1) / at_least_1  # rounding error of the mean
    square = apart.square_().sum(1).double() - n * rest.double().square()
    return n, mean.double() + rest.double(), square


def _is_picture(x: Tensor) -> bool:
    return x.dtype == torch.uint8 and min(x.shape[-2:]) >= SMALLEST_PICTURE


def of_normalizers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the normaliser statistics in the state of a policy or a pack."""
    return {name: value for name, value in state.items() if name.startswith(("return", "obs"))}


def return_scale(stats: Mapping[str, Tensor], span: slice) -> Tensor:
    """Return the scale of normalised values, [G]: the running root mean square of returns, at least RETURN_SCALE_MIN.

    If returns are not normalised, the scale is 1, or the scale of a loaded state (--init-from).
    """
    return stats["return_square"][span].clamp(min=RETURN_SCALE_MIN**2).sqrt()
