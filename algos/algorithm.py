"""Algorithms, each defined by one `Algorithm` object.

update.py and the plan of a run read the `Algorithm`, and do not branch on its name. To add an algorithm, write a file
like appo.py that defines an `Algorithm` (or uses `dataclasses.replace`). Select the algorithm by `--algo
module:OBJECT`, or add an entry to the table in pbt_rl/registry.py.

Axes: G policies of a group, T steps, B rows of a policy, N = T * B samples of one policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
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
"""Hyperparameter name -> values [G]. A loss receives the values of one policy, 0-d."""


class Present(NamedTuple):
    """Outputs of the current policies on a minibatch, without gradients."""

    log_prob: Tensor
    """[G, T, B] log probabilities of the actions taken"""
    value: Tensor
    """[G, T, B] values in reward units"""
    valid: Tensor
    """[G, T, B] bool: True if the policy learns from the step"""
    return_scale: Tensor
    """[G] scale of normalised values, see `normalizers.return_scale`"""


class LossInputs(NamedTuple):
    """Inputs of a loss: samples of one policy, [N] each. N = T * B (steps * rows).

    `value`, `old_value` and `target` are divided by the return scale. `advantage` is as `Algorithm.targets` or
    `Algorithm.fixed_advantage` returns it. `old_log_prob` and `old_value` come from the behaviour policy, or from the
    policy before the update if `UpdateSettings.proximal` is set.
    """

    log_prob: Tensor
    """Log probability under the current policy. `log_prob`, `entropy` and `value` have gradients."""
    entropy: Tensor
    """Entropy of the current policy, in nats"""
    value: Tensor
    advantage: Tensor
    target: Tensor
    old_log_prob: Tensor
    old_value: Tensor
    acting_log_prob: Tensor
    """Log probability under the behaviour policy"""
    valid: Tensor
    """bool: True if the policy learns from the sample. Invalid samples affect neither loss nor gradients."""


@dataclass(frozen=True)
class UpdateSettings:
    """Update settings shared by all policies of a run."""

    algorithm: Algorithm
    epochs: int
    minibatches: int
    use_vtrace: bool
    normalize_advantage: bool
    lr_schedule_kl: float | None
    """Desired KL divergence of the adaptive learning rate. None: the learning rate is not adapted."""
    target_kl: float | None
    """Early stopping: if the KL divergence of a minibatch is above 1.5 times this value, the policy skips this
    optimiser step and the rest of the batch. None: no early stopping."""
    distribution: Distribution
    proximal: bool = False
    """True: the `old` fields of `LossInputs` come from the policy before the update. This costs one forward pass per
    batch."""
    off_policy: bool = False
    """True if rollouts may come from older weights. `Samples.last_value` is then recomputed for each batch."""


class OwnStep(NamedTuple):
    """Input of `Algorithm.backward`: a minibatch in time order."""

    group: Group
    """Group that computes forward passes of the policies."""
    samples: Samples
    """Minibatch. Observations have the shapes of the network's inputs, but are not normalised yet. Invalid steps
    must not affect losses or gradients."""
    cut: Tensor
    """[G, T, B] bool: the step starts an unroll. Gradients stop before the step (see cores.py)"""
    hypers: Hypers
    """Values of the hyperparameters in `Algorithm.loss_hypers`"""
    return_scale: Tensor
    """[G] scale of normalised values, see `normalizers.return_scale`"""
    observe_returns: Callable[[Tensor], None]
    """Updates the statistics of returns. The argument is the value targets of the first T' steps, [G, T', B] in reward
    units."""
    settings: UpdateSettings


@dataclass(frozen=True)
class Auxiliary:
    """Auxiliary loss on replayed segments, optimised in the same steps as the main loss."""

    loss: Callable[[PolicyNet, tuple[Segments, ...], Hypers, Tensor], tuple[Tensor, Stats]]
    """(network, one `Segments` per entry of `replay.draws`, hyperparameters, return scale) of one policy -> (0-d loss,
    statistics). The loss is added to `Algorithm.loss` and must run under torch.func.vmap. Fields of the segments have
    no policy axis: [L steps, S segments, ...]."""
    hypers: tuple[str, ...]
    """Hyperparameters that `loss` reads."""
    replay: ReplaySpec
    """Size of the replay memory and the segments to draw."""
    reads_pixels: bool = True
    """True if `loss` needs raw pixels. Images are then not normalised."""


@dataclass(frozen=True)
class Algorithm:
    """Algorithm as a set of functions. `loss` must run under torch.func.vmap."""

    loss: Callable[[LossInputs, Hypers, UpdateSettings], tuple[Tensor, Stats]]
    """Returns the 0-d loss of one policy, and statistics. Each statistic is reported under its name."""
    targets: Callable[[Samples, Hypers, Present, UpdateSettings], tuple[Tensor, Tensor]]
    """Returns (value targets in reward units, advantages) of a minibatch, [G, T, B] each."""
    optimizer: Optimizer
    loss_hypers: tuple[str, ...]
    """Hyperparameters that `loss` or `backward` reads."""
    statistics: Mapping[str, str]
    """Name of each statistic of `loss`, `auxiliary` or `backward` -> one line that explains it."""
    hypers: type | None = None
    """Dataclass of hyperparameters that only this algorithm has, in addition to `LearnerHypers`."""
    target_hypers: tuple[str, ...] = ("gamma", "gae_lambda", *OF_VTRACE, "unroll")
    """Hyperparameters that `targets` and `fixed_advantage` read. The names in OF_VTRACE are read only if a run uses
    V-trace or the algorithm has no fixed advantages."""
    fixed_advantage: Callable[[Samples, Hypers, UpdateSettings], Tensor | None] | None = None
    """Returns advantages [G, T, B] in reward units, for all epochs over a batch. The value targets are then the stored
    values plus these advantages. If the network also has no recurrent core, the batch is split into minibatches of
    single steps. If the field is None or the function returns None, `targets` runs for each minibatch."""
    recipe: Callable[[Mapping[str, object]], Mapping[str, object]] = lambda _: {}
    """Maps an environment's recipe (dotted option -> value, tuned for appo) to options that override the recipe."""
    network: Callable[[PolicyNet, NetInputs], PolicyNet] = lambda net, _: net
    """Extends the network that the options describe. Additional heads go to `net.heads.auxiliary`. The function
    must raise ValueError, with a message for the user, if the algorithm does not support these observations or
    actions."""
    auxiliary: Auxiliary | None = None
    """Auxiliary loss on a replay, if any."""
    backward: Callable[[OwnStep], Stats] | None = None
    """Custom backward pass, for losses that need more than a policy's outputs at one step. The function returns
    statistics, [G] each, and replaces `loss`, `targets` and `auxiliary`. The network must have a recurrent state."""
    proximal: bool = False
    """True: `loss` supports `UpdateSettings.proximal`. The centre of the trust region is `old_log_prob`. `loss` weights
    each sample by exp(old_log_prob - acting_log_prob), because the behaviour policy can be older than this centre."""
    learns_per_vector_env: bool = False
    """True: each full rollout of a vector env gives one optimiser step, whatever --learner.batch is. Exception: with
    many vector envs, a step learns from several rollouts, because waiting rollouts would become too old
    (pbt_rl/plan/sizes.py)."""

    @property
    def needs_final_steps(self) -> str | None:
        """Reason why same-step resets are unsupported; None if same-step resets are supported."""
        if self.auxiliary is not None:
            return "its replay needs the last observation of each episode"
        if self.backward is not None:
            return "it computes the value of each episode's last observation"
        return None

    def reads(self, *, use_vtrace: bool) -> set[str]:
        """Return the names of all hyperparameters that the algorithm reads or declares.

        use_vtrace: True if the run uses V-trace.
        """
        auxiliary = () if self.auxiliary is None else self.auxiliary.hypers
        unused = () if use_vtrace or self.fixed_advantage is None else OF_VTRACE
        of_targets = {*self.target_hypers}.difference(unused)
        own = () if self.hypers is None else [one.name for one in fields(self.hypers)]
        return of_targets.union(OF_ALL_OPTIMIZERS, self.optimizer.hypers, self.loss_hypers, auxiliary, own)

    def check(self) -> None:
        """Raise ValueError if a field has a wrong type, or if both `backward` and `auxiliary` are set.

        Most fields are checked, because users write algorithms.
        """
        functions = ["recipe", "network", *(() if self.backward else ("loss", "targets"))]
        functions += [name for name in ("fixed_advantage", "backward") if getattr(self, name) is not None]
        texts = (list, tuple, set, frozenset)
        own = self.hypers if isinstance(self.hypers, type) and is_dataclass(self.hypers) else None
        if self.backward is not None and self.auxiliary is not None:
            raise ValueError("Algorithm(auxiliary=...) has no effect with backward: add the loss in backward")
        wanted = {
            **{name: (callable(getattr(self, name)), "a function") for name in functions},
            "optimizer": (
                isinstance(self.optimizer, Optimizer),
                "an Optimizer, such as pbt_rl.algos.optim.ADAM",
            ),
            "auxiliary": (
                self.auxiliary is None or isinstance(self.auxiliary, Auxiliary),
                "None or an Auxiliary",
            ),
            "loss_hypers": (isinstance(self.loss_hypers, texts), "a tuple of names"),
            "target_hypers": (isinstance(self.target_hypers, texts), "a tuple of names"),
            "statistics": (isinstance(self.statistics, Mapping), "a dict, name -> explanation"),
            "hypers": (
                self.hypers is own and (own is None or all("bounds" in one.metadata for one in fields(own))),
                "a dataclass whose fields are declared with pbt_rl.algos.hypers.hyper(...)",
            ),
        }
        for name, (good, kind) in wanted.items():
            if not good:
                raise ValueError(f"Algorithm({name}=...) is {getattr(self, name)!r}: it must be {kind}")

    @property
    def measures_kl(self) -> bool:
        """True if the statistics include the KL divergence, as `kl`."""
        return "kl" in self.statistics
