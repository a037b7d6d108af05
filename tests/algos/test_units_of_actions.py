"""Normals in the unit of an action's bounds."""

from math import inf

import numpy as np
import torch

from pbt_rl.algos.distributions import DiagonalGaussian, make_distribution

LOW, HIGH = (5.0, -1.0), (35.0, 1.0)
UNITS = ((20.0, 0.0), (15.0, 1.0))


def test_a_draw_is_scaled_to_the_bounds_and_cut_off_at_them():
    scaled = make_distribution((), 2, low=LOW, high=HIGH, units=UNITS)
    drawn = np.array([[0.0, 0.0], [1.0, 1.0], [-0.4, 0.25], [-3.0, 3.0]], np.float32)
    assert scaled.delivered(drawn).tolist() == [[20, 0], [35, 1], [14, 0.25], [5, 1]]
    assert scaled.greedy(torch.tensor([-0.4, 0.25, 7.0, 8.0])).tolist() == [14, 0.25]


def test_without_a_bound_a_draw_is_left_as_it_is():
    units = ((0.0, 0.0, 7.0, 2.0), (1.0, 1.0, 1.0, 2.0))
    some = make_distribution((), 4, low=(-inf, -inf, 7.0, 0.0), high=(inf, 0.0, inf, 4.0), units=units)
    drawn = np.array([[1e6, 1e6, 1e6, 1e6], [-1e6, -1e6, -1e6, -1e6]], np.float32)
    wanted = [[1e6, 0, 1e6 + 7, 4], [-1e6, -1e6, 7, 0]]
    assert some.delivered(drawn).tolist() == wanted
    assert some.delivered_here(torch.from_numpy(drawn)).tolist() == wanted
    assert some.greedy(torch.cat((torch.from_numpy(drawn), torch.zeros(2, 4)), 1)).tolist() == wanted


def test_what_is_learned_from_is_the_draw_itself():
    scaled = make_distribution((), 2, low=LOW, high=HIGH, units=UNITS)
    plain, params = DiagonalGaussian(2), torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    action, log_prob = scaled.sample(params, torch.Generator().manual_seed(1))
    wanted, density = plain.sample(params, torch.Generator().manual_seed(1))
    assert torch.equal(action, wanted)
    assert torch.equal(log_prob, density)
    assert torch.equal(scaled.log_prob(params, action), plain.log_prob(params, action))
