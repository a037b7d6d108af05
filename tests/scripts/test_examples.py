"""The examples do what their first lines say, in their quick form."""

import importlib
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "lab"
sys.path.insert(0, str(SCRIPTS))


def example(name):
    return importlib.import_module(f"papers.{name}")


@pytest.mark.parametrize(
    ("variant", "lowest", "highest"),
    [
        ("grid search", 0.3895, 0.39),
        ("explore only", 1.12, 1.18),
        ("exploit only", 1.171, 1.172),
        ("PBT", 1.18, 1.195),
        ("exploit that copies h too", 0.3895, 0.39),
    ],
)
def test_quadratic(variant, lowest, highest):
    quadratic = example("quadratic")
    scores = [quadratic.best_score(variant, 0.01, seed) for seed in range(7)]
    assert lowest <= median(scores) <= highest


def test_triangle_needs_a_schedule():
    triangle = example("triangle")
    constant = max(triangle.best(triangle.train("random", seed)) for seed in range(4))
    found = [triangle.train("pbt", seed) for seed in range(4)]
    assert constant < 150
    assert median(triangle.best(result) for result in found) == triangle.GOAL
    rates = [rate for _, rate in triangle.schedule(found[0])]
    assert max(rates) > 2 * rates[0]
    assert max(rates) > 2 * rates[-1]


def test_a_greedy_pbt_loses_and_several_frequencies_repair_it():
    deceptive = example("deceptive")
    scores = {
        name: median(deceptive.best_score(controller(seed)) for seed in range(5))
        for name, controller in deceptive.METHODS.items()
    }
    greedy = scores["greedy PBT, every 5 steps"]
    assert greedy < scores["random search"] - 0.05
    assert greedy < scores["MF-PBT, every 5 to 50 steps"] - 0.05
    assert greedy < scores["patient PBT, every 50 steps"] - 0.05


def test_digits():
    pytest.importorskip("sklearn")
    digits = example("digits")
    result, test = digits.train("pbt", epochs=12)
    first = [e.objective for e in result.history if e.steps == 1]
    assert max(first) < 0.85 < result.members[result.best].objective
    assert test > 0.85


@pytest.mark.slow
def test_gan_is_the_same_in_two_processes():
    gan = example("gan")
    here, there = (gan.train("pbt", steps=6, workers=workers) for workers in (0, 2))
    assert here.members == there.members
    assert max(here.objectives) > 0.1


def test_the_gan_learns_and_its_score_knows_collapse():
    import torch

    gan = example("gan")
    member = gan.Gan(0, 0)
    before = member.evaluate()
    for _ in range(20):
        member.step({"generator_rate": 1e-3, "discriminator_rate": 1e-3})
    assert member.evaluate() > before + 0.1
    for parameter in member.generator.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        member.generator[-1].bias.copy_(gan.CENTRES[3])
    assert member.evaluate() == pytest.approx(1 / gan.MODES)


@pytest.mark.parametrize(
    "name", ["digits", *(pytest.param(name, marks=pytest.mark.long) for name in ("gan", "characters"))]
)
def test_quick_runs(name):
    pytest.importorskip("sklearn")
    command = [sys.executable, str(SCRIPTS / "papers" / f"{name}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["random", "pbt"]
