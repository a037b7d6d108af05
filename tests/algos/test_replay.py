"""The replay: pieces are what was sampled, inside one episode, of the present weights, half of them with a reward."""

import numpy as np
import pytest
import torch

from pbt_rl.algos.batch import make_batch
from pbt_rl.algos.observations import ObsLayout
from pbt_rl.algos.replay import Draw, Replay, ReplaySpec
from pbt_rl.algos.rollout import Rollout, RolloutShape, make_stacks

CPU = torch.device("cpu")
T, VECTOR_ENVS, POLICIES, ROWS = 7, 2, 2, 3
NUMBERS, FRAMES = ObsLayout("float32", (3,)), ObsLayout("uint8", (2, 3), 4)
LAYOUTS = {"numbers": NUMBERS, "frames": FRAMES}
DRAWS = (Draw(5, times=2), Draw(3, rewarded_half=True))
SHAPE = RolloutShape(LAYOUTS, T, POLICIES * ROWS, POLICIES, (1, torch.int32), 0, CPU)
STEPS = 40
"""That a stream keeps: no multiple of T."""


class Played:
    """Streams of episodes of 3 to 12 steps: the observation holds (stream, episode, step of the run)."""

    def __init__(self, seed=0, reward_share=0.1):
        self.rng = np.random.default_rng(seed)
        self.share = reward_share
        rows = POLICIES * ROWS
        self.rollouts = {u: [Rollout(SHAPE) for _ in range(2)] for u in range(VECTOR_ENVS)}
        self.stacks = [make_stacks(LAYOUTS, rows, CPU) for _ in range(VECTOR_ENVS)]
        self.t = np.zeros(VECTOR_ENVS, np.int64)
        self.episode = np.zeros((VECTOR_ENVS, rows), np.int64)
        self.left = self.rng.integers(3, 12, (VECTOR_ENVS, rows))
        self.first = np.ones((VECTOR_ENVS, rows), np.bool_)
        self.begun = np.zeros(VECTOR_ENVS, np.bool_)
        self.stacked = {}
        """(stream, step) -> stack that was seen."""

    def obs(self, u):
        rows = POLICIES * ROWS
        numbers = np.stack([u * rows + np.arange(rows), self.episode[u], np.full(rows, self.t[u])], 1).astype(
            np.float32
        )
        frame = np.empty((rows, 2, 3), np.uint8)
        frame[:] = ((self.t[u] * 5 + np.arange(rows)) % 250 + 1)[:, None, None]
        return {"numbers": numbers, "frames": frame}

    def note(self, u):
        rows = POLICIES * ROWS
        for row in range(rows):
            self.stacked[u * rows + row, int(self.t[u])] = self.stacks[u]["frames"][row].clone()

    def rollout(self, u, epoch=(0, 0)):
        """The next rollout of a vector env."""
        now, before = self.rollouts[u]
        self.rollouts[u] = [before, now]
        now.vector_env, now.lineage_version[:] = u, epoch
        if self.begun[u]:
            now.follow(before, self.stacks[u])
        else:
            now.write_obs(0, self.obs(u), self.first[u].copy(), self.stacks[u])
            self.begun[u] = True
            self.note(u)
        for t in range(T):
            ended, was_end = self.left[u] == 1, self.left[u] == 0
            paid = (self.rng.random(ended.shape) < self.share) & ~was_end
            now.reward[t] = paid * np.where(self.rng.random(ended.shape) < 0.5, 1, -1)
            now.terminated[t], now.truncated[t] = (
                ended & (self.episode[u] % 3 > 0),
                ended & (self.episode[u] % 3 == 0),
            )
            now.action[t] = torch.from_numpy(np.arange(len(ended)) + self.t[u])[:, None]
            self.left[u] = np.where(was_end, self.rng.integers(3, 12, ended.shape), self.left[u] - 1)
            self.episode[u] += was_end
            self.first[u] = was_end
            self.t[u] += 1
            now.write_obs(t + 1, self.obs(u), self.first[u].copy(), self.stacks[u])
            self.note(u)
        now.value[:] = now.log_prob[:] = 0
        return now


def replay(**changes):
    spec = ReplaySpec(DRAWS, **{"steps": STEPS, "streams": 4, "per_steps": 5} | changes)
    return Replay(spec, SHAPE, VECTOR_ENVS)


def drawn(kept, played_rollout, seed=0):
    batch = make_batch([played_rollout], POLICIES, np.ones((POLICIES, 1), np.bool_), CPU)
    return kept.draw(batch, torch.Generator().manual_seed(seed))


def filled(rounds=12, **options):
    kept, played = replay(), Played(**options)
    for _ in range(rounds):
        rollouts = [played.rollout(u) for u in range(VECTOR_ENVS)]
        kept.add(rollouts, np.zeros(POLICIES, np.int64))
    return kept, played, rollouts[-1]


def seen(segments):
    """stream, episode and step of each observation, [P, L+1, S]."""
    return segments.obs["numbers"].long().unbind(-1)


def test_pieces_are_what_was_sampled_and_end_with_the_episode():
    kept, played, last = filled()
    invalid = 0
    for seed in range(20):
        sequences, _ = drawn(kept, last, seed)
        assert sequences.valid.shape == (POLICIES, 5, 2 * (T * ROWS // 5))
        stream, episode, step = seen(sequences)
        assert (stream == stream[:, :1]).all()
        assert ((stream[:, 0] // ROWS % POLICIES) == torch.arange(POLICIES)[:, None]).all(), (
            "of another policy"
        )
        assert (stream[:, 0] % ROWS < 2).all(), "two streams of a vector env are kept"
        assert (step == step[:, :1] + torch.arange(6)[:, None]).all()
        assert (step >= int(played.t[0]) - STEPS).all()
        assert sequences.valid[:, 0].all()
        same = (episode[:, 1:] == episode[:, :1]) & ~sequences.first[:, 1:].cummax(1).values
        assert torch.equal(sequences.valid, same), "a valid step is one inside the first episode"
        assert torch.equal(sequences.action[..., 0].long(), step[:, :-1] + stream[:, :-1] % (POLICIES * ROWS))
        ends = sequences.terminated | sequences.truncated
        assert (ends[:, :-1] == ~sequences.valid[:, 1:])[sequences.valid[:, :-1]].all(), (
            "an end is followed by a reset"
        )
        invalid += int((~sequences.valid).sum())
    assert invalid > 0, "no piece reached beyond an end"


def test_stacks_are_made_as_they_were():
    kept, played, last = filled(rounds=6)
    for segments in drawn(kept, last):
        stream, _, step = seen(segments)
        frames = segments.obs["frames"]
        for p, i, s in np.ndindex(*stream.shape):
            assert torch.equal(frames[p, i, s], played.stacked[int(stream[p, i, s]), int(step[p, i, s])])


def test_half_of_the_windows_end_with_a_reward_and_all_are_whole():
    kept, _, last = filled(reward_share=0.05)
    rewarded, signs = [], []
    for seed in range(300):
        _, windows = drawn(kept, last, seed)
        assert windows.valid.all()
        rewarded.append((windows.reward[:, -1] != 0).float())
        signs.append(windows.reward[:, -1])
    share = torch.cat(rewarded, 1)
    error = 0.5 / share.shape[1] ** 0.5
    assert ((share.mean(1) - 0.5).abs() < 3 * error).all(), share.mean(1)
    assert set(torch.cat(signs, 1).unique().tolist()) == {-1.0, 0.0, 1.0}


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0.0), (1.0, 1.0)])
def test_without_one_kind_all_windows_are_of_the_other(share, expected):
    kept, _, last = filled(reward_share=share)
    _, windows = drawn(kept, last)
    assert windows.valid.all()
    assert ((windows.reward[:, -1] != 0).float() == expected).all()


def test_nothing_is_drawn_before_there_is_a_piece():
    kept, played = replay(), Played()
    rollout = played.rollout(0)
    assert not any(segments.valid.any() for segments in drawn(kept, rollout))
    kept.add([rollout], np.zeros(POLICIES, np.int64))
    assert not drawn(kept, rollout)[0].valid.any(), "the first stack has not 3 frames before it"
    kept.add([played.rollout(0)], np.zeros(POLICIES, np.int64))
    assert drawn(kept, rollout)[0].valid.any()


@pytest.mark.parametrize("late", [0, 3], ids=["new rollouts only", "and outdated ones first"])
def test_what_other_weights_sampled_is_forgotten(late):
    kept, played, last = filled()
    new = np.array([0, 1])
    for _ in range(late):
        kept.add([played.rollout(u, epoch=(0, 0)) for u in range(VECTOR_ENVS)], new)
        sequences, _ = drawn(kept, last)
        assert sequences.valid[0].any()
        assert not sequences.valid[1].any(), "steps of the weights before"
    begin = played.t.copy()
    for _ in range(3):
        kept.add([played.rollout(u, epoch=(0, 1)) for u in range(VECTOR_ENVS)], new)
    sequences, windows = drawn(kept, last)
    for segments in (sequences, windows):
        assert segments.valid[1].any()
        assert (seen(segments)[2][1] >= begin[0]).all()
    assert (seen(sequences)[2][0] < begin[0]).any(), "the other policy keeps what it has"


def test_draws_follow_the_generator():
    kept, _, last = filled()
    first, same, other = (drawn(kept, last, seed)[0] for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.tensors(), same.tensors(), strict=True))
    assert not torch.equal(first.obs["numbers"], other.obs["numbers"])


def test_streams_are_shared_by_vector_envs_and_memory_is_foreseen():
    spec = ReplaySpec(DRAWS)
    assert [spec.streams_per_vector_env(*of) for of in ((1, 8), (4, 32), (40, 8), (2, 3))] == [8, 4, 1, 3]
    longer_rollouts = replay(steps=T - 2)
    for kept in (replay(), longer_rollouts):
        held = sum(x.numel() * x.element_size() for x in (*kept._obs.values(), kept._action))
        assert held == kept._spec.device_bytes(LAYOUTS, VECTOR_ENVS, POLICIES, ROWS, 1, T)
