"""Weights on disk: what is saved is loaded, bit for bit, and what does not fit is one clear error."""

import json

import pytest
import torch
from safetensors.torch import load_file

from pbt_rl.errors import ConfigError
from pbt_rl.record.checkpoint import load_weights, save_member

NORMALISERS = {"obs_mean.x": torch.tensor([0.5, -1.0]), "return_square": torch.tensor(2.25)}
VALUES = {"learning_rate": 1e-3, "shaping.life_lost": -1.0}


def net(hidden=4):
    return torch.nn.Sequential(torch.nn.Linear(3, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 2))


def save(path, saved):
    save_member(path, saved.state_dict(), NORMALISERS, 3, VALUES)


def test_weights_and_normalisers_come_back_bit_for_bit(tmp_path):
    path = tmp_path / "checkpoints" / "policy_03.safetensors"
    saved, loaded = net(), net()
    save(path, saved)
    found = load_weights(path, loaded)
    assert found.keys() == NORMALISERS.keys()
    assert all(torch.equal(found[name], NORMALISERS[name]) for name in NORMALISERS)
    for name, weight in saved.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name])
    assert json.loads(path.with_suffix(".json").read_text()) == {"member": 3, "values": VALUES}
    assert sorted(p.name for p in path.parent.iterdir()) == ["policy_03.json", "policy_03.safetensors"]


def test_a_view_into_a_larger_tensor_is_saved_as_what_it_shows(tmp_path):
    table = torch.arange(12.0).reshape(3, 4)
    save_member(tmp_path / "x.safetensors", {"w": table[:, 1]}, {}, 0, {})
    assert load_file(tmp_path / "x.safetensors")["net.w"].tolist() == [1.0, 5.0, 9.0]


def test_a_write_that_fails_leaves_the_older_weights(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    save(path, net())
    before = path.read_bytes()

    def full(tensors, name):
        name.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pbt_rl.record.checkpoint.save_file", full)
    with pytest.raises(OSError, match="No space"):
        save(path, net())
    assert path.read_bytes() == before


def test_missing_weights_are_one_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="does not exist: the run saved no weights"):
        load_weights(tmp_path / "policy_00.safetensors", net())


def test_weights_of_another_network_are_one_clear_error(tmp_path):
    save(tmp_path / "x.safetensors", net())
    with pytest.raises(ConfigError, match=r"does not fit the network of the run's config.json"):
        load_weights(tmp_path / "x.safetensors", net(hidden=5))
