"""An algorithm: everything by which one way to learn differs from another, as one object.

`update` and the plan of a run read it; nothing branches on an algorithm's name. A new one is a file like `appo.py`:
define an `Algorithm` (or `dataclasses.replace` one) and pass `--algo module:OBJECT`, or give it an entry in the table
of `pbt_rl/registry.py`.

Axes: G policies of a group, T steps, B rows of a policy, N = T * B samples of one policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from torch import Tensor

from .batch import Samples, Segments
from .distributions import Distribution
from .losses import Stats
from .models import NetInputs, PolicyNet
from .optim import OF_ALL_OPTIMIZERS, Optimizer
from .replay import ReplaySpec
from .weights import Group

OF_VTRACE = ("vtrace_rho", "vtrace_c")
Hypers = Mapping[str, Tensor]
"""Name of a hyper -> its values, [G] (in a loss: of one policy, 0-d)."""


class Present(NamedTuple):
    """The present policies on a minibatch, without gradients."""

    log_prob: Tensor
    """[G, T, B] of the actions taken."""
    value: Tensor
    """[G, T, B] in reward units."""
    valid: Tensor
    """[G, T, B]"""
    return_scale: Tensor
    """[G] root mean square of returns; 1 unless returns are normalised."""


class LossInputs(NamedTuple):
    """Samples [N] of one policy. Values and targets are in one, normalised, unit.

    The `old` ones are of acting time, or of the begin of the batch if `UpdateSettings.proximal`.
    """

    log_prob: Tensor
    """With gradients, as are entropy and value."""
    entropy: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor
    old_log_prob: Tensor
    old_value: Tensor
    acting_log_prob: Tensor
    valid: Tensor
    """bool: the others change neither loss nor gradients, whatever they hold."""


@dataclass(frozen=True)
class UpdateSettings:
    """Settings of an update that all policies of a run share."""

    algorithm: Algorithm
    epochs: int
    minibatches: int
    use_vtrace: bool
    normalize_advantage: bool
    lr_schedule_kl: float | None
    """Adapt `state["lr_factor"]` to this divergence after each batch; None: keep it."""
    target_kl: float | None
    """A policy learns no more from a batch once a minibatch's divergence is above 1.5 times this; None: from all."""
    distribution: Distribution
    proximal: bool = False
    """What a loss calls old is of the policy at the begin of the batch, which costs a forward, not of acting time."""
    off_policy: bool = False
    """Rollouts may be of older weights, so that the last value is computed anew for each batch."""


class OwnStep(NamedTuple):
    """A minibatch for `Algorithm.backward`, in its order in time."""

    group: Group
    """What computes its policies."""
    samples: Samples
    """Observations as the network sees them but for their normalising; only valid steps may be learned from."""
    cut: Tensor
    """[G, T, B] an unroll begins: see models.py."""
    hypers: Hypers
    """`Algorithm.loss_hypers`."""
    return_scale: Tensor
    """[G]"""
    observe_returns: Callable[[Tensor], None]
    """Takes the value targets of the first steps, [G, T', B] in reward units, for the statistics of returns, which are
    updated after the optimiser's step."""
    settings: UpdateSettings


@dataclass(frozen=True)
class Auxiliary:
    """What an algorithm learns besides, in the same optimiser steps, from a replay of what its policies did."""

    loss: Callable[[PolicyNet, tuple[Segments, ...], Hypers, Tensor], tuple[Tensor, Stats]]
    """(network, segments of each draw, hypers, return scale) of one policy -> loss, 0-d, and statistics. It is added to
    `Algorithm.loss`, and must run under torch.func.vmap. Without the axis of policies: fields [L, S, ...]."""
    hypers: tuple[str, ...]
    """Hypers that `loss` reads."""
    replay: ReplaySpec
    """What is kept of what the policies did, and what is drawn from it."""
    reads_pixels: bool = True
    """Whether `loss` is of the pixels themselves, which are then not normalised."""


@dataclass(frozen=True)
class Algorithm:
    """One way to learn. Its functions are pure; `loss` must run under torch.func.vmap."""

    loss: Callable[[LossInputs, Hypers, UpdateSettings], tuple[Tensor, Stats]]
    """Loss of one policy, 0-d, and its statistics. Every statistic is reported under its name."""
    targets: Callable[[Samples, Hypers, Present, UpdateSettings], tuple[Tensor, Tensor]]
    """Value targets (reward units) and advantages of a minibatch, [G, T, B]."""
    optimizer: Optimizer
    loss_hypers: tuple[str, ...]
    """Hypers that `loss` reads."""
    statistics: Mapping[str, str]
    """Statistics that `loss` returns: name -> one line that explains it."""
    hypers: type | None = None
    """Dataclass of hypers of its own, besides those that all share (`hypers.py`)."""
    target_hypers: tuple[str, ...] = ("gamma", "gae_lambda", *OF_VTRACE, "unroll")
    """Hypers that `targets` and `fixed_advantage` read. Others do not reach them; those in OF_VTRACE do only if a run
    uses V-trace or there are no fixed advantages."""
    fixed_advantage: Callable[[Samples, Hypers, UpdateSettings], Tensor | None] | None = None
    """Advantages [G, T, B] that hold for all passes over a batch; None: `targets` is called for each minibatch."""
    recipe: Callable[[Mapping[str, object]], Mapping[str, object]] = lambda _: {}
    """The recipe of an environment (dotted option -> value), which is written for appo -> values that lie over it."""
    network: Callable[[PolicyNet, NetInputs], PolicyNet] = lambda net, _: net
    """The network as the options describe it -> with what the algorithm needs besides: `net.heads.auxiliary` is a place
    for heads of its own. Raises ValueError, whose text is for the user, if it cannot learn from these observations and
    actions."""
    auxiliary: Auxiliary | None = None
    """What is learned from a replay."""
    backward: Callable[[OwnStep], Stats] | None = None
    """Goes backward through a loss of its own, and returns its statistics, [G] each. It stands for `loss`, `targets`
    and `fixed_advantage` if a policy's outputs at one step do not suffice, and needs a recurrent core."""
    learns_single_steps: bool = False
    """A minibatch may be of single steps, if the network has no memory and returns are those of acting time."""
    proximal: bool = False
    """`loss` weighs a sample by how likely its action was at the begin of the batch (`old_log_prob`) over when it was
    taken (`acting_log_prob`). So rollouts of older weights do not move the centre of its trust region."""
    learns_per_unit: bool = False
    """Learn once from each full rollout of a unit, without waiting for a batch of several. If units are many, from
    as few together as keep rollouts young enough (pbt_rl/plan/sizes.py)."""

    @property
    def needs_final_steps(self) -> str | None:
        """Why it cannot learn from episodes that end and begin in one step; None if it can."""
        if self.auxiliary is not None:
            return "it keeps a replay of whole episodes, with their last observations"
        if self.backward is not None:
            return "it values the last observation of an episode by itself"
        return None

    def reads(self, *, use_vtrace: bool) -> set[str]:
        """Return the names of all hypers that change what is learned, and of those that it declares itself."""
        auxiliary = () if self.auxiliary is None else self.auxiliary.hypers
        unused = () if use_vtrace or self.fixed_advantage is None else OF_VTRACE
        of_targets = {*self.target_hypers}.difference(unused)
        own = () if self.hypers is None else [one.name for one in fields(self.hypers)]
        return of_targets.union(OF_ALL_OPTIMIZERS, self.optimizer.hypers, self.loss_hypers, auxiliary, own)

    @property
    def measures_kl(self) -> bool:
        """Whether a learning rate can be adapted to how far the policy moved."""
        return "kl" in self.statistics
