import pytest
import torch
from torch import nn

from pbt_rl.algos.distributions import DiagonalGaussian
from pbt_rl.algos.encoders import LAST, WordEncoder
from pbt_rl.algos.models import PolicyNet
from tests.helpers.nets import made_net

IMAGE = {"obs": ((4, 84, 84), "uint8")}
SMALL = {"obs": ((3, 36, 40), "uint8")}
VECTOR = {"obs": ((5,), "float32")}
MIXED = {"camera": ((3, 36, 40), "uint8"), "a.speed": ((2, 2), "float32"), "gear": ((), "int64")}
TEXT = {"obs": ((3, 36, 40), "uint8"), "instr": ((5,), "int32")}
SEES_LAST = {LAST: ((2, 2), "float32"), "obs": ((6,), "float32"), "instr": ((5,), "int32")}
T, B = 4, 3


def make(shapes, param_size=6, seed=0, **options) -> PolicyNet:
    torch.manual_seed(seed)
    return made_net(shapes, param_size, **{"hidden": 16, "core_size": 8, **options})


def observations(shapes, seed=0, *leading):
    g = torch.Generator().manual_seed(seed)
    out = {}
    for name, (shape, dtype) in shapes.items():
        x = torch.rand((*(leading or (T, B)), *shape), generator=g)
        if dtype == "int32":
            out[name] = (x * 4000).to(torch.int32)
            out[name][..., :2] = 0
        else:
            out[name] = (
                (x * 255).to(torch.uint8) if dtype == "uint8" else (x * 4 - 2).to(getattr(torch, dtype))
            )
    return out


def first_flags(*flags: tuple[int, int]) -> torch.Tensor:
    first = torch.zeros(T, B, dtype=torch.bool)
    for t, b in flags:
        first[t, b] = True
    return first


CASES = {
    "nature": (SMALL, {}),
    "impala": (SMALL, {"encoder": "impala"}),
    "a3c": (SMALL, {"encoder": "a3c"}),
    "mlp": (VECTOR, {"layers": 3}),
    "mlp of two widths": (VECTOR, {"hidden": (24, 16)}),
    "mixed of two widths": (MIXED, {"hidden": (24, 16)}),
    "mlp on pixels": (SMALL, {"encoder": "mlp"}),
    "mixed": (MIXED, {}),
    "gru": (VECTOR, {"core": "gru"}),
    "lstm": (VECTOR, {"core": "lstm"}),
    "nature lstm": (SMALL, {"core": "lstm"}),
    "text": (TEXT, {"encoder": "impala", "core": "lstm"}),
    "last action": (SEES_LAST, {"core": "lstm"}),
    "last action alone": ({LAST: ((2, 2), "float32")}, {}),
    "text alone": ({"instr": TEXT["instr"]}, {}),
    "gaussian": (VECTOR, {"continuous": 3}),
    "hybrid": (VECTOR, {"continuous": 1}),
    "stds of the state": (VECTOR, {"continuous": 2, "action_std": "state"}),
    "two layers": (VECTOR, {"core": "gru", "core_layers": 2}),
    "separate critic": (SMALL, {"critic": "separate"}),
    "separate recurrent critic": (VECTOR, {"core": "lstm", "core_layers": 2, "critic": "separate"}),
    "user": (SMALL, {"encoder": f"{__name__}:UserNet"}),
}


class UserNet(nn.Module):
    """A user's encoder as one would write it, with a constant buffer."""

    def __init__(self, shapes):
        super().__init__()
        self.shape = shapes["obs"][0]
        self.register_buffer("mean", torch.full((3, 1, 1), 0.5))
        self.net = nn.Sequential(nn.Conv2d(3, 4, 5, 5), nn.ReLU(), nn.Flatten(), nn.LazyLinear(9))

    def forward(self, obs):
        return self.net(obs["obs"] - self.mean)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_and_dtypes(case, dtype):
    shapes, options = CASES[case]
    net = make(shapes, **options)
    net.body.to(dtype)
    state = torch.zeros(B, net.state_size)
    bodies = 2 if options.get("critic") == "separate" else 1
    of_layer = {"gru": 8, "lstm": 16}.get(options.get("core", "none"), 0)
    assert net.state_size == of_layer * options.get("core_layers", 1) * bodies
    params, value, after = net(observations(shapes), state, first_flags((0, 0)))
    assert (params.shape, value.shape, after.shape) == ((T, B, 6), (T, B), state.shape)
    assert params.dtype == value.dtype == after.dtype == torch.float32
    assert {p.dtype for p in net.heads.parameters()} == {torch.float32}
    (value.square().sum() + params.square().sum()).backward()
    idle = [name for name, p in net.named_parameters() if p.grad is None and name.startswith("body")]
    assert not idle


@pytest.mark.parametrize("case", CASES)
def test_vmap_over_stacked_parameters_equals_each_alone(case):
    shapes, options = CASES[case]
    nets = [make(shapes, seed=seed, **options) for seed in range(3)]
    stacked = {
        name: torch.stack([dict(n.named_parameters())[name].detach() for n in nets])
        for name, _ in nets[0].named_parameters()
    }
    obs = observations(shapes, 1, 3, T, B)
    state = torch.randn(3, B, nets[0].state_size)
    first = first_flags((2, 1)).expand(3, T, B)

    def loss(parameters, obs, state, first):
        params, value, after = torch.func.functional_call(nets[0], parameters, (obs, state, first))
        return params.square().sum() + value.sum() + after.sum(), (params, value, after)

    packed = torch.func.vmap(torch.func.grad(loss, has_aux=True))
    grads, outputs = packed(stacked, obs, state, first)
    for p, net in enumerate(nets):
        one = {name: x[p] for name, x in obs.items()}
        params, value, after = net(one, state[p], first[p])
        for got, expected in zip(outputs, (params, value, after), strict=True):
            torch.testing.assert_close(got[p], expected, rtol=1e-4, atol=1e-5)
        (params.square().sum() + value.sum() + after.sum()).backward()
        for name, parameter in net.named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(grads[name][p], expected, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"hidden": 7}, [7, 7]),
        ({"hidden": 7, "layers": 3}, [7, 7, 7]),
        ({"hidden": (9, 7, 5), "layers": 3}, [9, 7, 5]),
        ({"hidden": (9, 7), "layers": 5}, [9, 7]),
    ],
)
def test_one_width_is_of_each_layer_and_several_are_the_layers(options, sizes):
    encoder = make(VECTOR, **options).body.encoder
    assert [len(layer.weight) for layer in encoder.parts[0].layers] == sizes
    assert (encoder.size, encoder.mix) == (sizes[-1], None)


@pytest.mark.parametrize("shapes", [SMALL, {"instr": TEXT["instr"]}])
def test_several_widths_without_an_mlp_are_an_error(shapes):
    with pytest.raises(ValueError, match=r"--model\.hidden.* one "):
        make(shapes, hidden=(9, 7))


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("core", "reference"), [("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_core_equals_torchs(core, reference, layers):
    ours = make(VECTOR, core=core, core_layers=layers).body.core
    theirs = reference(16, 8, num_layers=layers)
    for i, layer in enumerate([ours] if layers == 1 else ours.layers):
        for name, part in (("ih", layer.input), ("hh", layer.recurrent)):
            nn.init.normal_(part.bias)
            getattr(theirs, f"weight_{name}_l{i}").data.copy_(part.weight)
            getattr(theirs, f"bias_{name}_l{i}").data.copy_(part.bias)
    x, state = torch.randn(T, B, 16, requires_grad=True), torch.randn(B, ours.state_size, requires_grad=True)
    out, after = ours(x, state, first_flags())
    of_layers = (
        state.view(B, layers, -1, 8).permute(2, 1, 0, 3).contiguous()
    )  # hidden state (and cell) of each
    expected, last = theirs(x, tuple(of_layers) if core == "lstm" else of_layers[0])
    last = torch.stack(last if core == "lstm" else (last,)).permute(2, 1, 0, 3).flatten(1)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(after, last)
    got = torch.autograd.grad(out.square().sum(), (x, state))
    torch.testing.assert_close(got, torch.autograd.grad(expected.square().sum(), (x, state)))


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_a_new_core_keeps_most_of_its_state(core):
    ours = make(VECTOR, core=core).body.core
    nn.init.zeros_(ours.recurrent.weight)  # what is left is the gate's bias
    state = torch.randn(B, ours.state_size)
    _, after = ours(torch.zeros(1, B, 16), state, torch.zeros(1, B, dtype=torch.bool))
    kept, before = after[:, -8:], state[:, -8:]  # of an LSTM the cell
    torch.testing.assert_close(kept, torch.sigmoid(torch.tensor(1.0)) * before)


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_separate_critic_is_a_network_of_its_own(core):
    net = make(VECTOR, core=core, critic="separate")
    alone = [make(VECTOR, core=core, seed=seed) for seed in (1, 2)]
    for one, body in zip(alone, (net.body.policy, net.body.critic), strict=True):
        one.body.load_state_dict(body.state_dict())
        one.heads.load_state_dict(net.heads.state_dict())
    obs, first, state = observations(VECTOR), first_flags((1, 0)), torch.randn(B, net.state_size)
    params, value, after = net(obs, state, first)
    states = state.chunk(2, -1) if core == "gru" else (state, state)
    of_policy, of_critic = (one(obs, s, first) for one, s in zip(alone, states, strict=True))
    torch.testing.assert_close(params, of_policy[0])
    torch.testing.assert_close(value, of_critic[1])
    torch.testing.assert_close(after, torch.cat((of_policy[2], of_critic[2]), -1) if core == "gru" else after)
    value.square().sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in net.body.policy.parameters())
    assert all(p.grad.any() for p in net.body.critic.parameters())


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_state_is_zeroed_where_an_episode_begins(core):
    net = make(VECTOR, core=core)
    obs, first = observations(VECTOR), first_flags((2, 1), (0, 2))
    state = torch.randn(B, net.state_size)
    params, value, after = net(obs, state, first)
    tail = {"obs": obs["obs"][2:]}
    fresh = net(tail, torch.zeros(B, net.state_size), first_flags()[2:])
    torch.testing.assert_close(params[2:, 1], fresh[0][:, 1])
    torch.testing.assert_close(after[1], fresh[2][1])
    assert not torch.allclose(params[2:, 0], fresh[0][:, 0], rtol=0, atol=1e-6), "row 0 keeps its state"
    whole = net(obs, torch.zeros(B, net.state_size), first_flags())
    torch.testing.assert_close(value[:, 2], whole[1][:, 2])


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_a_rollout_equals_its_steps(core):
    net = make(VECTOR, core=core)
    obs, first = observations(VECTOR), first_flags((1, 0), (3, 2))
    state = torch.randn(B, net.state_size)
    params, value, after = net(obs, state, first)
    for t in range(T):
        one, v, state = net({"obs": obs["obs"][t : t + 1]}, state, first[t : t + 1])
        torch.testing.assert_close(one[0], params[t])
        torch.testing.assert_close(v[0], value[t])
    torch.testing.assert_close(state, after)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_gradients_go_back_through_time_but_not_through_a_reset(core):
    net = make(VECTOR, core=core)
    x = observations(VECTOR)["obs"].requires_grad_()
    state = torch.randn(B, net.state_size, requires_grad=True)
    _, value, _ = net({"obs": x}, state, first_flags((2, 1)))
    value[-1].sum().backward()
    assert (x.grad.abs().sum(-1) > 0).T.tolist() == [[True] * 4, [False, False, True, True], [True] * 4]
    assert (state.grad.abs().sum(-1) > 0).tolist() == [True, False, True]


def test_nature_equals_the_plain_network():
    net = make(IMAGE, hidden=512)
    e = net.body.encoder.parts[0]
    weights = {"0": e.conv1, "2": e.conv2, "4": e.conv3}
    convs = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
    plain = nn.Sequential(*(layer for conv in convs for layer in (conv, nn.ReLU())))
    for name, layer in weights.items():
        plain[int(name)].load_state_dict(layer.state_dict())
    image = observations(IMAGE)["obs"].flatten(0, 1)
    spatial = plain(image / 255)
    assert spatial.shape == (T * B, 64, 7, 7)
    expected = torch.relu(e.linear(spatial.permute(0, 2, 3, 1).reshape(T * B, -1)))
    torch.testing.assert_close(net.body.encoder({"obs": image}), expected, rtol=1e-4, atol=1e-5)
    body = sum(p.numel() for p in net.body.parameters())
    assert body == 32 * (4 * 64 + 1) + 64 * (32 * 16 + 1) + 64 * (64 * 9 + 1) + 512 * (3136 + 1)


def test_impala_size_and_residuals():
    net = make(IMAGE, encoder="impala", hidden=256)
    convs = [(4, 16), *[(16, 16)] * 4, (16, 32), *[(32, 32)] * 4, *[(32, 32)] * 5]
    expected = sum(o * (9 * i + 1) for i, o in convs) + 256 * (32 * 11 * 11 + 1)
    assert sum(p.numel() for p in net.body.parameters()) == expected
    encoder = net.body.encoder.parts[0]
    for stage in encoder.stages:
        for conv in stage.convs[1:]:
            nn.init.zeros_(conv.weight)
    x = observations(IMAGE)["obs"].flatten(0, 1)
    entries = x / 255
    for stage in encoder.stages:
        entries = nn.functional.max_pool2d(stage.convs[0](entries), 3, 2, 1)
    torch.testing.assert_close(encoder.stages(x), entries, rtol=1e-4, atol=1e-5)


def test_the_last_action_and_reward_reach_the_core_as_they_are():
    net = make(SEES_LAST, core="lstm")
    plain = make({name: SEES_LAST[name] for name in ("obs", "instr")}, core="lstm")
    obs = {"obs": torch.randn(6, 6), "instr": torch.ones(6, 5, dtype=torch.int32)}
    last = torch.randn(6, 2, 2)
    features = net.body.encoder(obs | {LAST: last})
    assert features.shape[1] == net.body.encoder.size == plain.body.encoder.size + 4
    torch.testing.assert_close(features[:, -4:], last.flatten(1))
    net.body.to(torch.bfloat16)
    assert net.body.encoder(obs | {LAST: last}).dtype == torch.bfloat16


def test_a_sentence_is_read_in_order_and_by_its_words_alone():
    torch.manual_seed(0)
    sentences = [[0, 0, 7, 9], [0, 5, 7, 9], [0, 0, 9, 7], [0, 0, 1007, 2009], [0, 0, 0, 0], [0, 0, 1000, 9]]
    short, longer, swapped, folded, empty, thousand = WordEncoder(4)(
        torch.tensor(sentences, dtype=torch.int32)
    )
    assert torch.equal(short, folded)  # modulo the number of embeddings
    for other in (longer, swapped, empty, thousand):
        assert not torch.allclose(short, other, atol=1e-3)
    assert not empty.any()  # no word, no feature


def test_initial_weights():
    net = make(VECTOR, hidden=64, continuous=3)
    assert net.heads.policy.weight.norm(dim=1).tolist() == pytest.approx([0.01] * 3, rel=1e-4)
    assert net.heads.value.weight.norm().item() == pytest.approx(1, rel=1e-4)
    assert net.body.encoder.parts[0].layers[1].weight.norm(dim=1).tolist() == pytest.approx(
        [2**0.5] * 64, rel=1e-4
    )
    assert all((p == 0).all() for n, p in net.named_parameters() if n.endswith("bias") or "log_std" in n)
    again, other = make(VECTOR, hidden=64, continuous=3), make(VECTOR, hidden=64, continuous=3, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    assert not torch.equal(net.heads.value.weight, other.heads.value.weight)


@pytest.mark.parametrize("action_std", ["free", "state"])
def test_actions_begin_with_the_std_that_was_asked_for(action_std):
    net = make(VECTOR, hidden=64, continuous=3, action_std=action_std, initial_std=(0.5,))
    params, _, _ = net(observations(VECTOR), torch.zeros(B, 0), first_flags())
    torch.testing.assert_close(params[..., 3:].exp(), torch.full((T, B, 3), 0.5), rtol=0.05, atol=0)
    assert params[..., :3].abs().max() < 0.1, "means begin at 0"


@pytest.mark.parametrize(("log_std", "std"), [(100.0, 1e4), (-100.0, 1e-4)])
def test_a_std_that_runs_away_stays_a_number(log_std, std):
    net, normal = make(VECTOR, continuous=3), DiagonalGaussian(3)
    with torch.no_grad():
        net.heads.log_std.fill_(log_std)
    params, _, _ = net(observations(VECTOR), torch.zeros(B, 0), first_flags())
    assert params[..., 3:].exp().flatten().tolist() == pytest.approx([std] * T * B * 3, rel=1e-3)
    action, log_prob = normal.sample(params, torch.Generator().manual_seed(0))
    torch.testing.assert_close(normal.log_prob(params, action), log_prob, rtol=1e-3, atol=1e-2)


def test_stds_of_the_state_are_outputs_within_their_range():
    net = make(VECTOR, continuous=2, action_std="state")
    assert net.heads.log_std is None
    params, _, _ = net(observations(VECTOR), torch.zeros(B, 0), first_flags())
    features, _ = net.body(observations(VECTOR), torch.zeros(B, 0), first_flags())
    plain = features @ net.heads.policy.weight.T + net.heads.policy.bias
    torch.testing.assert_close(params, plain)
    assert params[..., 4:].std() > 1e-4, "they differ from state to state"
    with torch.no_grad():
        net.heads.policy.bias.copy_(torch.tensor([9.0, 9, 9, 9, 9, -9]))
    params, _, _ = net(observations(VECTOR), torch.zeros(B, 0), first_flags())
    assert params[..., 4:].unique().tolist() == [-5.0, 2.0]
    assert (params[..., :4] > 8).all()


@pytest.mark.parametrize("case", [case for case in CASES if case != "user"])
def test_no_state_outside_of_parameters_and_channels_last(case):
    shapes, options = CASES[case]
    net = make(shapes, **options)
    assert list(net.buffers()) == []
    images = [p for p in net.parameters() if p.ndim == 4]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in images)


@pytest.mark.parametrize(
    ("shapes", "encoder", "message"),
    [
        (VECTOR, "nature", "'nature' .*an image"),
        ({"obs": ((3, 30, 84), "uint8")}, "nature", "36x36, not 30x84"),
        ({"obs": ((64, 64, 3), "float32")}, "auto", "pixel bounds"),
    ],
)
def test_observations_that_do_not_fit_the_encoder(shapes, encoder, message):
    with pytest.raises(ValueError, match=message):
        make(shapes, encoder=encoder)


@pytest.mark.parametrize(
    "made",
    [{"core": "gru"}, {"core": "lstm"}, {"core": "gru", "core_layers": 2, "critic": "separate"}],
    ids=str,
)
def test_a_gradient_ends_where_it_is_cut_and_the_state_goes_on(made):
    net = make(VECTOR, **made)
    first = first_flags((0, 0), (3, 1))
    state = torch.rand(B, net.state_size)
    cut = torch.tensor([True, False, True, False])[:, None].expand(T, B)

    def gradients(**options):
        obs = {"obs": observations(VECTOR)["obs"].requires_grad_()}
        outputs = net(obs, state, first, **options)
        outputs[0][-1].sum().backward()
        return obs["obs"].grad.abs().sum((1, 2)) > 0, outputs

    whole, outputs = gradients()
    assert whole.tolist() == [True, True, True, True]
    reached, same = gradients(cut=cut)
    assert reached.tolist() == [False, False, True, True]
    for a, b in zip(outputs, same, strict=True):
        assert torch.equal(a, b), "values do not change"


def test_a_users_encoder_gets_texts_as_they_are():
    net = made_net(TEXT, 6, encoder=f"{__name__}:reads_text")
    obs = {"obs": torch.zeros(1, 2, 3, 36, 40, dtype=torch.uint8), "instr": torch.full((1, 2, 5), 2**31 - 1)}
    obs["instr"] = obs["instr"].to(torch.int32)
    net(obs, torch.zeros(2, 0), torch.zeros(1, 2, dtype=torch.bool))
    assert ReadsText.seen.dtype == torch.int32
    assert ReadsText.seen.max() == 2**31 - 1


class ReadsText(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float32))

    def forward(self, obs):
        ReadsText.seen = obs["instr"]
        return obs["obs"].flatten(1)[:, :4] * self.weight


def reads_text(_shapes):
    return ReadsText()
