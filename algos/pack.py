"""A pack: the policies of one device, their parameters and all other state stacked `[P, ...]`.

A policy's parameters are one row of one flat float32 matrix; every weight tensor is a view into it. So a
policy is copied, moved, optimised and measured with a handful of operations, whatever the network is, and
replacing a member is copying rows. A user's own `nn.Module` needs no change: its parameters are pointed at
the views.

Three copies of the weights exist, each with one writer:
    state["param"]   float32 masters         the optimiser
    working          compute dtype (bf16)    refreshed from the masters after each update; learning reads it
    serving          compute dtype           refreshed by `publish`; acting reads it, under the policy's lock

Axes: P policies, G policies of one group (what is computed together), T time, B rows, D distribution
parameters, S recurrent state, N parameters of one policy (body first, heads behind).
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Literal

import torch
from torch import Tensor

from . import optim
from .layout import aligned, lay_out, moved, point, stacked
from .models import PolicyNet

Packing = Literal["loop", "vmap"]
# The stacked views of a parameter matrix are never dense; autograd advises against that, at the price of a copy.
warnings.filterwarnings("ignore", message="grad and param do not obey the gradient layout contract")
OBS_CLIP = 5.0
RETURN_STATS_RATE = 0.01
RETURN_SCALE_MIN = 0.01


class Pack:
    """The policies of one device.

    state: name -> [P, ...] tensor; all that makes a policy but its hypers. A copy of a member copies every row.
    hypers: name -> [P] float32 tensor on the device, read by loss and optimiser at every update.
    """

    def __init__(
        self,
        make_net: Callable[[], PolicyNet],
        num_policies: int,
        hypers: Mapping[str, list[float]],
        *,
        device: torch.device,
        compute_dtype: torch.dtype,
        packing: Packing,
        optimizer: optim.OptimizerName,
        normalized_obs: Mapping[str, int],
        normalize_returns: bool,
    ) -> None:
        self.num_policies, self.device, self.compute_dtype = num_policies, device, compute_dtype
        self.packing: Packing = packing
        self.optimizer = optimizer
        self._make_net = make_net
        template = make_net()
        self.state_size = template.state_size
        heads = template.heads
        self._param_size = heads.policy.out_features * (1 if heads.log_std is None else 2)
        self._body = lay_out(template.body)
        self._body_size = aligned(self._body[-1].stop)
        self._heads = lay_out(template.heads, self._body_size)
        self.num_params = aligned(self._heads[-1].stop)
        self._normalize_returns = normalize_returns
        self._normalized_obs = dict(normalized_obs)

        self.state = self._empty_state(num_policies)
        self.hypers = {k: torch.tensor(v, dtype=torch.float32, device=device) for k, v in hypers.items()}
        masters = self.state["param"]
        self._separate = compute_dtype != torch.float32
        body = (num_policies, self._body_size)
        self._working = torch.zeros(body, dtype=compute_dtype, device=device) if self._separate else masters
        self._grad = torch.zeros_like(masters)
        self._grad_working = torch.zeros_like(self._working) if self._separate else self._grad
        self._serving = torch.zeros(body, dtype=compute_dtype, device=device)
        self._serving_heads = torch.zeros(
            (num_policies, self.num_params - self._body_size), dtype=torch.float32, device=device
        )
        self._serving_stats = {k: v.clone() for k, v in self.state.items() if k.startswith(("return", "obs"))}
        self.locks = [threading.Lock() for _ in range(num_policies)]
        self.idle = [False] * num_policies
        """Rows of nobody: a pack that computes its policies one by one leaves them out when it acts."""
        self._template = template.to(device)
        self._groups = self._make_groups()
        for p in range(num_policies):
            self.set_fresh(p, template if p == 0 else make_net())

    # -- layout ---------------------------------------------------------------------------------------------

    def _empty_state(self, rows: int) -> dict[str, Tensor]:
        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        state = {
            "param": zeros(rows, self.num_params),
            "square": zeros(rows, self.num_params),
            "updates": zeros(rows, dtype=torch.float64),
            "lr_factor": zeros(rows) + 1,
            "return_square": zeros(rows) + 1,
        }
        if self.optimizer == "adam":
            state["mean"] = zeros(rows, self.num_params)
        for name, size in self._normalized_obs.items():
            state[f"obs_mean.{name}"] = zeros(rows, size)
            state[f"obs_var.{name}"] = zeros(rows, size) + 1
            state[f"obs_count.{name}"] = zeros(rows, dtype=torch.float64)
        return state

    def _make_groups(self) -> list[Group]:
        ids = range(self.num_policies)
        members = [tuple(ids)] if self.packing == "vmap" else [(p,) for p in ids]
        return [Group(self, m) for m in members]

    def groups(self) -> list[Group]:
        """Sets of policies that are computed together: each alone (loop), or all at once (vmap)."""
        return self._groups

    # -- acting ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(
        self, obs_PB: Mapping[str, Tensor], state_PBS: Tensor, first_PB: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Serve one step: (params_PBD float32, value_PB float32 in reward units, state_PBS)."""
        params, values, states = [], [], []
        for group in self._groups:
            rows = group.rows
            if len(group.members) == 1 and self.idle[group.members[0]]:
                batch = first_PB.shape[1]
                flat = torch.zeros((1, batch, self._param_size), device=self.device)
                params.append(self._template.mask(flat, {k: v[rows] for k, v in obs_PB.items()}))
                values.append(torch.zeros((1, batch), device=self.device))
                states.append(state_PBS[rows])
                continue
            with ExitStack() as stack:
                for p in group.members:
                    stack.enter_context(self.locks[p])
                obs = {k: v[rows].unsqueeze(1) for k, v in obs_PB.items()}
                params_GTBD, value_GTB, state_GBS = group.serve(
                    obs, state_PBS[rows], first_PB[rows].unsqueeze(1)
                )
                value_GB = value_GTB.squeeze(1) * self._return_scale(self._serving_stats, rows).unsqueeze(1)
            params.append(params_GTBD.squeeze(1))
            values.append(value_GB)
            states.append(state_GBS)
        return torch.cat(params), torch.cat(values), torch.cat(states)

    @torch.no_grad()
    def publish(self, members: tuple[int, ...]) -> None:
        """Bring the present weights and normalisers of these policies to acting."""
        for p in members:
            with self.locks[p]:
                self._serving[p].copy_(self.state["param"][p, : self._body_size])
                self._serving_heads[p].copy_(self.state["param"][p, self._body_size :])
                for name, rows in self._serving_stats.items():
                    rows[p].copy_(self.state[name][p])
                if self.device.type == "cuda":
                    torch.cuda.current_stream(self.device).synchronize()

    # -- learning -------------------------------------------------------------------------------------------

    def step(self, group: Group, learning_rate_factor: float | Tensor, active_G: Tensor) -> Tensor:
        """Apply the gradients of one group and refresh its working weights; returns the norms, [G].

        A row that is not active is skipped whole: momentum would move it without any sample. So is one whose
        gradient is not finite: one bad batch must not destroy a member.
        """
        rows = group.rows
        if self._separate:
            self._grad[rows, : self._body_size].copy_(self._grad_working[rows])
            self._grad_working[rows].zero_()
        grad, state = self._grad[rows], self.state
        h = {k: v[rows] for k, v in self.hypers.items()}
        norm_G, scale_G = optim.grad_scale(grad, h["max_grad_norm"])
        scale_G = torch.where(active_G, scale_G, 0.0)
        rate_G = self.learning_rates(group, learning_rate_factor)
        with torch.no_grad():
            state["updates"][rows] += (scale_G > 0).double()
            if self.optimizer == "adam":
                updates_G = state["updates"][rows].clamp(min=1)
                moments = (state["mean"][rows], state["square"][rows])
                optim.adam(
                    state["param"][rows],
                    grad,
                    *moments,
                    updates_G,
                    scale_G,
                    rate_G,
                    h["adam_beta1"],
                    h["adam_beta2"],
                )
            else:
                optim.rmsprop(
                    state["param"][rows], grad, state["square"][rows], scale_G, rate_G, h["rmsprop_alpha"]
                )
            grad.zero_()
            if self._separate:
                self._working[rows].copy_(state["param"][rows, : self._body_size])
        return norm_G

    def learning_rates(self, group: Group, factor: float | Tensor) -> Tensor:
        """Learning rates in use, [G]: the member's own value x the schedule's factors (one, or [P])."""
        if isinstance(factor, Tensor):
            factor = factor[group.rows]
        return self.hypers["learning_rate"][group.rows] * self.state["lr_factor"][group.rows] * factor

    def normalize_value(self, value_GTB: Tensor, rows: slice) -> Tensor:
        """Reward units -> what the network predicts: divided by the running root mean square of returns.

        Not by their deviation: that shrinks to nothing where a policy earns the same every time, and every value
        learned before is then wrong by the factor that it shrank (measured on CartPole: members at 500 fell to 20).
        Nor is the mean taken out: where it drifts, the network chases its own target.
        """
        return value_GTB / self._return_scale(self.state, rows)[:, None, None]

    def denormalize_value(self, value_GTB: Tensor, rows: slice) -> Tensor:
        """What the network predicts -> reward units, by the present statistics."""
        return value_GTB * self._return_scale(self.state, rows)[:, None, None]

    def return_scale(self, rows: slice) -> Tensor:
        """Running root mean square of returns, [G]; 1 where returns are not normalised."""
        return self._return_scale(self.state, rows)

    def _return_scale(self, stats: Mapping[str, Tensor], rows: slice) -> Tensor:
        return stats["return_square"][rows].clamp(min=RETURN_SCALE_MIN**2).sqrt()

    @torch.no_grad()
    def observe_returns(self, rows: slice, target_GTB: Tensor, valid_GTB: Tensor) -> None:
        """Update the running mean square of returns: exponential, valid steps only.

        It begins at 1: returns that are really larger are found at once, smaller
        ones slowly. Trusting the first batches instead can divide by the scale of a few silent steps, and the
        huge targets that follow kill the network's units for good (seen on Pong).
        """
        if not self._normalize_returns:
            return
        count_G = valid_GTB.sum((1, 2))
        rate_G = RETURN_STATS_RATE * (count_G > 0)
        mean_G = torch.where(valid_GTB, target_GTB**2, 0.0).sum((1, 2)) / count_G.clamp(min=1)
        change_G = rate_G * (mean_G - self.state["return_square"][rows])
        self.state["return_square"][rows] += torch.where(torch.isfinite(change_G), change_G, 0.0)

    @torch.no_grad()
    def observe_obs(self, rows: slice, obs_GTB: Mapping[str, Tensor], valid_GTB: Tensor) -> None:
        """Update the running mean and variance of float observations (Chan et al. 1979, parallel form)."""
        for name in self._normalized_obs:
            x, valid = obs_GTB[name].double(), valid_GTB.unsqueeze(-1)
            n_new = valid.sum((1, 2)).double()
            mean_new = torch.where(valid, x, 0.0).sum((1, 2)) / n_new.clamp(min=1)
            square_new = torch.where(valid, (x - mean_new[:, None, None]) ** 2, 0.0)
            var_new = square_new.sum((1, 2)) / n_new.clamp(min=1)
            mean, var = self.state[f"obs_mean.{name}"][rows], self.state[f"obs_var.{name}"][rows]
            count = self.state[f"obs_count.{name}"][rows].unsqueeze(1)
            total = (count + n_new).clamp(min=1)
            delta = mean_new - mean
            joint = var * count + var_new * n_new + delta**2 * count * n_new / total
            self.state[f"obs_var.{name}"][rows] = torch.where(
                count + n_new > 0, joint / total, var.double()
            ).float()
            self.state[f"obs_mean.{name}"][rows] = (mean + delta * n_new / total).float()
            self.state[f"obs_count.{name}"][rows] += n_new.squeeze(1)

    def normalize_obs(
        self, obs: Mapping[str, Tensor], rows: slice, stats: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """[G, T, B, ...] observations with the float ones that are normalised, normalised."""
        stats = self.state if stats is None else stats
        out = dict(obs)
        for name in self._normalized_obs:
            mean, var = stats[f"obs_mean.{name}"][rows], stats[f"obs_var.{name}"][rows]
            scaled = (obs[name] - mean[:, None, None]) / (var[:, None, None] + 1e-6).sqrt()
            out[name] = scaled.clamp(-OBS_CLIP, OBS_CLIP)
        return out

    # -- members --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def copy_member(self, source: int, target: int) -> None:
        """Make the target's whole state the source's. Hypers are not state: set them."""
        for rows in self.state.values():
            rows[target].copy_(rows[source])
        self._refresh(target)

    @torch.no_grad()
    def export_member(self, policy: int) -> dict[str, Tensor]:
        """Return the member's whole state, on the CPU."""
        return {name: rows[policy].to("cpu", copy=True) for name, rows in self.state.items()}

    @torch.no_grad()
    def import_member(self, policy: int, state: Mapping[str, Tensor]) -> None:
        """Take a state that `export_member` gave, here or in another pack."""
        assert state.keys() == self.state.keys()
        for name, rows in self.state.items():
            rows[policy].copy_(state[name])
        self._refresh(policy)

    def set_fresh(self, policy: int, net: PolicyNet | None = None) -> None:
        """Give new weights (drawn from torch's global generator), empty moments and statistics."""
        self.import_member(policy, self.fresh_state(net))

    @torch.no_grad()
    def fresh_state(self, net: PolicyNet | None = None) -> dict[str, Tensor]:
        """Return the state of a policy that never learned, of these weights or of drawn ones."""
        fresh = self._empty_state(1)
        net = self._make_net() if net is None else net
        for slots, module in ((self._body, net.body), (self._heads, net.heads)):
            for slot, parameter in zip(slots, module.parameters(), strict=True):
                slot.view(fresh["param"][0]).copy_(parameter)
        return {name: rows[0] for name, rows in fresh.items()}

    def set_hypers(self, policy: int, values: Mapping[str, float]) -> None:
        """Write one member's hypers; nothing is rebuilt."""
        for name, column in self.hypers.items():
            column[policy] = values[name]

    def named_weights(self, policy: int) -> dict[str, Tensor]:
        """float32 weights by the names of the network's `state_dict`, on the CPU."""
        return self.weights_of({"param": self.state["param"][policy].to("cpu")})

    def weights_of(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights by name of a state that `export_member` gave."""
        row = state["param"]
        named = {f"body.{s.name}": s.view(row) for s in self._body}
        return named | {f"heads.{s.name}": s.view(row) for s in self._heads}

    def named_statistics(self, policy: int) -> dict[str, Tensor]:
        """The normalisers of observations and returns, on the CPU."""
        return self.statistics_of({k: rows[policy].to("cpu", copy=True) for k, rows in self.state.items()})

    def statistics_of(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Normalisers of a state that `export_member` gave."""
        return {name: value for name, value in state.items() if name.startswith(("return", "obs"))}

    def member_bytes(self) -> int:
        """Size of one member's state."""
        return sum(rows[0].numel() * rows.element_size() for rows in self.state.values())

    def _refresh(self, policy: int) -> None:
        if self._separate:
            self._working[policy].copy_(self.state["param"][policy, : self._body_size])
        self.publish((policy,))


class Group:
    """Policies that are computed in one forward. rows: their place in every `[P, ...]` tensor."""

    def __init__(self, pack: Pack, members: tuple[int, ...]) -> None:
        self.members = members
        self.rows = slice(members[0], members[-1] + 1)
        self._pack = pack
        body, heads, size = pack._body, pack._heads, pack._body_size  # noqa: SLF001 - one thing in two classes
        masters = pack.state["param"]
        # Two networks, because two threads use them: functional_call, too, puts parameters into its module.
        self._learning, self._acting = (copy.deepcopy(pack._template) for _ in range(2))  # noqa: SLF001
        if pack.packing == "loop":
            p = members[0]
            point(self._learning.body, body, pack._working[p], pack._grad_working[p])  # noqa: SLF001
            point(self._learning.heads, heads, masters[p], pack._grad[p])  # noqa: SLF001
            serving = torch.empty(0)
            for module, slots, flat in (
                (self._acting.body, body, pack._serving[p]),  # noqa: SLF001
                (self._acting.heads, moved(heads, -size), pack._serving_heads[p]),  # noqa: SLF001
            ):
                point(module, slots, flat, serving)
        else:
            self._learn_params = {
                **stacked("body.", body, pack._working, pack._grad_working),  # noqa: SLF001
                **stacked("heads.", heads, masters, pack._grad),  # noqa: SLF001
            }
            none = torch.empty(0)
            self._act_params = {
                **stacked("body.", body, pack._serving, none),  # noqa: SLF001
                **stacked("heads.", moved(heads, -size), pack._serving_heads, none),  # noqa: SLF001
            }

    def forward(
        self, obs_GTB: Mapping[str, Tensor], state_GBS: Tensor, first_GTB: Tensor
    ) -> tuple[Tensor, ...]:
        """(params_GTBD, value_GTB normalised, state_GBS) with gradients, by the working weights."""
        obs = self._pack.normalize_obs(obs_GTB, self.rows)
        if self._pack.packing == "loop":
            return _alone(self._learning, obs, state_GBS, first_GTB)
        return _stacked(self._learning, self._learn_params, obs, state_GBS, first_GTB)

    def serve(
        self, obs_GTB: Mapping[str, Tensor], state_GBS: Tensor, first_GTB: Tensor
    ) -> tuple[Tensor, ...]:
        """Do the same by the published weights, without gradients."""
        obs = self._pack.normalize_obs(obs_GTB, self.rows, self._pack._serving_stats)  # noqa: SLF001
        if self._pack.packing == "loop":
            return _alone(self._acting, obs, state_GBS, first_GTB)
        return _stacked(self._acting, self._act_params, obs, state_GBS, first_GTB)


def _stacked(
    net: PolicyNet,
    params: Mapping[str, Tensor],
    obs: Mapping[str, Tensor],
    state: Tensor,
    first: Tensor,
) -> tuple[Tensor, ...]:
    def one(
        params: dict[str, Tensor], obs: dict[str, Tensor], state: Tensor, first: Tensor
    ) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = torch.func.functional_call(net, params, (obs, state, first))
        return result

    result: tuple[Tensor, ...] = torch.func.vmap(one)(dict(params), dict(obs), state, first)
    return result


def _alone(net: PolicyNet, obs: Mapping[str, Tensor], state: Tensor, first: Tensor) -> tuple[Tensor, ...]:
    params, value, state = net({k: v[0] for k, v in obs.items()}, state[0], first[0])
    return params.unsqueeze(0), value.unsqueeze(0), state.unsqueeze(0)
