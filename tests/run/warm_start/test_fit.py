"""A file laid over another network's arrays."""

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pbt_rl.errors import CheckpointBroken, ConfigError
from pbt_rl.record.checkpoints import NetNames, pack, to_tensors
from pbt_rl.run.warm_start.fit import fit, read_saved
from tests.helpers.snapshots import NAMES, assert_same, snapshot
from tests.record.test_net_names import write

WIDER = NetNames((*NAMES.parts[:2], ("heads.policy.weight", 32, (6, 5)), ("heads.policy.bias", 62, (6,))), 96)
"""The same body, a head for six actions."""


def test_fitting_a_whole_state_loads_all_of_it_and_leaves_the_target_alone(tmp_path):
    source, target = snapshot(3, 2), snapshot(7)
    found = fit(read_saved(write(tmp_path / "x", source)), NAMES, target.arrays, strict=True)
    assert_same(dataclasses.replace(source, arrays=found.arrays), source)
    assert read_saved(tmp_path / "x").header == source.header
    assert found.skipped == ()
    assert set(found.loaded) == to_tensors(source.arrays, NAMES).keys()
    assert_same(target, snapshot(7))


@pytest.mark.parametrize(
    ("optimizer", "normalisers", "loaded"),
    [(False, True, ["net", "stats"]), (True, False, ["net", "optim"]), (False, False, ["net"])],
)
def test_what_is_not_asked_for_stays_fresh(tmp_path, optimizer, normalisers, loaded):
    source, target = snapshot(3), snapshot(7)
    path = write(tmp_path / "x", source)
    found = fit(
        read_saved(path), NAMES, target.arrays, strict=True, optimizer=optimizer, normalisers=normalisers
    )
    assert sorted({name.split(".")[0] for name in found.loaded}) == loaded
    for name, array in to_tensors(found.arrays, NAMES).items():
        origin = source if name.split(".")[0] in loaded else target
        assert array.tobytes() == to_tensors(origin.arrays, NAMES)[name].tobytes()


def test_a_file_of_weights_alone_fits_without_optimiser(tmp_path):
    weights = {
        name: torch.from_numpy(v.copy()) for name, v in NAMES.views(snapshot(3).arrays["param"]).items()
    }
    path = tmp_path / "x.safetensors"
    save_file({f"net.{name}": tensor for name, tensor in weights.items()}, path)
    found = fit(read_saved(path), NAMES, snapshot(7).arrays, strict=True, optimizer=False, normalisers=False)
    assert found.arrays["param"].tobytes() == snapshot(3).arrays["param"].tobytes()
    assert read_saved(path).header is None
    with pytest.raises(ConfigError) as caught:
        fit(read_saved(path), NAMES, snapshot(7).arrays, strict=True)
    lines = str(caught.value).splitlines()
    assert lines[1:] == ["  optim.*: has none, wanted 10 arrays", "  stats.*: has none, wanted 4 arrays"]


def test_layers_that_do_not_fit_are_named(tmp_path):
    path = write(tmp_path / "x", snapshot(3))
    with pytest.raises(ConfigError) as caught:
        fit(read_saved(path), WIDER, snapshot(names=WIDER).arrays, strict=True, optimizer=False)
    assert str(caught.value).splitlines() == [
        f"{path} does not fit the network of this run:",
        "  net.heads.policy.weight: has (4, 5) float32, wanted (6, 5) float32",
        "  net.heads.policy.bias: has (4,) float32, wanted (6,) float32",
    ]


def test_not_strict_loads_the_layers_that_fit_and_no_part_of_the_optimiser(tmp_path):
    source, target = snapshot(3), snapshot(7, names=WIDER)
    found = fit(read_saved(write(tmp_path / "x", source)), WIDER, target.arrays, strict=False)
    weights, fresh = WIDER.views(found.arrays["param"]), WIDER.views(target.arrays["param"])
    for name, weight in NAMES.views(source.arrays["param"]).items():
        wanted = weight if name.startswith("body") else fresh[name]
        assert weights[name].tobytes() == wanted.tobytes()
    for name in ("mean", "square", "optimizer_steps", "lr_factor"):
        assert found.arrays[name].tobytes() == target.arrays[name].tobytes()
    assert [name for name in found.loaded if name.startswith("optim")] == []
    assert "net.heads.policy.bias: has (4,) float32, wanted (6,) float32" in found.skipped
    assert "optim.steps: others of optim.* do not fit" in found.skipped
    assert {name.split(":")[0] for name in found.skipped}.isdisjoint(found.loaded)


def test_statistics_of_another_observation_are_skipped_with_their_count(tmp_path):
    target = snapshot(7)
    narrow = {**target.arrays, "obs_mean.x": np.zeros(2, np.float32), "obs_var.x": np.zeros(2, np.float32)}
    narrow["obs_count.x"] = np.array(0.0)
    found = fit(read_saved(write(tmp_path / "x", snapshot(3))), NAMES, narrow, strict=False)
    assert [name for name in found.loaded if name.startswith("stats")] == ["stats.return_square"]
    assert found.arrays["obs_count.x"] == 0.0


@pytest.mark.parametrize(
    ("spoil", "error", "reason"),
    [
        (lambda path: path.unlink(), ConfigError, "is not a file"),
        (lambda path: (path.unlink(), path.mkdir()), ConfigError, "is not a file"),
        (lambda path: path.write_bytes(b"no"), CheckpointBroken, "cannot be used: it is no safetensors file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), CheckpointBroken, "cannot be used"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_error(tmp_path, spoil, error, reason):
    path = write(tmp_path / "x", snapshot(3))
    spoil(path)
    with pytest.raises(error, match=reason):
        fit(read_saved(path), NAMES, snapshot().arrays, strict=False)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"member": 1}',
        '{"member":-1,"generation":0,"values":{},"frames":0,"steps":0,"updates":0,"fresh_frames":0,"remembered":false}',
        '{"member":0,"generation":0,"values":[],"frames":0,"steps":0,"updates":0,"fresh_frames":0,"remembered":false}',
        '{"member":0,"generation":0,"values":{"a":"b"},"frames":0,"steps":0,"updates":0,"fresh_frames":0,"remembered":false}',
        '{"member":0,"generation":0,"values":{},"frames":0,"steps":0,"updates":0,"fresh_frames":0,"remembered":"often"}',
    ],
)
def test_a_mangled_header_is_one_error(tmp_path, text):
    path = tmp_path / "x"
    path.write_bytes(pack(to_tensors(snapshot().arrays, NAMES), {"pbt_rl.member": text}))
    with pytest.raises(CheckpointBroken, match="header"):
        fit(read_saved(path), NAMES, snapshot().arrays, strict=False)
