"""UNREAL: each auxiliary task against a slow loop and on a toy with a known answer; packed as alone."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pbt_rl.algos.batch import Segments
from pbt_rl.algos.encoders import LAST
from pbt_rl.algos.models import NetInputs
from pbt_rl.algos.unreal.pixel_control import GAMMA, Cells, PixelQ, pixel_change, q_returns
from pbt_rl.algos.unreal.unreal import (
    FRAMES,
    SEQUENCE,
    UNREAL,
    auxiliary_loss,
    pixel_control_loss,
    reward_prediction_loss,
)
from tests.helpers.nets import made_net
from tests.helpers.packs import FRAMES as STACKED
from tests.helpers.packs import HYPERS, batch_of, learn, make_pack, make_rollouts, settings

H = HYPERS | {"pixel_control_coef": 0.05, "reward_prediction_coef": 1.3, "value_replay_coef": 0.7}
SHAPES = {"obs": ((2, 20, 24), "uint8"), LAST: ((6,), "float32")}
NVEC = (3, 2)


def make_net(seed=0, shapes=SHAPES, nvec=NVEC, core="lstm"):
    torch.manual_seed(seed)
    net = made_net(shapes, sum(nvec), encoder="a3c", hidden=16, core=core, core_size=8)
    return UNREAL.network(net, NetInputs(shapes, {"obs": 1}, nvec))


def made_up(steps, pieces, seed=0, shapes=SHAPES, nvec=NVEC):
    """Pieces of which one ends by a terminal state, one by a limit, the others go on."""
    g = torch.Generator().manual_seed(seed)
    ends, reset = (
        torch.zeros((2, steps, pieces), dtype=torch.bool),
        torch.zeros((steps + 1, pieces), dtype=torch.bool),
    )
    for kind, (at, piece) in enumerate(((min(2, steps - 2), 0), (steps // 2, 1))):
        ends[kind, at, piece] = reset[at + 2, piece] = True
    reset[0, 2] = True
    obs = {
        name: torch.randint(0, 256, (steps + 1, pieces, *shape), dtype=torch.uint8, generator=g)
        if kind == "uint8"
        else torch.rand((steps + 1, pieces, *shape), generator=g)
        for name, (shape, kind) in shapes.items()
    }
    action = torch.stack([torch.randint(0, n, (steps, pieces), generator=g) for n in nvec], -1).int()
    reward = torch.randint(-1, 2, (steps, pieces), generator=g).float()
    return Segments(obs, action, reward, *ends, reset, ~reset[1:].cummax(0).values)


def test_cells_are_the_papers_for_its_images():
    assert Cells.of(84, 84) == (20, 20, 4)
    assert Cells.of(240, 320) == (19, 25, 12)
    assert Cells.of(20, 24) == (4, 5, 4)
    assert Cells.of(3, 3) == (1, 1, 4) or min(Cells.of(3, 3)) >= 1


def test_pixel_change_is_the_mean_of_each_cell():
    g = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (3, 2, 2, 14, 21), dtype=torch.uint8, generator=g)
    cells = Cells.of(14, 21)
    assert cells == (2, 4, 4)
    found = pixel_change(image, cells)
    top, left = 3, 2
    for t, b, i, j in np.ndindex(*found.shape):
        at = slice(top + 4 * i, top + 4 * i + 4), slice(left + 4 * j, left + 4 * j + 4)
        both = [image[t + k, b, :, at[0], at[1]].numpy().astype(float) for k in (0, 1)]
        assert float(found[t, b, i, j]) == pytest.approx(np.abs(both[1] - both[0]).mean() / 255, abs=1e-6)


def test_the_maps_are_a_transposed_convolution():
    head = PixelQ(8, NVEC, Cells(9, 12, 4))
    torch.nn.init.normal_(head.bias)
    features = torch.randn(2, 3, 8)
    value, advantage = head(features)
    assert (value.shape, advantage.shape) == ((2, 3, 9, 12), (2, 3, 5, 9, 12))
    small = torch.relu(head.map(features.flatten(0, 1))).view(6, 4, 5, 32).permute(0, 3, 1, 2)
    # Rows of the product: block row, block column, row, column within, map.
    kernel = head.up.weight.view(2, 2, 2, 2, 6, 32).permute(5, 4, 0, 2, 1, 3).reshape(32, 6, 4, 4)
    maps = torch.conv_transpose2d(small, kernel, head.bias, stride=2)[..., :9, :12]
    torch.testing.assert_close(torch.cat((value.unsqueeze(2), advantage), 2).flatten(0, 1), maps)


def test_q_is_dueling_for_each_component():
    head = PixelQ(8, NVEC, Cells(2, 2, 4))
    value, advantage = head(torch.randn(4, 8))
    action = torch.tensor([[0, 1], [2, 0], [1, 1], [2, 1]])
    found, best = head.of_action(value, advantage, action), head.of_best(value, advantage)
    for n, i, j in np.ndindex(4, 2, 2):
        a, b = advantage[n, :3, i, j], advantage[n, 3:, i, j]
        expected = value[n, i, j] + a[action[n, 0]] - a.mean() + b[action[n, 1]] - b.mean()
        assert found[n, i, j].item() == pytest.approx(expected.item(), abs=1e-6)
        highest = max((value[n, i, j] + x - a.mean() + y - b.mean()).item() for x in a for y in b)
        assert best[n, i, j].item() == pytest.approx(highest, abs=1e-6)


def slow_returns(reward, following, s, gamma):
    """n-step returns [L, S] of one number per step, by their sums. following: values of all L + 1 observations."""
    steps, pieces = s.valid.shape
    out = np.zeros((steps, pieces))
    for b in range(pieces):
        for start in range(steps):
            if not s.valid[start, b]:
                continue
            weight = 1.0
            for t in range(start, steps):
                out[start, b] += weight * float(reward[t, b])
                weight *= gamma
                if s.terminated[t, b]:
                    break
                if s.truncated[t, b] or t + 1 == steps:
                    out[start, b] += weight * float(following[t + 1, b])
                    break
    return out


def test_returns_of_pixels_are_those_of_the_slow_loop():
    s = made_up(6, 4)
    change, best = torch.rand(6, 4, 2, 3), torch.rand(7, 4, 2, 3)
    found = q_returns(change, best, s.terminated, s.truncated, s.valid)
    for i, j in np.ndindex(2, 3):
        slow = slow_returns(change[..., i, j], best[..., i, j], s, GAMMA)
        np.testing.assert_allclose(found[..., i, j][s.valid], slow[s.valid.numpy()], rtol=1e-5)


def test_pixel_control_learns_which_action_flips_a_cell():
    """Action 1 flips the first cell, 0 nothing: flipping always is worth 1 / (1 - gamma), staying once 1 less."""
    shapes = {"obs": ((1, 20, 20), "uint8")}
    net = make_net(shapes=shapes, nvec=(2,), core="none")
    g = torch.Generator().manual_seed(1)
    steps, pieces = 12, 6
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(160):
        action = torch.ones(steps, pieces, 1, dtype=torch.int32)
        action[0, :, 0] = torch.randint(
            0, 2, (pieces,), generator=g
        )  # then it flips always, as the best policy does
        on = (
            torch.randint(0, 2, (pieces,), generator=g)
            + torch.cat((torch.zeros(1, pieces), action[..., 0].cumsum(0)))
        ) % 2
        image = torch.zeros(steps + 1, pieces, 1, 20, 20, dtype=torch.uint8)
        image[..., 2:6, 2:6] = (255 * on[..., None, None, None]).byte()
        no = torch.zeros(steps, pieces, dtype=torch.bool)
        s = Segments(
            {"obs": image}, action, no.float(), no, no, torch.zeros(steps + 1, pieces, dtype=torch.bool), ~no
        )
        features = net.body(s.obs, torch.zeros(pieces, 0), s.first)[0]
        optimizer.zero_grad()
        pixel_control_loss(net, s, features).backward()
        optimizer.step()
    value, advantage = net.heads.auxiliary.pixels(features)
    for action, expected in ((0, 9.0), (1, 10.0)):
        q = net.heads.auxiliary.pixels.of_action(value, advantage, torch.full((steps + 1, pieces, 1), action))
        assert q[..., 0, 0].mean().item() == pytest.approx(expected, abs=0.35)
        others = q.flatten(-2)[..., 1:]
        assert others.abs().mean().item() < 0.2


def test_a_reward_that_the_frames_announce_is_predicted():
    """A mark in the oldest of the three frames announces a reward above 0, one in the newest a reward below."""
    net = make_net()
    g = torch.Generator().manual_seed(2)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def windows(pieces):
        kind = torch.randint(0, 3, (pieces,), generator=g)
        image = torch.randint(0, 60, (FRAMES + 1, pieces, 2, 20, 24), dtype=torch.uint8, generator=g)
        image[0, kind == 1, 0, 4:9, 4:9] = image[2, kind == 2, 0, 4:9, 4:9] = 255
        no = torch.zeros(FRAMES, pieces, dtype=torch.bool)
        reward = no.float()
        reward[-1] = torch.tensor([0.0, 1.0, -0.3])[kind]
        last = torch.rand((FRAMES + 1, pieces, 6), generator=g)
        obs = {"obs": image, LAST: last}
        return Segments(
            obs, no.int()[..., None], reward, no, no, torch.zeros(FRAMES + 1, pieces, dtype=torch.bool), ~no
        )

    for _ in range(80):
        optimizer.zero_grad()
        reward_prediction_loss(net, windows(32))[0].backward()
        optimizer.step()
    loss, accuracy = reward_prediction_loss(net, windows(400))
    assert accuracy.item() > 0.95
    assert loss.item() < 0.2


def test_a_prediction_does_not_see_the_last_reward():
    net, s = make_net(), made_up(FRAMES, 4)
    s = s._replace(valid=torch.ones_like(s.valid))
    changed = s._replace(obs=s.obs | {LAST: s.obs[LAST] + 1})
    assert reward_prediction_loss(net, s)[0] == reward_prediction_loss(net, changed)[0]


def slow_loss(net, sequences, windows, hypers, scale):
    """The auxiliary loss piece by piece and step by step, with the targets held fixed."""
    heads, half = net.heads.auxiliary, sequences.valid.shape[1] // 2
    control, replayed, predicted, counts = [], [], [], [0, 0, 0]
    features = []
    for b in range(2 * half):
        state, of_piece = torch.zeros(1, net.state_size), []
        for t in range(sequences.first.shape[0]):
            seen = {name: x[t : t + 1, b : b + 1] for name, x in sequences.obs.items()}
            out, state = net.body(seen, state, sequences.first[t : t + 1, b : b + 1])
            of_piece.append(out[0, 0])
        features.append(torch.stack(of_piece))
    one = SimpleNamespace(
        valid=sequences.valid, terminated=sequences.terminated, truncated=sequences.truncated
    )
    values = torch.stack([net.heads.value(f).squeeze(-1) for f in features], 1)
    aims = slow_returns(sequences.reward / scale, values.detach(), one, float(hypers["gamma"]))
    change = pixel_change(sequences.obs["obs"], heads.pixels.cells)
    for b in range(2 * half):
        for t in range(sequences.valid.shape[0]):
            if sequences.valid[t, b] and b >= half:
                counts[1] += 1
                replayed.append(0.5 * (float(aims[t, b]) - values[t, b]) ** 2)
    for b in range(half):
        value, advantage = heads.pixels(features[b])
        best = heads.pixels.of_best(value, advantage).detach()
        q = heads.pixels.of_action(value[:-1], advantage[:-1], sequences.action[:, b])
        piece = SimpleNamespace(**{k: v[:, b : b + 1] for k, v in vars(one).items()})
        counts[0] += int(piece.valid.sum())
        for i, j in np.ndindex(*best.shape[1:]):
            aim = slow_returns(change[:, b : b + 1, i, j], best[:, None, i, j], piece, GAMMA)[:, 0]
            control += [0.5 * (aim[t] - q[t, i, j]) ** 2 for t in range(len(aim)) if piece.valid[t, 0]]
    for b in range(windows.valid.shape[1]):
        if not windows.valid[:, b].all():
            continue
        counts[2] += 1
        frames = [
            net.body.encoder({"obs": windows.obs["obs"][t, b : b + 1], LAST: torch.zeros(1, 6)})
            for t in range(3)
        ]
        log_prob = heads.reward(torch.cat(frames, 1)).log_softmax(-1)[0]
        predicted.append(-log_prob[{0: 0, 1: 1, -1: 2}[int(windows.reward[-1, b].sign())]])
    means = [sum(terms) / count for terms, count in zip((control, replayed, predicted), counts, strict=True)]
    weights = [
        hypers["pixel_control_coef"],
        hypers["value_replay_coef"],
        hypers["reward_prediction_coef"] / SEQUENCE,
    ]
    return sum(w * x for w, x in zip(weights, means, strict=True)), means


def test_the_whole_loss_and_its_gradients_are_those_of_the_slow_loop():
    net = make_net()
    sequences, windows = made_up(7, 6), made_up(FRAMES, 5, seed=1)
    windows = windows._replace(valid=windows.valid | torch.tensor([False, True, True, True, True]))
    hypers = {name: torch.tensor(H[name]) for name in UNREAL.auxiliary.hypers}
    gradients = []
    for compute in (auxiliary_loss, lambda net, s, h, scale: slow_loss(net, *s, h, scale)):
        net.zero_grad()
        loss, stats = compute(net, (sequences, windows), hypers, torch.tensor(2.5))
        loss.backward()
        gradients.append({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})
        values = list(stats.values())[:3] if isinstance(stats, dict) else stats
        gradients[-1]["loss"], gradients[-1]["terms"] = (
            loss.detach(),
            torch.stack([x.detach() for x in values]),
        )
    found, expected = gradients
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(
            found[name], expected[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_invalid_steps_change_nothing():
    net, hypers = make_net(), {name: torch.tensor(H[name]) for name in UNREAL.auxiliary.hypers}
    sequences, windows = made_up(7, 6), made_up(FRAMES, 5, seed=1)
    losses = []
    for poison in (0.0, float("nan")):
        reward = torch.where(sequences.valid, sequences.reward, poison)
        losses.append(
            auxiliary_loss(net, (sequences._replace(reward=reward), windows), hypers, torch.tensor(1.0))[0]
        )
    assert losses[0] == losses[1]
    none = [s._replace(valid=torch.zeros_like(s.valid)) for s in (sequences, windows)]
    loss, stats = auxiliary_loss(net, tuple(none), hypers, torch.tensor(1.0))
    assert loss == 0
    assert all(x == 0 for x in stats.values())


def replayed_for(policies, steps, pieces, nvec=(3,)):
    """Stored pieces of each policy by its number, whatever the pack's size."""
    parts = []
    for p in policies:
        s = made_up(steps, pieces, seed=p, shapes={"obs": ((36, 36, 4), "uint8")}, nvec=nvec)
        stored = s.obs["obs"].contiguous().view(torch.int32).squeeze(-1)
        parts.append(s._replace(obs={"obs": stored}))
    stack = lambda *xs: torch.stack(xs)  # noqa: E731
    return Segments(
        {"obs": stack(*(s.obs["obs"] for s in parts))},
        *(stack(*xs) for xs in zip(*(s[1:] for s in parts), strict=True)),
    )


def learned(policies, packing):
    from dataclasses import replace

    def network(net):
        return UNREAL.network(net, NetInputs({"obs": STACKED.seen}, {"obs": 4}, (3,)))

    hypers = [H | {"pixel_control_coef": 0.05 * (1 + p), "learning_rate": 1e-2} for p in policies]
    pack = make_pack(hypers, packing=packing, algo="unreal", layout=STACKED, core="lstm", network=network)
    for i, p in enumerate(policies):
        torch.manual_seed(p)
        pack.set_fresh(i)
    batch = batch_of(make_rollouts(list(policies), layout=STACKED, state_size=16), len(policies))
    draws = (replayed_for(policies, 6, 4), replayed_for(policies, FRAMES, 4))
    stats = learn(pack, replace(batch, replayed=draws), settings("unreal", epochs=1))
    return pack, stats


@pytest.mark.long
def test_policies_learn_in_a_pack_as_they_do_alone():
    alone = [learned((p,), "loop")[0] for p in (0, 1)]
    for packing in ("loop", "vmap", "bmm", "streams"):
        pack, stats = learned((0, 1), packing)
        for p in (0, 1):
            torch.testing.assert_close(
                pack.export_member(p)["param"], alone[p].export_member(0)["param"], rtol=1e-4, atol=1e-5
            )
        for step in stats:
            names = set(step.values) - {"grad_norm", "learning_rate_in_use"}
            assert names == set(UNREAL.statistics)


def test_the_heads_learn_and_the_coefficients_count():
    pack, _ = learned((0,), "loop")
    before = pack.fresh_state()
    torch.manual_seed(0)
    fresh = pack.fresh_state()["param"]
    weights, at_first = pack.weights_of(pack.export_member(0)), pack.weights_of({"param": fresh})
    moved = {name for name in weights if not torch.equal(weights[name], at_first[name])}
    assert {n for n in weights if "auxiliary" in n and n.endswith("weight")} <= moved
    assert before.keys() == pack.state.keys()


@pytest.mark.parametrize(
    ("shape", "actions", "options", "message"),
    [
        (((4,), "float32"), {"nvec": (2,)}, {}, "image"),
        (((1, 20, 20), "uint8"), {"nvec": (), "continuous": 2}, {}, "discrete"),
        (((1, 20, 20), "uint8"), {"nvec": (2,), "continuous": 1}, {}, "discrete"),
        (((1, 20, 20), "uint8"), {"nvec": (2,)}, {"critic": "separate"}, "--model.critic shared"),
    ],
)
def test_what_it_cannot_learn_from_is_refused(shape, actions, options, message):
    kind = "a3c" if len(shape[0]) == 3 else "mlp"
    net = made_net({"obs": shape}, 4, encoder=kind, hidden=8, **options)
    with pytest.raises(ValueError, match=message):
        UNREAL.network(net, NetInputs({"obs": shape}, {}, **actions))
