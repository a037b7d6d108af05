"""Inference and storage of steps for a device simulator.

    observations -> store, act, sample -> actions -> simulator -> rewards, ends -> store, count episodes

With CUDA graphs (learner/cuda), the part before the simulator is one graph, and the part after the simulator is another
graph. Inputs and the step number are copied to fixed device memory for the graphs. Without CUDA graphs, no copies are
needed.

Axes: P policies (slots), b rows of a policy, R = P * b, T steps, S recurrent state, A action components.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pbt_rl.algos.distributions import Distribution
from pbt_rl.algos.pack import Pack
from pbt_rl.envs.simulators import SimulatorStep
from pbt_rl.learner.cuda.recording import NotRecordedError, Recorder, Recording, Replays
from pbt_rl.learner.simulators.final_observations import FinalObservations
from pbt_rl.learner.simulators.in_place import InPlaceRollout
from pbt_rl.learner.simulators.rounds import Rounds

OBS, FINAL, STAT = "obs.", "final_obs.", "stat."
Given = dict[str, Tensor]


class Inference:
    """Inference of a pack's policies in a device simulator, and storage of each step in a rollout.

    Call `begin_rollout`, then `act` and `take` for each step, then `end`.

    rollout: buffer that is filled. final_obs: storage of observations at time limits.
    recorder: captures CUDA graphs. None: all calls run eagerly.
    rounds: episode statistics. Set this attribute after the first step of the simulator, before `take`.
    """

    def __init__(
        self,
        pack: Pack,
        distribution: Distribution,
        generator: torch.Generator,
        rollout: InPlaceRollout,
        final_obs: FinalObservations,
        recorder: Recorder | None,
    ) -> None:
        self._pack, self._distribution, self._generator = pack, distribution, generator
        self._layouts, self._rollout, self._final_obs = rollout.layouts, rollout, final_obs
        self.replays = None if recorder is None else Replays("inference batches", recorder)
        self.rounds: Rounds | None = None
        self._shape = rollout.fields["state"].shape[:2]
        self.state = torch.zeros_like(rollout.fields["state"])
        """[P, b, S], recurrent state before the newest observation."""
        self._t, self._t_1 = 0, torch.zeros(1, dtype=torch.int64, device=pack.device)
        """Step number in the rollout, and a copy of this number on the device for CUDA graphs."""
        self._seen: Given = {}
        self._gave: Given = {}
        self._action: Tensor | None = None
        self._acting, self._taking = Recording(self._act, (generator,)), Recording(self._take)

    def begin_rollout(self) -> None:
        """Start a rollout with the current recurrent state."""
        self._rollout.fields["state"].copy_(self.state)
        self._t = 0
        self._t_1.zero_()

    def act(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Store observations, run inference, and return the simulator's actions, [R, A]. obs: name -> [R, ...].

        With CUDA graphs, the next call overwrites the returned tensor.
        """
        self._give(self._seen, {OBS + name: obs[name] for name in self._layouts})
        self._pack.take_published()
        self._run(self._acting, self._act)
        assert self._action is not None
        return self._action

    def take(self, step: SimulatorStep) -> None:
        """Store the results of a simulator step, and count its episodes."""
        given = {"reward": step.reward, "terminated": step.terminated, "truncated": step.truncated}
        if step.objective is not None:
            given["objective"] = step.objective
        given |= {FINAL + name: step.final_obs[name] for name in self._layouts} if step.final_obs else {}
        given |= {STAT + name: values for name, values in step.stats.items()}
        if self._recorder is not None and self._gave and self._gave.keys() != given.keys():
            assert self.replays is not None
            self.replays.fail(NotRecordedError("this step returned other fields than the step before"))
        self._give(self._gave, given)
        self._run(self._taking, self._take)
        self._t += 1

    def end(self, obs: Mapping[str, Tensor]) -> None:
        """Store the observations after the last step, and the network's values of these observations.

        Also draw actions and discard them, because `Sampler` draws actions for these observations, too. The random
        generators of both samplers then stay equal. obs: name -> [R, ...].
        """
        here = {name: obs[name].unflatten(0, self._shape) for name in self._layouts}
        first = self._rollout.fields["first"][:, -1]
        for name, x in here.items():
            self._rollout.obs[name][:, -1] = x
        seen = {name: self._layouts[name].as_seen(x) for name, x in here.items()}
        params, value, _ = self._pack.act(seen, self.state, first)
        self._rollout.fields["value"][:, -1] = value
        self._distribution.sample(params, self._generator)

    # -- captured as CUDA graphs --------------------------------------------------------------------------------

    @torch.no_grad()
    def _act(self) -> None:
        fields = self._rollout.fields
        here = {name: self._seen[OBS + name].unflatten(0, self._shape) for name in self._layouts}
        for name, obs in here.items():
            self._put(self._rollout.obs[name], obs)
        seen = {name: self._layouts[name].as_seen(obs) for name, obs in here.items()}
        params, value, state = self._pack.infer(seen, self.state, self._at(fields["first"]))
        action, log_prob = self._distribution.sample(params, self._generator)
        for name, x in (("value", value), ("action", action), ("log_prob", log_prob)):
            self._put(fields[name], x)
        if self.state.numel():
            self.state.copy_(state)
        delivered = self._distribution.delivered_here(action).flatten(0, 1).to(action.dtype)
        if self._recorder is None or self._action is None:
            self._action = delivered.clone() if self._recorder is not None else delivered
        else:
            self._action.copy_(delivered)

    @torch.no_grad()
    def _take(self) -> None:
        gave, fields = self._gave, self._rollout.fields
        ended = gave["terminated"] | gave["truncated"]
        for name in ("reward", "terminated", "truncated"):
            self._put(fields[name], gave[name].view(self._shape))
        self._put(fields["first"], ended.view(self._shape), ahead=1)
        last = {name: gave[FINAL + name] for name in self._layouts if FINAL + name in gave}
        t = self._t if self._recorder is None else self._t_1
        self._final_obs.note(t, gave["truncated"], last or None, self.state)
        assert self.rounds is not None
        stats = {name: gave[STAT + name] for name in self.rounds.stats}
        self.rounds.step(gave.get("objective", gave["reward"]), gave["reward"], ended, stats)
        if self._recorder is not None:
            self._t_1 += 1

    def _put(self, memory_PT: Tensor, x_PB: Tensor, ahead: int = 0) -> None:
        if self._recorder is None:
            memory_PT.select(1, self._t + ahead).copy_(x_PB)
        else:
            memory_PT.index_copy_(1, self._t_1 + ahead, x_PB.unsqueeze(1))

    def _at(self, memory_PT: Tensor) -> Tensor:
        if self._recorder is None:
            return memory_PT[:, self._t]
        return memory_PT.index_select(1, self._t_1).squeeze(1)

    # -- capture ------------------------------------------------------------------------------------------------

    def _give(self, places: Given, given: Given) -> None:
        """Put the inputs of a program into `places`. With CUDA graphs, copy the given tensors into fixed memory."""
        if self._recorder is None or not places:
            places.clear()
            places.update(given if self._recorder is None else {name: x.clone() for name, x in given.items()})
            return
        for name, x in given.items():
            places[name].copy_(x)

    def _run(self, recording: Recording, program: Callable[[], None]) -> None:
        depends = self._pack.packing == "loop" and any(self._pack.idle)  # a graph depends on the idle slots
        if self.replays is not None and self.replays.recorder is not None and not depends:
            self.replays.run(recording)
            return
        program()
        if self.replays is not None:
            self.replays.count(replayed=False)

    @property
    def _recorder(self) -> Recorder | None:
        return None if self.replays is None else self.replays.recorder
