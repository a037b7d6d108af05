"""Grids of codes: small images that an MLP reads, as the numbers that they hold."""

import torch

from pbt_rl.algos.encoders import ObsEncoder, is_grid
from pbt_rl.algos.normalizers import Normalizers

GRID = (3, 7, 7)


def test_a_grid_is_normalised_as_numbers_by_its_own_statistics():
    assert is_grid(GRID, "uint8")
    assert not is_grid((3, 36, 36), "uint8")
    normalizers = Normalizers({"grid": 147}, returns=False)
    stats = normalizers.empty(lambda *shape, dtype=torch.float32: torch.zeros((1, *shape), dtype=dtype))
    grids = torch.randint(
        0, 11, (1, 64, 8, *GRID), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    normalizers.observe_obs(stats, slice(0, 1), {"grid": grids}, torch.ones(1, 64, 8, dtype=torch.bool))
    seen = normalizers.normalize_obs(stats, slice(0, 1), {"grid": grids})["grid"]
    assert seen.shape == grids.shape
    assert float(seen.mean().abs()) < 1e-4
    assert abs(float(seen.std()) - 1) < 1e-2


def test_pixels_that_an_mlp_reads_are_divided_by_255_unless_they_were_normalised():
    encoder = ObsEncoder({"grid": (GRID, "uint8")}, "mlp", (8,))
    grid = torch.randint(0, 256, (5, *GRID), dtype=torch.uint8)
    assert torch.allclose(encoder({"grid": grid}), encoder({"grid": grid / 255}), atol=1e-6)
    assert not torch.allclose(encoder({"grid": grid}), encoder({"grid": grid.float()}))


def test_a_picture_that_is_called_as_the_last_action_is_a_picture():
    encoder = ObsEncoder({"last_action_reward": ((3, 40, 40), "uint8"), "x": ((2,), "float32")}, "auto", (8,))
    assert encoder.names == ("last_action_reward", "x")
    assert encoder.size == 8
