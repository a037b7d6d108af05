"""A member's arrays by the network's names, and a file laid over another network's arrays."""

import dataclasses

import numpy as np
import pytest
import torch

from pbt_rl.errors import ConfigError
from pbt_rl.record.checkpoints import NetNames, from_tensors, header_to_metadata, pack, to_tensors
from tests.helpers.packs import FRAMES, HYPERS, make_pack
from tests.helpers.snapshots import NAMES, assert_same, snapshot


def names_of(pack):
    layout = pack._layout
    parts = [(f"body.{s.name}", s.start, s.shape) for s in layout.body]
    parts += [(f"heads.{s.name}", s.start, s.shape) for s in layout.heads]
    return NetNames(tuple(parts), layout.size)


def write(path, one, names=NAMES):
    path.write_bytes(pack(to_tensors(one.arrays, names), header_to_metadata(one.header)))
    return path


def test_names_and_shapes_are_those_of_the_network():
    pack = make_pack([HYPERS], layout=FRAMES)
    names = names_of(pack)
    state = pack.export_member(0)
    found = names.views(state["param"].numpy())
    wanted = pack.weights_of(state)
    assert any(len(weight.shape) == 4 for weight in wanted.values())
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert torch.equal(torch.from_numpy(found[name]), weight)


def test_a_packs_member_comes_back_bit_for_bit():
    pack = make_pack([HYPERS], layout=FRAMES)
    arrays = {name: tensor.numpy() for name, tensor in pack.export_member(0).items()}
    one = dataclasses.replace(snapshot(), arrays=arrays)
    found = from_tensors("file", to_tensors(arrays, names_of(pack)), names_of(pack))
    assert_same(dataclasses.replace(one, arrays=found), one)


def test_names_in_the_file():
    named = to_tensors(snapshot().arrays, NAMES)
    layers = [name for name, _, _ in NAMES.parts]
    others = "optim.steps optim.lr_factor stats.return_square"
    others += " stats.obs_mean.x stats.obs_var.x stats.obs_count.x"
    of_layers = {f"{part}.{name}" for part in ("net", "optim.mean", "optim.square") for name in layers}
    assert {*named} == of_layers | {*others.split()}
    assert named["net.body.conv.weight"].shape == (2, 3, 2, 2)


@pytest.mark.parametrize("name", ["stats.param", "optim.param.w", "optim..w", "stats.flat.of_size_n"])
def test_names_of_a_stranger_are_refused_as_layers(name):
    shape = NAMES.size if name == "stats.flat.of_size_n" else 1
    tensors = to_tensors(snapshot().arrays, NAMES) | {name: np.zeros(shape, np.float32)}
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        from_tensors("file", tensors, NAMES)
