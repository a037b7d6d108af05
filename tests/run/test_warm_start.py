"""`--init-from`: members begin from what other runs saved, with counts and values of their own."""

import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from pbt_rl.config import Config, ModelConfig
from pbt_rl.config.command import parse_train
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.envs.lookup import EnvOptions, probe
from pbt_rl.errors import CheckpointBroken, ConfigError
from pbt_rl.learner.build import build_pack, net_names
from pbt_rl.plan import Machine, PackPlan
from pbt_rl.record.checkpoints import NetNames, pack, to_tensors
from pbt_rl.record.journal import read_journal
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.train import train
from pbt_rl.run.warm_start import WarmStart, fit, read_saved
from tests.helpers.saved import save, write_run
from tests.helpers.snapshots import NAMES, assert_same, snapshot
from tests.record.test_checkpoints import write

MLP = ModelConfig(encoder="mlp", hidden=8, layers=1)
CONFIG = Config(env="toy/identity?length=5", num_policies=3, model=MLP, actors=1, devices="cpu")
FACTOR, STEPS = 0.25, 70.0


def trained_pack(config=CONFIG):
    """A pack of three whose every number is set."""
    values = {name: hyper.default for name, hyper in hyper_table(config.hypers).items()}
    plan = PackPlan("cpu", (0, 1, 2), 1, 1, 1, 1, 1, 3)
    pack = build_pack(config, probe(config.env, EnvOptions()), plan, [values] * 3, 5)
    random = torch.Generator().manual_seed(0)
    for place in pack.weights.layout.places().values():
        for name in ("mean", "square"):
            numbers = torch.rand((3, place.stop - place.start), generator=random)
            pack.state[name][:, place.start : place.stop] = numbers
    pack.state["optimizer_steps"][:] = STEPS
    pack.state["lr_factor"][:] = FACTOR
    pack.state["return_square"][:] = 3.5
    return pack


@pytest.fixture
def source(tmp_path):
    """A run with checkpoints of members 0 and 1 (the best) at 1000 frames, and of 2 at 2000."""
    run = write_run(tmp_path / "source", CONFIG)
    pack = trained_pack()
    save(run, pack, {0: 0, 1: 1}, best=1, frames=1000)
    save(run, pack, {2: 2}, best=None, frames=2000)
    return run


def resolved(*init_from, **changes):
    config = replace(CONFIG, init_from=tuple(map(str, init_from)), **changes)
    return ResolvedRun.resolve(config, Machine(cpus=2, gpus=0))


def begun(run):
    """Snapshots that the members of a run begin with, and the values that they are given."""
    values = [{"gamma": 0.9 + 0.01 * member} for member in range(run.config.num_policies)]
    names = net_names(trained_pack(run.config))
    return [read() for read in WarmStart.find(run, print).states(values, names).values()], values


def test_a_member_takes_arrays_and_nothing_else(source):
    snapshots, values = begun(resolved(f"{source}@1000"))
    wanted = {name: tensor.numpy() for name, tensor in trained_pack().export_member(1).items()}
    wanted["lr_factor"] = np.array(1, np.float32)  # the schedule begins anew
    for member, one in enumerate(snapshots):
        assert one.arrays.keys() == wanted.keys()
        assert all(np.array_equal(one.arrays[name], wanted[name]) for name in wanted)
        header = one.header
        assert (header.member, header.generation, header.values) == (member, 0, values[member])
        assert (header.frames, header.steps, header.updates, header.fresh_frames) == (0, 0, 0, 0)
        assert not header.remembered


def test_every_member_may_have_a_source_of_its_own(source):
    file = source / "checkpoints" / "at_1000" / "policy_01.safetensors"
    run = resolved(source, file, f"{source}@1000:0")
    snapshots, _ = begun(run)
    pack = trained_pack()
    for one, slot in zip(snapshots, (2, 1, 0), strict=True):
        assert np.array_equal(one.arrays["param"], pack.state["param"][slot].numpy())
    warm = WarmStart.find(run, print)
    others = [f"member {member} of {source} at {at} frames" for member, at in ((2, "2,000"), (0, "1,000"))]
    assert warm.record()["members"] == [others[0], str(file), others[1]]
    assert re.match(rf"member 1 .*{file}", warm.described()[1])


@pytest.mark.parametrize(("parts", "taken"), [("weights", set()), ("weights+normalisers", {"return_square"})])
def test_parts_that_are_not_asked_for_stay_fresh(source, parts, taken):
    (snapshot, *_), _ = begun(resolved(source, init_parts=parts))
    pack = trained_pack()
    fresh = {name: tensor.numpy() for name, tensor in pack.fresh_state().items()}
    assert np.array_equal(snapshot.arrays["param"], pack.state["param"][2].numpy())
    for name in fresh.keys() - {"param"}:
        origin = pack.state[name][2].numpy() if name in taken else fresh[name]
        assert np.array_equal(snapshot.arrays[name], origin), name


def test_what_does_not_fit_is_named_or_left_out(source):
    other = {"env": "toy/identity?length=5&size=6"}
    with pytest.raises(
        ConfigError, match=r"--init-from .*\n  net\.\S+: .*wanted \(8, 6\)(.*\n)*.*--init-strict no"
    ):
        WarmStart.find(resolved(source, **other), print)
    run = resolved(source, init_strict=False, **other)
    lines = WarmStart.find(run, print).described()
    assert re.search(rf"member 2 .*{source} .*\b2,000 ", lines[0])
    assert any("not loaded: net." in line and "wanted (8, 6)" in line for line in lines)
    snapshots, _ = begun(run)
    biases = [net_names(trained_pack(run.config)).views(s.arrays["param"]) for s in snapshots]
    weights = next(name for name, view in biases[0].items() if view.shape == (8, 6))
    assert not np.array_equal(biases[0][weights], biases[1][weights]), "drawn for each member"
    assert snapshots[0].arrays["optimizer_steps"] == 0, "an optimiser is taken as a whole or not at all"


def test_nothing_that_fits_is_an_error(source):
    other = {"model": replace(MLP, hidden=9), "env": "toy/identity?length=5&size=6"}
    with pytest.raises(ConfigError, match=r"none .*fits"):
        WarmStart.find(resolved(source, init_strict=False, **other), print)


def test_numbers_that_are_not_finite_are_refused(source):
    pack = trained_pack()
    pack.state["mean"][:] = float("inf")
    save(source, pack, {0: 0}, best=0, frames=3000)
    with pytest.raises(ConfigError, match=r"in optim\.mean"):
        WarmStart.find(resolved(source), print)
    assert WarmStart.find(resolved(source, init_parts="weights"), print) is not None


def test_nothing_that_the_other_config_names_is_imported(source, tmp_path, monkeypatch):
    (tmp_path / "evil_source.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = json.loads((source / "config.json").read_text())
    config["env"] = config["algo"] = config["model"]["encoder"] = "evil_source:make"
    (source / "config.json").write_text(json.dumps(config))
    assert WarmStart.find(resolved(source), print) is not None
    assert "evil_source" not in sys.modules


def whole_run(out, name, *more):
    options = (
        f"--env={CONFIG.env} --mode=serial --num-policies=3 --slots=2 --slot-frames=40 --actors=1 --no-figures"
        " --envs-per-vector-env=2 --learner.batch=64 --learner.rollout=8 --hypers.learning-rate=1e-8"
        " --model.encoder=mlp --model.hidden=8 --model.layers=1 --pbt.mutation-rate=0"
    )
    config = parse_train([*options.split(), f"--name={name}", f"--out={out}", *more])
    assert train(config) == 0
    return out / name


def test_a_whole_run_begins_there_and_resumes_without_it(source, tmp_path, capsys):
    """Its learning rate is next to nothing: the weights stay, and only the optimiser's steps count on."""
    arguments = (f"--init-from={source}@1000",)
    run = whole_run(tmp_path, "x", *arguments, "--pbt.tune=gamma", "--train-for-frames=200")
    assert re.search(rf"member 1 .*{source} .*\b1,000 ", capsys.readouterr().out)
    origin = load_file(source / "checkpoints" / "at_1000" / "policy_01.safetensors")
    (newest,) = sorted((run / "checkpoints").iterdir(), key=lambda p: p.stat().st_mtime)[-1:]
    found = [load_file(path) for path in sorted(newest.glob("policy_*"))]
    assert len(found) == 3
    for tensors in found:
        assert tensors["optim.steps"] > STEPS
        for name in (name for name in origin if name.startswith("net.")):
            np.testing.assert_allclose(tensors[name], origin[name], atol=1e-5)
    events = read_journal(run / "journal.jsonl")
    (members,) = [e["members"] for e in events if e["event"] == "init"]
    assert members == [f"member 1 of {source} at 1,000 frames"] * 3
    assert min(m["frames"] for m in json.loads((run / "summary.json").read_text())["members"]) < 1000

    shutil.rmtree(source)
    whole_run(tmp_path, "x", *arguments, "--pbt.tune=gamma", "--train-for-frames=400")
    events = read_journal(run / "journal.jsonl")
    assert [e["event"] for e in events if e["event"] in ("init", "resume")] == ["init", "resume"]


def test_a_run_may_begin_from_the_one_that_it_replaces(source, tmp_path, capsys):
    shutil.copytree(source, tmp_path / "x")
    run = whole_run(tmp_path, "x", f"--init-from={tmp_path / 'x'}", "--overwrite", "--train-for-frames=100")
    assert "member 2 of" in capsys.readouterr().out
    for path in (run / "checkpoints").glob("at_*/policy_*"):
        assert load_file(path)["optim.steps"] > STEPS


WIDER = NetNames((*NAMES.parts[:2], ("heads.policy.weight", 32, (6, 5)), ("heads.policy.bias", 62, (6,))), 96)
"""The same body, a head for six actions."""


def test_a_file_of_weights_alone_fits_without_optimiser(tmp_path):
    views = NAMES.views(snapshot(3).arrays["param"])
    weights = {name: torch.from_numpy(view.copy()) for name, view in views.items()}
    path = tmp_path / "x.safetensors"
    save_file({f"net.{name}": tensor for name, tensor in weights.items()}, path)
    found = fit(path, read_saved(path), NAMES, snapshot(7).arrays, "weights")
    assert found.arrays["param"].tobytes() == snapshot(3).arrays["param"].tobytes()
    assert found.skipped == ()
    found = fit(path, read_saved(path), NAMES, snapshot(7).arrays)
    assert [re.sub(r":.* (\d+) .*", r" \1", text) for text in found.skipped] == ["optim.* 10", "stats.* 4"]


def test_not_strict_loads_the_layers_that_fit_and_no_part_of_the_optimiser(tmp_path):
    source, target = snapshot(3), snapshot(7, names=WIDER)
    path = write(tmp_path / "x", source)
    found = fit(path, read_saved(path), WIDER, target.arrays)
    weights, fresh = WIDER.views(found.arrays["param"]), WIDER.views(target.arrays["param"])
    for name, weight in NAMES.views(source.arrays["param"]).items():
        wanted = weight if name.startswith("body") else fresh[name]
        assert weights[name].tobytes() == wanted.tobytes()
    for name in ("mean", "square", "optimizer_steps", "lr_factor"):
        assert found.arrays[name].tobytes() == target.arrays[name].tobytes()
    assert [name for name in found.loaded if name.startswith("optim")] == []
    assert "net.heads.policy.bias: has (4,) float32, wanted (6,) float32" in found.skipped
    assert any(text.startswith("optim.steps: ") for text in found.skipped)
    assert {name.split(":")[0] for name in found.skipped}.isdisjoint(found.loaded)
    assert_same(target, snapshot(7, names=WIDER))


def test_statistics_of_another_observation_are_skipped_with_their_count(tmp_path):
    target = snapshot(7)
    narrow = {**target.arrays, "obs_mean.x": np.zeros(2, np.float32), "obs_var.x": np.zeros(2, np.float32)}
    narrow["obs_count.x"] = np.array(0.0)
    path = write(tmp_path / "x", snapshot(3))
    found = fit(path, read_saved(path), NAMES, narrow)
    assert [name for name in found.loaded if name.startswith("stats")] == ["stats.return_square"]
    assert found.arrays["obs_count.x"] == 0.0


@pytest.mark.parametrize(
    ("spoil", "error", "reason"),
    [
        (lambda path: path.unlink(), ConfigError, "x is not"),
        (lambda path: path.write_bytes(b"no"), CheckpointBroken, "safetensors"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), CheckpointBroken, "x cannot"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_error(tmp_path, spoil, error, reason):
    path = write(tmp_path / "x", snapshot(3))
    spoil(path)
    with pytest.raises(error, match=reason):
        read_saved(path)


COUNTS = ("member", "generation", "frames", "steps", "updates", "fresh_frames")
HEADER = dict.fromkeys(COUNTS, 0) | {"values": {}}


SPOILT = ({"member": -1}, {"values": []}, {"values": {"a": "b"}}, {"remembered": "often"}, "{", "[" * 100_000)


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_mangled_header_is_one_error(tmp_path, spoilt):
    path = tmp_path / "x"
    text = spoilt if isinstance(spoilt, str) else json.dumps(HEADER | {"remembered": False} | spoilt)
    path.write_bytes(pack(to_tensors(snapshot().arrays, NAMES), {"pbt_rl.member": text}))
    with pytest.raises(CheckpointBroken, match="header"):
        read_saved(path)
