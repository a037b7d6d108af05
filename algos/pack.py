"""A pack: the policies of one device, their parameters and all other state stacked `[P, ...]`.

A policy's parameters are one flat float32 vector; every weight tensor is a view into it. So a policy is copied,
moved, optimised and measured with a handful of operations, whatever the network is, and replacing a member is copying
vectors. A user's own `nn.Module` needs no change: its parameters are pointed at the views (see weights.py).

Axes: P policies, G policies of one group (computed together), T time, B rows, D distribution parameters,
S recurrent state. A slot is an index of the P axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from .device import for_upload
from .encoders import compute_by_products
from .models import PolicyNet
from .normalizers import Normalizers, return_scale
from .optim import Gradients, Optimizer, grad_scale
from .weights import Group, NetLayout, Streams, Weights

Packing = Literal["loop", "vmap", "bmm"]
"""How policies are computed: one by one; all at once by vmap; the same with convolutions as matrix products."""


class Pack:
    """The policies of one device.

    state: name -> [P, ...] tensor; all that makes a policy but its hypers. A copy of a member copies every entry.
    hypers: name -> [P] float32 tensor on the device, read by loss and optimiser at every update.
    streams: those that act and learn on the device.
    idle: slots held by no member; a pack that computes its policies one by one leaves them out when it acts.
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
        optimizer: Optimizer,
        normalized_obs: Mapping[str, int],
        normalize_returns: bool,
        streams: Streams | None = None,
    ) -> None:
        self.streams = Streams() if streams is None else streams
        self.num_policies, self.device = num_policies, device
        self.packing, self.optimizer = packing, optimizer
        self._make_net = make_net
        template = make_net()
        self.state_size = template.state_size
        self._param_size = template.param_size
        self._layout = NetLayout.of(template)
        self._normalizers = Normalizers(dict(normalized_obs), normalize_returns, compute_dtype)

        self.state = self._empty_state(num_policies, device)
        self.hypers = {k: torch.tensor(v, dtype=torch.float32, device=device) for k, v in hypers.items()}
        self._hypers_of: dict[tuple[int, int], dict[str, Tensor]] = {}
        self.weights = Weights(self._layout, self.state["param"], compute_dtype, one_by_one=packing == "loop")
        self._serving = self.streams.serving(self.weights, self.state)
        self.idle = [False] * num_policies
        self._template = template.to(device)
        if packing == "bmm":
            compute_by_products(self._template)
        parts = (self._template, self.weights, self._normalizers, self.state, self._serving.stats)
        slots, alone = range(num_policies), packing == "loop"
        together: list[tuple[int, ...]] = [(p,) for p in slots] if alone else [tuple(slots)]
        self._groups = [Group(of_group, *parts, alone=alone) for of_group in together]
        for p in range(num_policies):
            self.set_fresh(p, template if p == 0 else make_net())

    def _empty_state(self, policies: int, device: torch.device) -> dict[str, Tensor]:
        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((policies, *shape), dtype=dtype, device=device)

        moments = {name: zeros(self._layout.size) for name in self.optimizer.moments}
        rest = {
            "optimizer_steps": zeros(dtype=torch.float64),
            "lr_factor": zeros() + 1,
            **self._normalizers.empty(zeros),
        }
        assert not moments.keys() & {"param", *rest}, "a moment of the optimiser has the name of another part"
        return {"param": zeros(self._layout.size), **moments, **rest}

    def groups(self) -> list[Group]:
        """Sets of policies that are computed together: each alone (loop), or all at once (vmap, bmm)."""
        return self._groups

    # -- acting ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(
        self,
        obs_PB: Mapping[str, Tensor],
        state_PBS: Tensor,
        first_PB: Tensor,
        before_each: Callable[[], object] = lambda: None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Serve one step: (params_PBD float32, value_PB float32 in reward units, state_PBS).

        before_each: called before each group is computed; it may edit slots, and no group is half of one state.
        """
        self.take_published()
        return self.serve(obs_PB, state_PBS, first_PB, before_each)

    def take_published(self) -> None:
        """Bring what was published since the last turn to `serve`."""
        self._serving.take()

    @torch.no_grad()
    def serve(
        self,
        obs_PB: Mapping[str, Tensor],
        state_PBS: Tensor,
        first_PB: Tensor,
        before_each: Callable[[], object] = lambda: None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Do the same with what was taken: calls on the device alone, in the same memory every time."""
        params, values, states = [], [], []
        for group in self._groups:
            before_each()
            span = group.span
            if len(group.slots) == 1 and self.idle[group.slots[0]]:
                batch = first_PB.shape[1]
                flat = torch.zeros((1, batch, self._param_size), device=self.device)
                params.append(self._template.mask(flat, {k: v[span] for k, v in obs_PB.items()}))
                values.append(torch.zeros((1, batch), device=self.device))
                states.append(state_PBS[span])
                continue
            with self._serving.held(group.slots):
                obs = {k: v[span].unsqueeze(1) for k, v in obs_PB.items()}
                params_GTBD, value_GTB, state_GBS = group.serve(
                    obs, state_PBS[span], first_PB[span].unsqueeze(1)
                )
                value_GB = value_GTB.squeeze(1) * return_scale(self._serving.stats, span).unsqueeze(1)
            params.append(params_GTBD.squeeze(1))
            values.append(value_GB)
            states.append(state_GBS)
        return _joined(params), _joined(values), _joined(states)

    @torch.no_grad()
    def publish(self, slots: tuple[int, ...]) -> None:
        """Bring the present weights and normalisers of these slots to acting; waits for nothing."""
        self._serving.publish(slots, exchanged=False)

    # -- learning -------------------------------------------------------------------------------------------

    def step(self, group: Group, factor_P: Tensor, active_G: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the gradients of one group and refresh its working weights; returns their norms and the rates, [G].

        The learning rate in use is the member's own value times the schedule's factors, one of which is given.
        A policy that is not active is skipped whole: momentum would move it without any sample. So is one whose
        gradient is not finite: one bad batch must not destroy a member.
        """
        span, state, hypers = group.span, self.state, self.hypers_of(group.span)
        grad = self.weights.collect_gradients(span)
        norm_G, scale_G = grad_scale(grad, hypers["max_grad_norm"])
        scale_G = torch.where(active_G, scale_G, 0.0)
        rate_G = hypers["learning_rate"] * state["lr_factor"][span] * factor_P[span]
        with torch.no_grad():
            steps_G = state["optimizer_steps"][span].add_(scale_G > 0).clamp(min=1)
            moments = [state[name][span] for name in self.optimizer.moments]
            self.optimizer.step(
                Gradients(state["param"][span], grad, scale_G, rate_G, steps_G), moments, hypers
            )
            grad.zero_()
            self.weights.refresh_working(span)
        return norm_G, rate_G

    def hypers_of(self, span: slice) -> Mapping[str, Tensor]:
        """Hypers of these slots, [G]: views, so that a change of a value shows at once."""
        key = span.start, span.stop
        if key not in self._hypers_of:
            self._hypers_of[key] = {name: column[span] for name, column in self.hypers.items()}
        return self._hypers_of[key]

    def normalize_value(self, value_GTB: Tensor, span: slice) -> Tensor:
        """Convert reward units to the network's: divide by the running root mean square of returns.

        Not by their deviation: that shrinks to nothing if a policy earns the same every time, and every value
        learned before is then wrong by the factor that it shrank (measured on CartPole: members at 500 fell to 20).
        Nor is the mean taken out: if it drifts, the network chases its own target.
        """
        return value_GTB / self.return_scale(span)[:, None, None]

    def denormalize_value(self, value_GTB: Tensor, span: slice) -> Tensor:
        """Convert the network's unit to reward units, by the present statistics."""
        return value_GTB * self.return_scale(span)[:, None, None]

    def return_scale(self, span: slice) -> Tensor:
        """Running root mean square of returns, [G]; 1 unless returns are normalised."""
        return return_scale(self.state, span)

    def observe_returns(self, span: slice, target_GTB: Tensor, valid_GTB: Tensor) -> None:
        """Update the statistics of returns."""
        self._normalizers.observe_returns(self.state, span, target_GTB, valid_GTB)

    def observe_obs(self, span: slice, obs_GTB: Mapping[str, Tensor], valid_GTB: Tensor) -> None:
        """Update the statistics of observations."""
        self._normalizers.observe_obs(self.state, span, obs_GTB, valid_GTB)

    # -- members --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def copy_member(self, source: int, target: int) -> None:
        """Make the target slot's whole state the source's. Hypers are not state: set them."""
        for stacked in self.state.values():
            stacked[target].copy_(stacked[source])
        self._refresh(target)

    @torch.no_grad()
    def export_member(self, slot: int) -> dict[str, Tensor]:
        """Return the whole state of a slot's policy, on the CPU; from a device in one transfer."""
        parts = {name: stacked[slot] for name, stacked in self.state.items()}
        if self.device.type == "cpu":
            return {name: part.clone() for name, part in parts.items()}
        return downloaded(parts)

    @torch.no_grad()
    def import_member(self, slot: int, state: Mapping[str, Tensor]) -> None:
        """Load a state that `export_member` returned, here or in another pack."""
        assert state.keys() == self.state.keys()
        for name, stacked in self.state.items():
            stacked[slot].copy_(for_upload(state[name], self.device), non_blocking=True)
        self._refresh(slot)

    def set_fresh(self, slot: int, net: PolicyNet | None = None) -> None:
        """Give a slot new weights (drawn from torch's global generator), empty moments and statistics."""
        self.import_member(slot, self.fresh_state(net))

    @torch.no_grad()
    def fresh_state(self, net: PolicyNet | None = None) -> dict[str, Tensor]:
        """Return the state of a policy that never learned, of these weights or of drawn ones, on the CPU."""
        fresh = self._empty_state(1, torch.device("cpu"))
        self._layout.write(self._make_net() if net is None else net, fresh["param"][0])
        return {name: stacked[0] for name, stacked in fresh.items()}

    def set_hypers(self, slot: int, values: Mapping[str, float]) -> None:
        """Write one member's hypers; nothing is rebuilt, and nobody waits.

        By a slice: to bring a number to a single element waits for all that a GPU was asked for before.
        """
        for name, column in self.hypers.items():
            column[slot : slot + 1].fill_(values[name])

    def hypers_in_force(self, slot: int) -> dict[str, float]:
        """Read one member's hypers back from where loss and optimiser read them."""
        values = torch.stack([column[slot] for column in self.hypers.values()]).cpu().tolist()
        return dict(zip(self.hypers, values, strict=True))

    @torch.no_grad()
    def bit_sums(self, slot: int) -> list[int]:
        """Sum the bits of every part of a slot's state: numbers that change with any single bit."""
        return bit_sums([stacked[slot] for stacked in self.state.values()])

    def named_weights(self, slot: int) -> dict[str, Tensor]:
        """float32 weights by the names of the network's `state_dict`, on the CPU."""
        return self.weights_of({"param": self.state["param"][slot].to("cpu")})

    def weights_of(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights by name of a state that `export_member` returned."""
        return dict(self._layout.named(state["param"]))

    def _refresh(self, slot: int) -> None:
        self.weights.refresh_working(slice(slot, slot + 1))
        self._serving.publish((slot,), exchanged=True)


def downloaded(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bring tensors of a device to the CPU in one transfer."""
    # Sorted so that each part begins at its alignment.
    names = sorted(parts, key=lambda name: -parts[name].element_size())
    flat = [parts[name].reshape(-1).view(torch.uint8) for name in names]
    pieces = torch.cat(flat).cpu().split([part.numel() for part in flat])
    host = dict(zip(names, pieces, strict=True))
    return {name: host[name].view(part.dtype).view(part.shape) for name, part in parts.items()}


def bit_sums(tensors: Iterable[Tensor]) -> list[int]:
    """Sum the memory of each tensor as integers. The host waits once for all of them."""
    sums = []
    for tensor in tensors:
        data = tensor.reshape(-1).view(torch.uint8)
        whole = data.numel() % 8 == 0 and data.storage_offset() % 8 == 0
        sums.append(data.view(torch.int64 if whole else torch.int32).sum())
    found: list[int] = torch.stack(sums).cpu().tolist()
    return found


def _joined(of_groups: list[Tensor]) -> Tensor:
    return of_groups[0] if len(of_groups) == 1 else torch.cat(of_groups)
