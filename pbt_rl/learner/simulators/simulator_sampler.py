"""Sampler of a device simulator: all members of a pack act in one simulator that the learner steps.

    consumes     weights of the pack, shaping
    produces     one full rollout, and episode statistics
    waits for    the device, once per rollout (a simulator may wait more often)
    runs in      the learner's thread (sync and serial modes)

Axes: P policies (slots), b rows of a policy, R = P * b, T steps, K shaping terms, G row groups of a policy, C
statistics, N entries of `Rounds.totals`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pbt_rl.actors.messages import Episode
from pbt_rl.actors.shared_tables import ShapingTable
from pbt_rl.algos.distributions import Distribution
from pbt_rl.algos.pack import Pack
from pbt_rl.controllers.hypers import SHAPING
from pbt_rl.envs.base import MOST_STATS
from pbt_rl.envs.first_trial import environment_traceback
from pbt_rl.envs.lookup import make_simulator
from pbt_rl.envs.simulators import Checks, SimulatorEnv, SimulatorStep
from pbt_rl.errors import ConfigError, EnvSetupError, RunFailed, environment_code
from pbt_rl.learner.build import LearnerSetup, rollout_shape
from pbt_rl.learner.cuda.recording import Replays, recorder_of
from pbt_rl.learner.sampler import Sampler
from pbt_rl.learner.shared import SharedState
from pbt_rl.learner.simulators.final_observations import FinalObservations
from pbt_rl.learner.simulators.in_place import InPlaceRollout
from pbt_rl.learner.simulators.inference import Inference
from pbt_rl.learner.simulators.rounds import Rounds

FIRST_STEP = 30
"""Timeout of the construction, and of the first rollout, as a multiple of --learner-timeout-seconds. Each timeout is
half an hour by default, because the first step may compile."""


class DeviceShaping:
    """Shaping of the slots as a tensor for the simulator, with the interface of `ShapingTable`.

    weights_PK: float32 [P, K], the tensor. changed: called after each write, with the written slot.
    """

    def __init__(self, table: ShapingTable, slots: int, device: torch.device) -> None:
        self._table, self.names = table, table.names
        self.weights_PK = torch.zeros((slots, len(self.names)), device=device)
        self.changed: Callable[[int], None] = lambda _: None
        for slot in range(slots):
            self._upload(slot, table.read(slot)[1])

    @property
    def shaping_version(self) -> Any:
        """[P], version of each slot's shaping, as in the shaping table."""
        return self._table.shaping_version

    def write(self, slot: int, version: int, values: Mapping[str, float]) -> None:
        """Set the shaping of a slot. The next step of the simulator uses the new shaping. values: name -> weight."""
        self._table.write(slot, version, values)
        self._upload(slot, values)
        self.changed(slot)

    def _upload(self, slot: int, values: Mapping[str, float]) -> None:
        if self.names:
            self.weights_PK[slot] = torch.tensor([values[name] for name in self.names])

    def read(self, slot: int) -> tuple[int, dict[str, float]]:
        """Return a slot's shaping version, and the weights that the simulator reads."""
        values = self.weights_PK[slot].tolist()
        return int(self.shaping_version[slot]), dict(zip(self.names, values, strict=True))


class SimulatorSampler:
    """Sampler of one simulator of R rows.

    If a call of `run_inference` returns True, it has filled a complete rollout. Commands wait until the call returns.

    beat: records a heartbeat.
    give_up: called from another thread, with an error message, if the simulator hangs at its start.
    """

    def __init__(
        self,
        pack: Pack,
        shared: SharedState,
        setup: LearnerSetup,
        shaping: DeviceShaping,
        distribution: Distribution,
        beat: Callable[[], None],
        give_up: Callable[[str], object] = lambda _: None,
    ) -> None:
        config, spec, plan, seed = setup.config, setup.spec, setup.plan, setup.seed + 1
        self._give_up = give_up
        self._pack, self._shared, self._spec, self._beat = pack, shared, spec, beat
        self._config, self._plan = config, plan
        self._shaping, self.distribution = shaping, distribution
        self.generator = torch.Generator(pack.device).manual_seed(seed)
        self.vector_envs: list[Any] = []
        """Always empty, because there are no mailboxes."""
        self.between_policies: Callable[[], object] = lambda: None
        self._steps, self._envs, self._groups = config.learner.rollout, plan.envs_per_policy, plan.groups
        made = rollout_shape(pack, spec, self._steps, plan.rows)
        self.rollout, self._final_obs = InPlaceRollout(made), FinalObservations(made)
        parts = (self.rollout, self._final_obs, recorder_of(pack.device))
        self._inference = Inference(pack, distribution, self.generator, *parts)
        with environment_code(config.env), self._may_take_long("making"):
            self._env: SimulatorEnv = make_simulator(
                config.env, plan.rows, seed % 2**31, plan.device, config.env_options
            )
            self._checks = Checks(self._env, pack.num_policies)
            self._env.attach(shaping.weights_PK)
            self._obs: Mapping[str, Tensor] = self._env.reset()
            spread = getattr(self._env, "spread_phases", None) if config.random_phases else None
            self._cut_short = spread is not None and bool(spread(seed % 2**31))
        self._checks.obs(self._obs)
        shaping.changed = self._reopen
        shared.ended_versions.append(np.full(pack.num_policies, -1, np.int64))

    @property
    def within_rollout(self) -> bool:
        """Always False, because no rollout is unfinished between two calls of `run_inference`."""
        return False

    @property
    def has_stepped(self) -> bool:
        """True after the first step since the start of the learner."""
        return self._inference.rounds is not None

    def rollouts(self) -> list[InPlaceRollout]:
        """Return a list of the single rollout buffer, which is used again for each rollout."""
        return [self.rollout]

    @property
    def replays(self) -> Replays | None:
        """Recorder and counts of replays of CUDA graphs. None on a CPU."""
        return self._inference.replays

    def resume_finished(self) -> None:
        """Do nothing, because `run_inference` starts the next rollout."""

    def take_resets(self) -> None:
        """Zero the recurrent state of slots whose weights were replaced."""
        self._lineage_version = self._shared.pack.lineage_version.copy()
        while self._shared.state_resets:
            self._inference.state[self._shared.state_resets.popleft()] = 0

    def _reopen(self, slot: int) -> None:
        if self._inference.rounds is not None:
            self._inference.rounds.open_rounds(slot)

    def run_inference(self) -> bool:
        """Fill a rollout, and return True. If all slots are empty or the last rollout waits for learning, return False.

        Raises RunFailed if a step of the simulator fails, and ConfigError or EnvSetupError if its results are wrong.
        """
        shared = self._shared
        if shared.full or not any(shared.pack.slot_members):
            return False
        began, stepped = time.thread_time(), shared.sampling.environment_seconds
        with self._pack.streams.acting(), torch.no_grad():
            self.take_resets()
            self.rollout.lineage_version[:] = self._lineage_version
            self.rollout.weights_version[:] = shared.pack.weights_version
            self._pack.streams.after(self.rollout.ready)
            if self._inference.rounds is None:  # because the first step may compile for minutes
                with self._may_take_long("the first steps of"):
                    self._play()
            else:
                self._play()
            self.rollout.ready = self._pack.streams.mark()
            shared.sampling.steps[shared.pack.member] += self._envs * self._steps
            self._fetch()
        shared.full.append(self.rollout)
        stepped = shared.sampling.environment_seconds - stepped
        shared.sampling.inference_seconds += time.thread_time() - began - stepped
        return True

    def _play(self) -> None:
        fields, inference = self.rollout.fields, self._inference
        first = fields["first"]
        if inference.rounds is None:
            first[:, 0] = True
        else:
            first[:, 0] = first[:, -1]
        inference.begin_rollout()
        for _ in range(self._steps):
            self._beat()
            step = self._step(inference.act(self._obs))
            self._checks.step(step)
            self._obs = step.obs
            if inference.rounds is None:
                inference.rounds = self._make_rounds(step)
            inference.take(step)
        inference.end(self._obs)
        self._checks.values(self._obs)
        self._checks.values(self._final_obs.obs)
        self._checks.ends(fields["terminated"], fields["truncated"])
        assert inference.rounds is not None
        self._checks.rewards(inference.rounds.sums.transpose(0, 1))
        following = self._final_obs.values(fields["value"][:, : self._steps], self._pack)
        self.rollout.final_value.copy_(following)

    def _make_rounds(self, step: SimulatorStep) -> Rounds:
        """Create the episode statistics. step: first step, whose `stats` contain the names of all statistics.

        Raises ConfigError for more than MOST_STATS statistics, or if a required objective is missing.
        """
        if len(step.stats) > MOST_STATS:
            raise ConfigError(
                f"{self._spec.env_id} returns {len(step.stats)} stats. Return at most {MOST_STATS}"
            )
        self._check_objective(None if step.objective is step.reward else step.objective)
        sizes = self._pack.num_policies, self._envs, self._groups
        return Rounds(*sizes, [*step.stats], self._pack.device, begun=not self._cut_short)

    @contextmanager
    def _may_take_long(self, what: str) -> Iterator[None]:
        """Record heartbeats in another thread while slow code runs in the context.

        If the code takes longer than FIRST_STEP times `learner_timeout_seconds`, call `give_up`. That function ends the
        learner with a user error, but does nothing in serial mode. what: name of the code, for the message.
        """
        limit = FIRST_STEP * self._config.learner_timeout_seconds
        until, done = time.monotonic() + limit, Event()

        def keep() -> None:
            while not done.wait(min(1.0, limit)):
                if time.monotonic() > until:
                    self._give_up(
                        f"{self._config.env} hangs: {what} the simulator of {self._plan.rows:,} rows took more than "
                        f"{limit:g} s ({FIRST_STEP} times --learner-timeout-seconds)"
                    )
                    return
                self._beat()

        thread = Thread(target=keep, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _step(self, action: Tensor) -> SimulatorStep:
        began = time.thread_time()
        try:
            return self._env.step(action)
        except (ConfigError, EnvSetupError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RunFailed(
                f"{self._config.env} raised in a step.\n{environment_traceback(error)}"
            ) from error
        finally:
            self._shared.sampling.environment_seconds += time.thread_time() - began

    def _check_objective(self, objective: Tensor | None) -> None:
        """Raise ConfigError if PBT tunes weights of the reward, but the simulator returns no objective."""
        pbt, shaped = self._config.pbt, objective is None and self._spec.shaping
        tuned = not pbt.tune or any(name.startswith(SHAPING) for name in pbt.tune)
        if shaped and tuned and pbt.enabled and self._config.num_policies > 1:
            raise ConfigError(
                f"{self._spec.env_id} returns no objective besides the reward, whose weights are tuned. A member could "
                "raise its score by changing its weights. Set SimulatorStep.objective, or name other "
                "hyperparameters in --pbt.tune"
            )

    def _fetch(self) -> None:
        """Read episode statistics and errors from the device: the sampler's only synchronisation in a rollout."""
        rounds, shared = self._inference.rounds, self._shared
        assert rounds is not None
        policies = self._pack.num_policies
        read = torch.cat((rounds.totals.flatten(), self._checks.wrong.flatten().float())).cpu().numpy()
        totals, wrong = np.split(read, [rounds.totals.numel()])
        rounds.clear()
        self._raise_if_wrong(wrong.reshape(policies, -1) > 0)
        counted_NPG, means_CNPG = rounds.means(totals.reshape(rounds.totals.shape))
        shared.sampling.note(self._episodes(counted_NPG, means_CNPG), ())
        shared.ended_versions[0][:] = self._shaping.shaping_version

    def _raise_if_wrong(self, wrong: Any) -> None:
        for slot, kind in zip(*np.nonzero(wrong), strict=True):
            member = self._shared.member_of(slot)
            whose = "a slot without a member" if member is None else f"member {member}"
            raise ConfigError(f"{self._spec.env_id}: {Checks.KINDS[kind]} in rows of {whose}")

    def _episodes(self, counted_NPG: Any, means_CNPG: Any) -> Iterator[Episode]:
        rounds = self._inference.rounds
        assert rounds is not None
        for entry, slot, group in zip(*np.nonzero(counted_NPG), strict=True):
            slot_member, version = (
                self._shared.pack.slot_members[slot],
                int(self._shaping.shaping_version[slot]),
            )
            if slot_member is None or version not in slot_member.generation_of:
                continue
            objective, shaped, length, *stats = (float(x) for x in means_CNPG[:, entry, slot, group])
            yield Episode(
                member=self._shared.members[slot_member.member],
                generation=slot_member.generation_of[version],
                objective=objective,
                raw_return=objective,
                shaped_return=shaped,
                length_steps=round(length),
                extra=dict(zip(rounds.stats, stats, strict=True)),
                environment=int(group),
                evaluation=version in slot_member.evaluations,
                count=int(counted_NPG[entry, slot, group]) * rounds.size,
            )

    def close(self) -> None:
        """Release the simulator."""
        self._env.close()


AnySampler: TypeAlias = Sampler | SimulatorSampler
SlotShaping: TypeAlias = ShapingTable | DeviceShaping
"""Shaping of the slots, with one interface for actors and simulators."""
