"""`scripts/lab/sensitivity.py`: the analysis finds a planted effect, and agrees with slow computations."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

LAB = Path(__file__).parents[2] / "scripts" / "lab"


@pytest.fixture
def sensitivity(monkeypatch):
    monkeypatch.syspath_prepend(str(LAB))
    spec = importlib.util.spec_from_file_location("sensitivity", LAB / "sensitivity.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sensitivity", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PERMUTATIONS", 300)
    return module


def test_members_have_legal_values_within_the_factor_of_the_recipe(sensitivity):
    for name in sensitivity.CHOSEN:
        recipe = sensitivity.COMMON | dict(sensitivity.TASKS[name].recipe)
        for point in sensitivity.design():
            found = sensitivity.values(name, point)
            assert set(found) == set(sensitivity.VALUES)
            assert 0 < found["clip_ratio"] <= 1
            assert 0 < found["gamma"] < 1
            assert 1 / 16 <= found["learning_rate"] / recipe["learning_rate"] <= 16


def test_explained_variance_is_that_of_least_squares(sensitivity):
    generator = np.random.default_rng(0)
    x, y = generator.uniform(-1, 1, (40, 3)), generator.normal(size=40)
    a = np.column_stack([np.ones(40), x, x**2])
    residual = y - a @ np.linalg.lstsq(a, y, rcond=None)[0]
    slow = 1 - (residual**2).sum() / ((y - y.mean()) ** 2).sum()
    assert sensitivity.explained(x, y) == pytest.approx(slow)


def test_a_planted_effect_is_found_with_the_best_factor_and_the_others_are_not(sensitivity):
    x = sensitivity.design()
    y = -((x[:, 2] - 0.25) ** 2) + np.random.default_rng(1).normal(0, 0.2, len(x))
    p = sensitivity.p_values(*sensitivity.shares(x, y))
    assert p[2] < 0.05
    assert min(np.delete(p, 2)) > 0.05
    assert sensitivity.best(x, y)[2] == pytest.approx(16**0.25, rel=0.5)


def test_holms_correction_is_that_of_a_slow_loop(sensitivity):
    found, permuted = np.array([0.5, 0.2, 0.9]), np.linspace(0, 1, 300) * np.ones((3, 1))
    raw = [((permuted[i] >= found[i] - 1e-9).sum() + 1) / 301 for i in range(3)]
    slow, least = {}, 0.0
    for n, i in enumerate(sorted(range(3), key=raw.__getitem__)):
        least = max(least, min(1.0, (3 - n) * raw[i]))
        slow[i] = least
    assert sensitivity.p_values(found, permuted) == pytest.approx([slow[i] for i in range(3)])


def test_no_tables_before_the_last_run(sensitivity, tmp_path, monkeypatch):
    monkeypatch.setattr(sensitivity, "ROWS", tmp_path / "none.csv")
    with pytest.raises(SystemExit, match="0 of 192"):
        sensitivity.tell()
