"""FuN: the body, the rewards and the loss against slow loops, toys with known answers, packed as alone."""

import pytest
import torch
from torch.nn.functional import cosine_similarity, normalize

from pbt_rl.algos.fun import (
    EMBEDDING,
    FUN,
    DilatedLstm,
    FunBody,
    Sequences,
    fingerprint,
    fun_loss,
    intrinsic_reward,
    reached,
)
from pbt_rl.algos.models import NetInputs
from tests.helpers.nets import made_net
from tests.helpers.packs import FRAMES as STACKED
from tests.helpers.packs import HYPERS, batch_of, learn, make_pack, make_rollouts, settings

H = HYPERS | {"intrinsic_coef": 0.7, "worker_gamma": 0.8, "unroll": 4.0}
SHAPES = {"obs": ((2, 20, 24), "uint8")}
WIDTH, C = 6, 3


def make_net(seed=0, shapes=SHAPES, actions=3, exploration=0.0, horizon=C, width=WIDTH):
    torch.manual_seed(seed)
    net = made_net(shapes, actions, encoder="mlp", hidden=8, layers=1)
    net = FUN.network(net, NetInputs(shapes, {"obs": 1}, (actions,), 0, width))
    body = net.body
    made = FunBody(body.encoder, width, horizon, exploration)
    net.body, net.state_size = made, made.state_size
    for name, p in net.named_parameters():  # so that biases and all terms count
        if name.endswith("bias"):
            torch.nn.init.normal_(p, 0, 0.3)
    return net


def made_up(steps, rows, seed=0, shapes=SHAPES, actions=3, state_size=0):
    """Rows of which one ends by a terminal state, one by a limit, one loses a life, one's actor is replaced."""
    g = torch.Generator().manual_seed(seed)
    obs = {
        name: torch.randint(0, 256, (steps, rows, *shape), dtype=torch.uint8, generator=g)
        if kind == "uint8"
        else torch.randn((steps, rows, *shape), generator=g)
        for name, (shape, kind) in shapes.items()
    }
    first = torch.zeros((steps + 1, rows), dtype=torch.bool)
    terminated, truncated = torch.zeros((2, steps, rows), dtype=torch.bool)
    first[0, 0] = terminated[1, 0] = first[3, 0] = True
    truncated[4, 1] = first[6, 1] = True
    terminated[3, 2] = True
    first[5, 3] = True
    state = torch.randn((rows, state_size), generator=g) * 0.5
    if state_size:
        state[:, -1] = 7
    step = torch.arange(steps).unsqueeze(-1).expand(steps, rows)
    return Sequences(
        obs,
        state,
        first[:-1],
        step % int(H["unroll"]) == 0,
        torch.randint(0, actions, (steps, rows, 1), generator=g),
        torch.randn((steps, rows), generator=g),
        terminated,
        truncated,
        ~first[1:],
    )


def lstm(cell_module, x, hidden, cell):
    write, forget, new, read = (cell_module.input(x) + cell_module.recurrent(hidden)).chunk(4)
    cell = forget.sigmoid() * cell + write.sigmoid() * new.tanh()
    return read.sigmoid() * cell.tanh(), cell


def slow_row(net, s, b):
    """One row, step by step: the features, latent states, goals and memories, and r^I; -c..-1 from its state."""
    body, zero = net.body, torch.zeros(WIDTH)
    of_manager, of_worker, _ = s.state[b].split(body._sizes)
    past = [list(of_step.split(WIDTH)) for of_step in of_manager.view(C, 4 * WIDTH)]
    worker = list(of_worker.split(WIDTH))
    result = []
    for t in range(s.first.shape[0]):
        if s.first[t, b]:
            past, worker = [[zero] * 4 for _ in range(C)], [zero, zero]
        if s.cut[t, b]:
            past, worker = [[x.detach() for x in of_step] for of_step in past], [x.detach() for x in worker]
        z = body.encoder({name: x[t, b : b + 1] for name, x in s.obs.items()})[0]
        latent = torch.relu(body.space(z))
        hidden, cell = lstm(body.manager, latent, past[-C][0], past[-C][1])
        memory = sum([of_step[0] for of_step in past[1:]], hidden)
        goal = memory / memory.norm()
        rewards = [
            cosine_similarity(latent - of_step[2], of_step[3], dim=0, eps=1e-6).item() for of_step in past
        ]
        worker = list(lstm(body.worker, z, *worker))
        goals = sum([of_step[3] for of_step in past], goal).detach()
        past = [*past[1:], [hidden, cell, latent, goal]]
        result.append(
            {
                "features": torch.cat((worker[0], goals)),
                "memory": memory,
                "latent": latent,
                "goal": goal,
                "intrinsic": sum(rewards) / C,
            }
        )
    kept = torch.cat([torch.cat(of_step) for of_step in past])
    return result, torch.cat((kept, *worker))


def test_the_body_is_that_of_the_slow_loop_at_once_and_in_pieces():
    net = make_net()
    s = made_up(11, 5, state_size=net.state_size)
    with torch.no_grad():
        found = net.body.unroll(s.obs, s.state, s.first)
        rows = [slow_row(net, s, b) for b in range(5)]
        for b, (steps, last) in enumerate(rows):
            for name in ("features", "memory"):
                expected = torch.stack([of_step[name] for of_step in steps])
                torch.testing.assert_close(getattr(found, name)[:, b], expected)
            for name in ("latent", "goal"):
                expected = torch.stack([of_step[name] for of_step in steps])
                torch.testing.assert_close(getattr(found, name)[C:, b], expected)
            torch.testing.assert_close(found.state[b, :-1], last)
        intrinsic = intrinsic_reward(found.latent, found.goal, found.episode, C)
        expected = torch.tensor([[of_step["intrinsic"] for of_step in steps] for steps, _ in rows]).T
        torch.testing.assert_close(intrinsic, expected)
        state, features = s.state, []
        for piece in (slice(0, 1), slice(1, 6), slice(6, 11)):
            obs = {name: x[piece] for name, x in s.obs.items()}
            out, state = net.body(obs, state, s.first[piece])
            features.append(out)
    torch.testing.assert_close(torch.cat(features), found.features)
    torch.testing.assert_close(state, found.state)
    assert torch.equal(state[:, -1], found.state[:, -1])


def test_nothing_of_the_episode_before_is_left_not_even_what_is_not_finite():
    net = make_net()
    s = made_up(8, 5, state_size=net.state_size)
    s.first[4] = True
    blank, poisoned = torch.zeros_like(s.state), torch.full_like(s.state, torch.nan)
    poisoned[:, -1] = 0
    with torch.no_grad():
        one, other = (net.body(s.obs, state, s.first) for state in (blank, poisoned))
    assert torch.equal(one[0][4:], other[0][4:])
    assert torch.equal(one[1], other[1])


def test_the_features_move_no_goal():
    net = make_net()
    s = made_up(9, 5, state_size=net.state_size)
    params, value = net.heads(net.body.unroll(s.obs, s.state, s.first, s.cut).features)
    (params.sum() + value.sum()).backward()
    assert all(p.grad is None for p in [*net.body.manager.parameters(), *net.body.space.parameters()])


def test_random_goals_come_as_often_as_they_should_and_from_everywhere():
    shapes = {"obs": ((3,), "float32")}
    net = make_net(shapes=shapes, exploration=0.2, width=16)
    s = made_up(800, 40, shapes=shapes, state_size=net.state_size)
    s.state[:, :-1] = 0
    with torch.no_grad():
        goals = net.body.unroll(s.obs, s.state, s.first).goal[C:]
        net.body.exploration = 0.0
        without = net.body.unroll(s.obs, s.state, s.first).goal[C:]
    changed = (goals != without).any(-1)
    assert changed.float().mean().item() == pytest.approx(0.2, abs=0.01)
    assert changed.float().mean(0).std() < 0.03, "of every row alike"
    drawn = goals[changed]
    torch.testing.assert_close(drawn.norm(dim=-1), torch.ones(len(drawn)))
    assert drawn.mean(0).norm() < 0.05
    among = drawn[:1500] @ drawn[:1500].T
    assert among.triu(1).square().sum().item() / (1500 * 1499 / 2) == pytest.approx(1 / 16, rel=0.1)


def test_learning_finds_the_random_goals_that_acting_had():
    net = make_net(exploration=0.3)
    s = made_up(30, 5, state_size=net.state_size)
    with torch.no_grad():
        at_once = net.body.unroll(s.obs, s.state, s.first).goal[C:]
        state, one_by_one = s.state, []
        for t in range(30):
            step = net.body.unroll({"obs": s.obs["obs"][t : t + 1]}, state, s.first[t : t + 1])
            state = step.state
            one_by_one.append(step.goal[-1])
    torch.testing.assert_close(at_once, torch.stack(one_by_one))


def test_a_fingerprint_is_of_the_image_alone():
    g = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (2, 3, 4, 84, 84), dtype=torch.uint8, generator=g)
    found = fingerprint({"obs": image, "other": torch.randn(2, 3, 5)})
    assert torch.equal(found, fingerprint({"obs": image, "other": torch.zeros(2, 3, 5)}))
    assert len(found.unique()) == 6
    image[0, 0, 2, 8, 24] += 1
    assert (fingerprint({"obs": image}) != found).sum() == 1


def slow_return(reward, value, s, b, t, gamma, last):
    """n-step return of one step, by its sum, bootstrapped from `value` at the unroll's end or at `last`."""
    total, weight = 0.0, 1.0
    for k in range(t, last):
        total += weight * reward[k]
        weight *= gamma
        if s.terminated[k, b]:
            return total
        if s.truncated[k, b] or not s.valid[k + 1, b] or k + 1 == last or (k + 1) % int(H["unroll"]) == 0:
            return total + weight * value[k + 1]
    raise AssertionError


def slow_loss(net, s, hypers, scale):
    """The whole loss, row by row and step by step."""
    last = s.first.shape[0] - 1
    policy, value, entropy, goals, managed = [], [], [], [], []
    for b in range(s.first.shape[1]):
        steps, _ = slow_row(net, s, b)
        features = torch.stack([x["features"] for x in steps])
        worker_value = net.heads.value(features).squeeze(-1)
        actions = net.heads.policy.actions(features[:, :WIDTH]).view(-1, 3, EMBEDDING)
        logits = torch.stack(
            [u @ net.heads.policy.goal.weight @ f for u, f in zip(actions, features[:, WIDTH:], strict=True)]
        )
        log_prob = logits.log_softmax(-1)
        manager_value = torch.stack(
            [net.heads.auxiliary(torch.cat((x["latent"], x["memory"].detach()))).squeeze() for x in steps]
        )
        rewards = [s.reward[t, b].item() for t in range(last)]
        both = [
            r + hypers["intrinsic_coef"].item() * steps[t + 1]["intrinsic"] for t, r in enumerate(rewards)
        ]
        for t in range(last):
            if not s.valid[t, b]:
                continue
            now = worker_value.detach() * scale
            aim = slow_return(both, now, s, b, t, hypers["worker_gamma"].item(), last)
            policy.append(-log_prob[t, s.action[t, b, 0]] * (aim - now[t]) / scale)
            value.append(0.5 * (worker_value[t] - aim / scale) ** 2)
            entropy.append(-(log_prob[t].exp() * log_prob[t]).sum())
            now = manager_value.detach() * scale
            aim = slow_return(rewards, now, s, b, t, hypers["gamma"].item(), last)
            managed.append(0.5 * (manager_value[t] - aim / scale) ** 2)
            to = t
            while to < t + C and not (to > t and (s.terminated[to - 1, b] or s.truncated[to - 1, b])):
                if to <= last and not s.valid[to, b]:  # a reset comes
                    break
                to += 1
            if to > last or to == t:
                continue
            change = (steps[to]["latent"] - steps[t]["latent"]).detach()
            cosine = cosine_similarity(change, steps[t]["goal"], dim=0, eps=1e-6)
            goals.append(-cosine * (aim - now[t]) / scale)
    means = [torch.stack(x).mean() for x in (policy, value, entropy, goals, managed)]
    weights = (1, hypers["value_coef"], -hypers["entropy_coef"], 1, hypers["value_coef"])
    counts = [len(x) for x in (policy, goals)]
    return sum(w * x for w, x in zip(weights, means, strict=True)), means, counts


def test_the_whole_loss_and_its_gradients_are_those_of_the_slow_loop():
    net = make_net()
    s = made_up(11, 5, state_size=net.state_size)
    hypers = {name: torch.tensor(H[name]) for name in FUN.loss_hypers}
    scale = torch.tensor(1.7)
    gradients = []
    slow, means, (steps, goals) = slow_loss(net, s, hypers, scale)
    assert (steps, goals) == (10 * 5 - 3, 37), "some goals have no loss, some an episode's last state"
    loss, stats, target = fun_loss(net, s, hypers, scale, settings("fun"))
    names = ("policy_loss", "value_loss", "entropy", "manager_policy_loss", "manager_value_loss")
    torch.testing.assert_close(torch.stack([stats[n] for n in names]), torch.stack(means).detach())
    for computed in (loss, slow):
        net.zero_grad()
        computed.backward()
        gradients.append({name: p.grad.clone() for name, p in net.named_parameters()})
    torch.testing.assert_close(loss, slow)
    assert target.shape == (10, 5)
    for name, found in gradients[0].items():
        assert found.abs().sum() > 0, name
        torch.testing.assert_close(
            found, gradients[1][name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_invalid_steps_change_nothing():
    net = make_net()
    s = made_up(11, 5, state_size=net.state_size)
    hypers = {name: torch.tensor(H[name]) for name in FUN.loss_hypers}
    losses = []
    for poison in (0.0, float("nan")):
        reward = torch.where(s.valid, s.reward, poison)
        losses.append(fun_loss(net, s._replace(reward=reward), hypers, torch.tensor(1.0), settings("fun"))[0])
    assert losses[0] == losses[1]
    none = s._replace(valid=torch.zeros_like(s.valid))
    loss, stats, _ = fun_loss(net, none, hypers, torch.tensor(1.0), settings("fun"))
    assert loss == 0
    assert all(x == 0 for x in stats.values())


def test_goals_turn_to_where_it_pays():
    """Latent states walk at random; a walk along one direction is followed by reward. Goals come to point there."""
    g = torch.Generator().manual_seed(3)
    pays = normalize(torch.randn(8, generator=g), dim=0)
    memory = torch.nn.Parameter(torch.randn(8, generator=g))
    optimizer = torch.optim.Adam([memory], 0.05)
    no = torch.zeros((19, 32), dtype=torch.bool)
    assert cosine_similarity(memory, pays, dim=0) < 0.5
    for _ in range(60):
        latent = torch.randn((20, 32, 8), generator=g).cumsum(0)
        goal = normalize(memory, dim=0).expand(20, 32, 8)
        cosine, known = reached(latent, goal, no, no, ~no, C)
        gained = torch.zeros(19, 32)
        gained[: 20 - C] = (latent[C:] - latent[:-C]) @ pays
        optimizer.zero_grad()
        (-(gained * cosine)[known].mean()).backward()
        optimizer.step()
    assert cosine_similarity(memory, pays, dim=0) > 0.97


def learned(policies, packing):
    def network(net):
        return FUN.network(net, NetInputs({"obs": STACKED.seen}, {"obs": 4}, (3,), 0, 8))

    hypers = [H | {"intrinsic_coef": 0.3 * (1 + p), "learning_rate": 1e-3} for p in policies]
    pack = make_pack(hypers, packing=packing, algo="fun", layout=STACKED, network=network)
    for i, p in enumerate(policies):
        torch.manual_seed(p)
        pack.set_fresh(i)
    rollouts = make_rollouts(list(policies), layout=STACKED, state_size=pack.state_size)
    for rollout in rollouts:
        rollout.state[:, -1] = 5
    return pack, learn(pack, batch_of(rollouts, len(policies)), settings("fun", epochs=1))


def test_policies_learn_in_a_pack_as_they_do_alone():
    alone = [learned((p,), "loop")[0] for p in (0, 1)]
    for packing in ("loop", "vmap", "bmm", "streams"):
        pack, stats = learned((0, 1), packing)
        for p in (0, 1):
            mine, other = pack.export_member(p), alone[p].export_member(0)
            if packing == "loop":
                assert all(torch.equal(mine[name], other[name]) for name in mine)
            torch.testing.assert_close(mine["param"], other["param"], rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(mine["return_square"], other["return_square"])
            assert mine["return_square"] != 1
        for step in stats:
            assert set(step.values) - {"grad_norm", "learning_rate_in_use"} == set(FUN.statistics)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critic": "separate"}, "--model.critic shared"),
        ({"core": "gru"}, "--model.core none"),
        ({"value_head": "torch.nn:Linear"}, "--model.value-head"),
    ],
)
def test_a_network_without_a_place_for_it_is_refused(options, message):
    net = made_net({"obs": ((4,), "float32")}, 2, hidden=8, **options)
    with pytest.raises(ValueError, match=message):
        FUN.network(net, NetInputs({"obs": ((4,), "float32")}, {"obs": 1}, (2,)))


def test_a_fresh_managers_memory_is_kept():
    """With all weights 0 a gate is the sigmoid of its bias: 1 keeps 0.73 of a cell, 0 would keep half."""
    memory = DilatedLstm(WIDTH, 1)
    for layer in (memory.input, memory.recurrent):
        torch.nn.init.zeros_(layer.weight)
    cell, kept = torch.ones(1, 1, WIDTH), torch.ones(1, 1, dtype=torch.bool)
    _, after = memory(torch.zeros(1, 1, WIDTH), torch.zeros(1, 1, WIDTH), cell, kept, None)
    torch.testing.assert_close(after, torch.full_like(cell, torch.tensor(1.0).sigmoid().item()))
