"""A learner's side without processes: fake actors write the mailboxes, a small pack answers.

A row's observation holds (row's id, steps of the row so far, noise, noise); the reward of a step is its number, so what
belongs together can be told afterwards. Episodes end by the row's own rhythm, every other one by a limit.
"""

import os
from collections import defaultdict
from functools import partial

import numpy as np
import torch

from pbt_rl.actors.mailbox import Mailbox
from pbt_rl.actors.messages import Load, Save, SetValues
from pbt_rl.actors.shared_tables import ShapingTable
from pbt_rl.actors.state_pool import StatePool, anonymous_memory, layout_of
from pbt_rl.algos.distributions import make_distribution
from pbt_rl.algos.lookup import load
from pbt_rl.config import Config, Hypers, ModelConfig
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec
from pbt_rl.learner.build import build_net, initialised_net
from pbt_rl.learner.pack_members import PackMembers
from pbt_rl.learner.sampler import Sampler
from pbt_rl.learner.shared import SharedState
from pbt_rl.learner.trainer import Trainer
from tests.helpers import packs
from tests.helpers.packs import pack_of

VALUES = {name: spec.default for name, spec in hyper_table(Hypers(unroll=6)).items()}
ENVS, STEPS = 3, 6
VECTOR = {"obs": ArraySpec((4,), "float32")}
SCREEN = VECTOR | {"screen": ArraySpec((36, 36), "uint8")}
DISCRETE, GAUSSIAN = ActionSpec(nvec=(3,)), ActionSpec(low=(-0.5, 0.0), high=(0.5, 0.2))


class FakeActor:
    """One vector env that never computes anything but the next made-up step."""

    def __init__(self, spec: EnvSpec, rows: int, seed: int) -> None:
        self.box = Mailbox.create(spec, rows, "fake")
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ready_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._rng = np.random.default_rng(seed)
        self._rows, self._seed, self._spec = rows, seed, spec
        self._steps = 0
        self._due = np.zeros(rows, np.bool_)
        self.actions: list[np.ndarray] = []
        self.shaping_version = 0
        self.version_of = lambda _row: self.shaping_version
        self._version_R, self._began_R = np.zeros(rows, np.int64), np.zeros(rows, np.int64)

    def advance(self) -> bool:
        """Take one step if it is our turn."""
        if self.box.learner_has_turn:
            return False
        step, n, rows = self.box.step, self._steps, np.arange(self._rows)
        if n:
            self.actions.append(self.box.action.copy())
        first = self._due if n else np.ones(self._rows, np.bool_)
        ends = ~first & ((n + rows) % (4 + rows % 3) == 0)
        limit = rows % 2 == n % 2
        step.obs["obs"][:] = self._rng.normal(size=(self._rows, 4))
        step.obs["obs"][:, 0] = self._seed * 100 + rows
        step.obs["obs"][:, 1] = n
        if "screen" in step.obs:
            step.obs["screen"][:] = self._rng.integers(0, 256, step.obs["screen"].shape)
        step.reward[:] = np.where(first, 0, n)
        step.terminated[:], step.truncated[:] = ends & ~limit, ends & limit
        step.first[:], step.episode_done[:] = first, ends
        step.objective[:], step.raw_return[:], step.shaped_return[:] = rows, rows * 2, rows * 3
        for row in np.flatnonzero(first):
            self._version_R[row], self._began_R[row] = self.version_of(row), n
        step.length[:], step.shaping_version[:] = n - self._began_R, self._version_R
        self._due, self._steps = ends, n + 1
        self.box.publish_step(self._ready_fd)
        return True

    def close(self) -> None:
        self.box.close()
        os.close(self.wake_fd)
        os.close(self._ready_fd)


class Bench:
    """A sampler over fake actors."""

    def __init__(
        self,
        *,
        policies=2,
        vector_envs=2,
        obs=VECTOR,
        action=DISCRETE,
        core="none",
        packing="loop",
        on_policy=True,
        spare=0,
        normalize_obs=False,
        algo="appo",
        dtype=torch.float32,
        members=None,
        seed=0,
        vector_envs_per_actor=1,
        contended=lambda: False,
        parts=None,
    ) -> None:
        torch.manual_seed(seed)
        self.spec = EnvSpec("toy/fake", obs, action, frame_stack=4 if "screen" in obs else 1)
        self.distribution = make_distribution(action.nvec, len(action.low), low=action.low, high=action.high)
        model = ModelConfig(hidden=16, layers=1, core=core, core_size=8)
        self.initialise = partial(initialised_net, Config("toy/fake", model=model), self.spec, 0)
        self.pack = pack_of(
            lambda: build_net(self.spec, model),
            [VALUES] * policies,
            packing=packing,
            dtype=dtype,
            optimizer=load(algo).optimizer,
            normalized_obs={"obs": 4} if normalize_obs else {},
            parts=parts,
        )
        self.members = members or tuple(range(policies))
        self.actors = [FakeActor(self.spec, policies * ENVS, seed) for seed in range(vector_envs)]
        self.shared = SharedState.new(self.members, self.members[:policies])
        self.sampler = Sampler(
            self.pack,
            self.shared,
            self.spec,
            [
                (
                    a.box,
                    self.actors[i - i % vector_envs_per_actor].wake_fd,
                )  # vector envs of one actor share it
                for i, a in enumerate(self.actors)
            ],
            self.distribution,
            STEPS,
            spare,
            seed,
            on_policy=on_policy,
            contended=contended,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for actor in self.actors:
            actor.close()

    def fill(self, rollouts: int, turns: int = 200) -> list:
        """Take turns until so many rollouts are full; returns all that are."""
        for _ in range(turns):
            if len(self.shared.full) >= rollouts:
                return list(self.shared.full)
            for actor in self.actors:
                actor.advance()
            self.sampler.run_inference()
        raise AssertionError(f"{len(self.shared.full)} of {rollouts} rollouts after {turns} turns")

    def take(self, rollouts: int) -> list:
        """The oldest full rollouts, which the caller gives back."""
        self.fill(rollouts)
        return [self.shared.full.popleft() for _ in range(rollouts)]

    def of_vector_envs(self, rollouts: list) -> dict[int, list]:
        """Rollouts by the vector env that they are of, in order."""
        sorted_out = defaultdict(list)
        for r in rollouts:
            sorted_out[int(r.obs["obs"][0, 0, 0]) // 100].append(r)
        return sorted_out


class Stand:
    """A trainer on a bench; episodes say under which shaping they began."""

    def __init__(self, bench: Bench, *, max_lag=2, schedule=lambda: 1.0, **settings) -> None:
        self.bench = bench
        policies = bench.pack.num_policies
        fd = anonymous_memory(ShapingTable.size(("bait",), policies), "shaping")
        self.shaping = ShapingTable.map(("bait",), policies, fd)
        for actor in bench.actors:
            actor.version_of = lambda row: self.shaping.read(row // ENVS)[0]
        layout = layout_of({name: x.numpy() for name, x in bench.pack.export_member(0).items()})
        self.pool = StatePool(layout)
        self.entries = 0
        self.parked: dict[int, int] = {}
        """Members that have left their slot -> the entry with their state."""
        members = PackMembers(bench.pack, bench.shared, self.shaping, self.pool, bench.initialise)
        values = VALUES | {"shaping.bait": 0.5}
        held = bench.members[:policies]
        members.place_first(Load(slot, m, 0, values, initialised=(m, 0)) for slot, m in enumerate(held))
        how = {"epochs": 1, "use_vtrace": True, "distribution": bench.distribution} | settings
        self.trainer = Trainer(
            bench.pack,
            bench.shared,
            packs.settings(**how),
            2,
            max_lag,
            members,
            0,
            schedule,
        )

    def learn(self) -> None:
        self.bench.fill(2)
        self.trainer.learn()
        self.bench.sampler.resume_finished()

    def save(self, member: int) -> int:
        """Save a member that holds a slot into an entry of its own; return that."""
        self.entries += 1
        self.pool.grow(self.entries)
        self.trainer.members.save(Save(member, 0, self.entries - 1))
        return self.entries - 1

    def edit(self, member: int, weights="keep", donor=None, generation=1, entry=None, **values):
        """Change a member that holds a slot: its values, or its weights: of a donor in another slot, or of an entry."""
        values = VALUES | {"shaping.bait": 0.25} | values
        members = self.trainer.members
        if weights == "keep":
            return self.trainer.set_values(SetValues(member, generation, values, donor))
        copied = weights == "copy" and entry is None
        return self.trainer.load(
            Load(
                members.slot_of(member),
                member,
                generation,
                values,
                entry,
                members.slot_of(donor) if copied else None,
                (member, generation) if weights == "fresh" else None,
                donor=donor,
            )
        )

    def hand_over(self, slot: int, enters: int | None, generation=0, **values):
        """Let a slot change hands: who leaves it is saved, and who enters goes on from where it was."""
        slot_member = self.bench.shared.pack.slot_members[slot]
        if slot_member is not None:
            leaves = self.bench.members[slot_member.member]
            self.parked[leaves] = self.save(leaves)
        if enters is None:
            return self.trainer.load(Load(slot, None, 0, {}))
        entry = self.parked.pop(enters, None)
        values = VALUES | {"shaping.bait": 0.5} | values
        initialised = (enters, 0) if entry is None else None
        return self.trainer.load(Load(slot, enters, generation, values, entry, initialised=initialised))

    def arrays(self, member: int) -> dict[str, np.ndarray]:
        """State of a member, wherever it is."""
        if member in self.parked:
            return self.pool.read(self.parked[member])
        slot = self.trainer.members.slot_of(member)
        return {name: np.array(x.numpy()) for name, x in self.state(slot).items()}

    def state(self, slot: int) -> dict[str, torch.Tensor]:
        return self.bench.pack.export_member(slot)

    def changed(self, slot: int, before: dict[str, torch.Tensor]) -> bool:
        return any(not torch.equal(x, before[name]) for name, x in self.state(slot).items())
