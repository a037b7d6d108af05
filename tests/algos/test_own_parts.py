"""Parts of a network that a user wrote: what they receive, what is checked at the start, and how they fail later."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from pbt_rl.algos.encoders import NetworkError
from pbt_rl.algos.own_parts import check_again
from tests.algos.test_models import MIXED, SMALL, VECTOR, B, T, first_flags, make, observations
from tests.helpers import packs

HERE = __name__


class Running(nn.Module):
    """A core whose state is a running mean of its input."""

    def __init__(self, features, width=5):
        super().__init__()
        self.state_size = np.int64(width)
        self.read = nn.Linear(features, width)
        self.out = nn.Linear(width, 7)

    def forward(self, x, state, first):
        read, out = self.read(x), []
        for t in range(len(x)):
            state = torch.where(first[t].unsqueeze(-1), 0.0, state) * 0.5 + read[t]
            out.append(state)
        return self.out(torch.stack(out)), state


def deep(features, outputs):
    return nn.Sequential(nn.Linear(features, 9), nn.ReLU(), nn.Linear(9, outputs))


class Reads(nn.Module):
    def __init__(self, obs_shapes):
        super().__init__()
        self.read = nn.Linear(5, 16)

    def forward(self, obs):
        return self.read(obs["obs"])


class Detached(Reads):
    def forward(self, obs):
        return super().forward(obs).detach()


class Centred(Reads):
    def forward(self, obs):
        features = super().forward(obs)
        return features - features.mean(0)


class Misspelled(Reads):
    def __init__(self, obs_shapes):
        super().__init__(obs_shapes)
        self.second = nn.Linear(16, "16")


class Halves(Reads):
    def forward(self, obs):
        return super().forward({"obs": obs["obs"].mul_(0.5)})


class Logarithm(Reads):
    def forward(self, obs):
        return (-super().forward(obs).abs() - 1).log()


class Squeezed(Reads):
    def forward(self, obs):
        return super().forward(obs).squeeze()


class Ungraded(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


def without_gradient(features, outputs):
    return Ungraded(features, outputs)


class Cutting(Running):
    """The same, which obeys where gradients end."""

    def forward(self, x, state, first, cut=None):
        read, out = self.read(x), []
        for t in range(len(x)):
            if cut is not None:
                state = torch.where(cut[t].unsqueeze(-1), state.detach(), state)
            state = torch.where(first[t].unsqueeze(-1), 0.0, state) * 0.5 + read[t]
            out.append(state)
        return self.out(torch.stack(out)), state


class Forgetful(Running):
    def forward(self, x, state, first):
        return super().forward(x, state, torch.zeros_like(first))


class Foresees(Running):
    def forward(self, x, state, first):
        out, state = super().forward(x, state, first)
        return out + x.mean(0, keepdim=True).sum(-1, keepdim=True), state


class Still(Running):
    def forward(self, x, state, first):
        out, state = super().forward(x, state, first)
        return out.detach(), state


class NeverANumber(Running):
    def forward(self, x, state, first):
        out, state = super().forward(x, state, first)
        return out * math.nan, state


class WrongState(Running):
    def forward(self, x, state, first):
        return super().forward(x, state, first)[0], state[:1]


class ResetsAll(Running):
    def forward(self, x, state, first):
        return super().forward(x, state, first.any(1, keepdim=True).expand_as(first))


class Averages(Running):
    def forward(self, x, state, first):
        return super().forward(x - x.mean(1, keepdim=True), state, first)


class Remembers(Running):
    """Ignores the given state, and keeps another."""

    own = None

    def forward(self, x, state, first):
        own = state if self.own is None or self.own.shape != state.shape else self.own
        out, after = super().forward(x, own, first)
        self.own = after.detach()
        return out, after


class Overwrites(Running):
    def forward(self, x, state, first):
        state[first[0]] = 0.0
        return super().forward(x, state, first)


class Doubles(Running):
    """Writes to the features, which only the core reads."""

    def forward(self, x, state, first):
        return super().forward(x.mul_(2), state, first)


class Keeps(Running):
    def forward(self, x, state, first):
        self.features, state = super().forward(x, state, first)
        return self.features, state


class KeepingHead(nn.Linear):
    """Keeps its result, for a plot."""

    def forward(self, x):
        self.result = super().forward(x)
        return self.result


class Widens(Reads):
    def forward(self, obs):
        features = super().forward(obs)
        return features if len(features) <= 2 else features.repeat(1, 2)


class OnlyOut(Running):
    def forward(self, x, state, first):
        return super().forward(x, state, first)[0]


class NoSize(Running):
    def __init__(self, features):
        super().__init__(features)
        del self.state_size


def outputs_of(net, shapes=VECTOR, seed=0):
    state = torch.randn(B, net.state_size, generator=torch.Generator().manual_seed(seed))
    return net(observations(shapes), state, first_flags((2, 1))), state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_core_of_ones_own_is_used_as_it_is(dtype):
    net = make(VECTOR, core=f"{HERE}:Running")
    assert (net.state_size, net.body.size) == (5, 7)
    net.body.to(dtype)
    (params, value, after), state = outputs_of(net)
    assert params.dtype == value.dtype == after.dtype == torch.float32
    features = net.body.encoder({"obs": observations(VECTOR)["obs"].flatten(0, 1)}).unflatten(0, (T, B))
    core, expected = net.body.core.module, state
    for t in range(T):
        kept = torch.where(first_flags((2, 1))[t].unsqueeze(-1), 0.0, expected)
        expected = kept * 0.5 + core.read(features[t]).float()
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(after, expected, **tolerance)


@pytest.mark.parametrize(("core", "ends"), [("Running", False), ("Cutting", True)])
def test_a_core_with_a_parameter_cut_may_end_gradients(core, ends):
    net = make(VECTOR, core=f"{HERE}:{core}")
    obs = {"obs": observations(VECTOR)["obs"].requires_grad_()}
    cut = torch.zeros(T, B, dtype=torch.bool)
    cut[2] = True
    params, _, _ = net(obs, torch.zeros(B, 5), first_flags(), cut)
    params[-1].sum().backward()
    assert (obs["obs"].grad.abs().sum((1, 2)) > 0).tolist() == [not ends, not ends, True, True]


def test_heads_of_ones_own_are_used_as_they_are():
    heads = {"policy_head": f"{HERE}:deep", "value_head": f"{HERE}:deep"}
    net = make(VECTOR, continuous=2, **heads)
    (params, value, _), _ = outputs_of(net)
    features, _ = net.body(observations(VECTOR), torch.zeros(B, 0), first_flags())
    torch.testing.assert_close(params[..., :4], net.heads.policy.module(features))
    torch.testing.assert_close(params[..., 4:], net.heads.log_std.expand(T, B, 2))
    torch.testing.assert_close(value, net.heads.value.module(features)[..., 0])


def test_all_of_them_work_under_vmap_and_with_a_separate_critic():
    own = {"core": f"{HERE}:Running", "policy_head": f"{HERE}:deep", "value_head": f"{HERE}:deep"}
    nets = [make(VECTOR, seed=seed, critic="separate", **own) for seed in (0, 1)]
    stacked = {
        name: torch.stack([dict(net.named_parameters())[name] for net in nets])
        for name, _ in nets[0].named_parameters()
    }
    obs, state, first = observations(VECTOR), torch.randn(B, 10), first_flags((2, 1))
    results = torch.func.vmap(lambda p: torch.func.functional_call(nets[0], p, (obs, state, first)))(stacked)
    for i, net in enumerate(nets):
        for got, expected in zip(results, net(obs, state, first), strict=True):
            torch.testing.assert_close(got[i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"core": "Forgetful"}, "`first`"),
        ({"core": "Foresees"}, "4 steps"),
        ({"core": "WrongState"}, "float32 [1, 5] for float32 [4, 2, 16], float32 [2, 5]"),
        ({"core": "OnlyOut"}, "OnlyOut' returned float32 [4, 2, 7] for"),
        ({"core": "NoSize"}, "state_size None"),
        ({"core": "deep"}, "raised TypeError when constructed: "),
        ({"encoder": "Misspelled"}, "Misspelled' raised TypeError (test_own_parts.py, line "),
        ({"encoder": "Flat"}, "returned float32 [16] for {'obs': float32 [2, 5]}"),
        ({"encoder": "Detached"}, "without gradient"),
        ({"core": "Still"}, "without gradient"),
        ({"policy_head": "without_gradient"}, "without gradient"),
        ({"encoder": "Centred"}, "beside another"),
        ({"encoder": "Halves"}, "input obs in place"),
        ({"core": "Keeps"}, "Detach tensors"),
        ({"core": "ResetsAll"}, "for a row alone"),
        ({"core": "Averages"}, "for a row alone"),
        ({"core": "Remembers"}, "the given state"),
        ({"core": "Overwrites"}, "input state in place"),
        ({"policy_head": "rectified"}, "input features in place"),
        ({"encoder": "Logarithm"}, "returns NaN"),
        ({"core": "NeverANumber"}, "returns NaN"),
        ({"encoder": "Squeezed"}, "Squeezed' returned float32 [16] for {'obs': float32 [1, 5]}"),
        ({"policy_head": "wide"}, "returned float32 [2, 7] for float32 [2, 16]"),
        ({"policy_head": "probabilities"}, "returns probabilities"),
        ({"policy_head": "counts"}, "1.num_batches_tracked"),
        ({"value_head": "narrow"}, "(2x16 and 3x1). Inputs: float32 [2, 16]"),
    ],
)
def test_a_wrong_part_is_one_clear_error(options, message):
    options = {name: f"{HERE}:{part}" for name, part in options.items()}
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        make(VECTOR, **options)
    (name, path), text = next(iter(options.items())), str(error.value)
    assert text.startswith(f"{name.replace('_', '-')} {path!r}")
    assert "\n" not in text


class Flat(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        (((size,), _),) = shapes.values()
        self.read = nn.Linear(size, 8)

    def forward(self, obs):
        return self.read(obs["obs"]).flatten()


def counts(features, outputs):
    return nn.Sequential(nn.Linear(features, outputs), nn.BatchNorm1d(outputs, momentum=0.0))


def rectified(features, outputs):
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(features, outputs))


def wide(features, outputs):
    return nn.Linear(features, outputs + 1)


def probabilities(features, outputs):
    return nn.Sequential(nn.Linear(features, outputs), nn.Softmax(-1))


def narrow(features, outputs):
    class Narrow(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, outputs)

        def forward(self, x):
            return self.linear(x)

    return Narrow()


class Sees(nn.Module):
    """Keeps what it was given, and reads all of it by layers."""

    raw_pixels = False

    def __init__(self, shapes):
        super().__init__()
        self.images = [name for name, (shape, dtype) in shapes.items() if dtype == "uint8"]
        self.convs = nn.ModuleList(nn.Conv2d(shapes[name][0][0], 4, 8, 8) for name in self.images)
        self.rest = [name for name in shapes if name not in self.images]
        self.linears = nn.ModuleList(nn.LazyLinear(4) for _ in self.rest)

    def forward(self, obs):
        self.seen = dict(obs)
        parts = [conv(obs[name] / 1.0).flatten(1) for conv, name in zip(self.convs, self.images, strict=True)]
        parts += [
            linear(obs[name].reshape(len(obs[name]), -1))
            for linear, name in zip(self.linears, self.rest, strict=True)
        ]
        return torch.cat(parts, -1)


class SeesPixels(Sees):
    raw_pixels = True

    def forward(self, obs):
        return super().forward(obs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_encoder_gets_scaled_images_in_its_dtype_and_numbers_in_float32(dtype):
    net = make(MIXED, encoder=f"{HERE}:Sees")
    net.body.to(dtype)
    obs = observations(MIXED)
    obs["a.speed"] += 1000.001  # bf16 would hold 1000
    features, _ = net.body(obs, torch.zeros(B, 0), first_flags())
    seen = net.body.encoder.module.seen
    assert features.dtype == seen["camera"].dtype == dtype
    assert seen["camera"].shape == (T * B, 3, 36, 40)
    torch.testing.assert_close(seen["camera"].float(), obs["camera"].flatten(0, 1) / 255, rtol=0, atol=4e-3)
    assert torch.equal(seen["a.speed"], obs["a.speed"].flatten(0, 1))
    assert seen["gear"].dtype == torch.float32
    features.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == dtype for p in net.body.parameters())


def test_an_encoder_gets_pixels_as_they_are_if_it_asks():
    net = make(SMALL, encoder=f"{HERE}:SeesPixels")
    obs = observations(SMALL)
    net.body(obs, torch.zeros(B, 0), first_flags())
    assert torch.equal(net.body.encoder.module.seen["obs"], obs["obs"].flatten(0, 1))


def test_a_core_may_write_to_its_features_and_a_head_may_keep_its_result():
    nets = [make(VECTOR, core=f"{HERE}:Doubles", policy_head=f"{HERE}:KeepingHead", seed=s) for s in (0, 1)]
    copy.deepcopy(nets[0])
    check_again(*nets)


def test_a_width_that_depends_on_the_number_of_samples_is_refused():
    net = make(VECTOR, encoder=f"{HERE}:Widens")
    with pytest.raises(
        NetworkError, match=r"Widens' returned float32 \[12, 32\] for .*float tensor \[12, 16\]"
    ):
        net.body(observations(VECTOR), torch.zeros(B, 0), first_flags())


class Shifts(Sees):
    """Writes to the scaled image, which is a copy."""

    def forward(self, obs):
        return super().forward({"obs": obs["obs"].sub_(0.5)})


def test_an_encoder_may_write_to_a_scaled_image():
    make(SMALL, encoder=f"{HERE}:Shifts")


class Fails(Sees):
    """Fails for more than two rows, which the dry run does not have."""

    error = RuntimeError

    def forward(self, obs):
        if len(obs["obs"]) > 2:
            raise self.error("too many\nsecond line")
        return super().forward(obs)


class Mixes(nn.Module):
    """Layers that take float32 numbers and bfloat16 weights together."""

    def __init__(self, shapes):
        super().__init__()
        self.norm, self.groups, self.linear = nn.LayerNorm(5), nn.GroupNorm(1, 5), nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.ones(5))
        self.register_buffer("mean", torch.ones(5))

    def forward(self, obs):
        x = self.norm(obs["obs"]) + self.groups(obs["obs"] * self.scale - self.mean)
        return torch.relu(self.linear(x))


@pytest.mark.parametrize("vmap", [False, True])
def test_layers_of_an_encoder_in_bfloat16_take_numbers_in_float32(vmap):
    net = make(VECTOR, encoder=f"{HERE}:Mixes")
    expected, _ = net.body(observations(VECTOR), torch.zeros(B, 0), first_flags())
    net.body.to(torch.bfloat16)
    net.body.encoder.module.mean = net.body.encoder.module.mean.float()  # as in a pack
    params = dict(net.body.named_parameters())
    arguments = observations(VECTOR), torch.zeros(B, 0), first_flags()
    if vmap:
        stacked = {name: p.unsqueeze(0) for name, p in params.items()}
        (features,) = torch.func.vmap(lambda p: torch.func.functional_call(net.body, p, arguments)[0])(
            stacked
        )
    else:
        features, _ = net.body(*arguments)
    torch.testing.assert_close(features.float(), expected, rtol=0.05, atol=0.05)
    features.float().sum().backward()
    assert all(p.grad.dtype == torch.bfloat16 for p in params.values())


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_an_error_in_a_later_forward_names_network_place_and_shapes(error, monkeypatch):
    monkeypatch.setattr(Fails, "error", error)
    net = make(SMALL, encoder=f"{HERE}:Fails")
    with pytest.raises(NetworkError) as caught:
        net.body(observations(SMALL), torch.zeros(B, 0), first_flags())
    assert re.fullmatch(
        rf"encoder '{HERE}:Fails' raised {error.__name__} \(test_own_parts.py, line \d+\): too many. "
        r"Inputs: \{'obs': float32 \[12, 3, 36, 40\]\}",
        str(caught.value),
    )


class Plain(nn.Module):
    """Learns nothing itself: what follows reads the numbers as they are."""

    def __init__(self, shapes):
        super().__init__()

    def forward(self, obs):
        return torch.cat([x.flatten(1) for x in obs.values()], -1)


class Volumes(nn.Module):
    """Convolves over channels too, by weights of five axes."""

    def __init__(self, shapes):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv3d(1, 2, (2, 5, 5), (1, 6, 6)), nn.Flatten(), nn.LazyLinear(6))

    def forward(self, obs):
        return self.layers(obs["obs"].unsqueeze(1))


class Tempered(nn.Module):
    """Has one weight that is a single number."""

    def __init__(self, shapes):
        super().__init__()
        self.layer, self.temperature = nn.Linear(4, 6), nn.Parameter(torch.tensor(2.0))

    def forward(self, obs):
        return self.layer(obs["obs"]) / self.temperature


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("encoder", "layout"), [("Plain", packs.VECTOR), ("Tempered", packs.VECTOR), ("Volumes", packs.FRAMES)]
)
def test_a_network_learns_whatever_axes_its_weights_have_and_without_any_in_its_encoder(
    encoder, layout, packing
):
    model = {"encoder": f"{HERE}:{encoder}"}
    pack = packs.make_pack([packs.HYPERS] * 2, packing=packing, layout=layout, model=model)
    before = [packs.state_of(pack, p) for p in range(2)]
    batch = packs.batch_of(packs.make_rollouts([0, 1], layout=layout), 2)
    assert len(packs.learn(pack, batch, packs.settings())) == (4 if packing == "loop" else 2)
    assert not any(torch.equal(packs.state_of(pack, p)["param"], before[p]["param"]) for p in range(2))
    pack.copy_member(0, 1)
    assert packs.same_bits(packs.state_of(pack, 0), packs.state_of(pack, 1))


class Drops(nn.Module):
    """Drops half of its numbers in training."""

    def __init__(self, shapes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))

    def forward(self, obs):
        return self.layers(obs["obs"])


def test_dropout_is_of_learning_alone():
    pack = packs.make_pack([packs.HYPERS], model={"encoder": f"{HERE}:Drops"})
    obs, state, first = (
        {"obs": torch.randn(1, 3, 4)},
        torch.zeros(1, 3, 0),
        torch.zeros(1, 3, dtype=torch.bool),
    )
    assert torch.equal(pack.act(obs, state, first)[1], pack.act(obs, state, first)[1])
    learned = [
        pack.groups()[0].forward({"obs": obs["obs"].unsqueeze(1)}, state, first.unsqueeze(1))[1]
        for _ in range(2)
    ]
    assert not torch.equal(*learned)


class Frozen(nn.Module):
    """Reads by a layer that is not learned."""

    def __init__(self, shapes):
        super().__init__()
        self.fixed, self.learned = nn.Linear(4, 6).requires_grad_(False), nn.Linear(6, 6)

    def forward(self, obs):
        return self.learned(torch.cos(self.fixed(obs["obs"])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_parameters_that_need_no_gradient_stay_as_they_are(packing, dtype):
    model = {"encoder": f"{HERE}:Frozen"}
    pack = packs.make_pack([packs.HYPERS] * 2, packing=packing, dtype=dtype, model=model)
    before = {name: x.clone() for name, x in pack.named_weights(1).items()}
    packs.learn(pack, packs.batch_of(packs.make_rollouts([0, 1]), 2), packs.settings())
    changed = {name for name, x in pack.named_weights(1).items() if not torch.equal(x, before[name])}
    assert changed == {name for name in before if ".fixed." not in name}
