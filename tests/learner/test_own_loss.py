"""A loss of one's own is tried before anything starts: alone, under vmap, with samples that are not valid."""

import dataclasses
import math
import sys

import pytest
import torch

from pbt_rl.algos.a3c import A3C
from pbt_rl.algos.appo import APPO, appo_loss, gae_of_batch, vtrace_targets
from pbt_rl.algos.lookup import load
from pbt_rl.config.command import parse_train
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import build_net
from pbt_rl.learner.own_loss import check_loss, check_targets, example_samples
from tests.helpers.packs import HYPERS, settings

SPEC = EnvSpec("toy/x", {"obs": ArraySpec((4,), "float32")}, ActionSpec(nvec=(3, 2)))


def check(change, **others):
    def own(s, hypers, how):
        return change(s, *appo_loss(s, hypers, how))

    algorithm = dataclasses.replace(APPO, loss=own, **others)
    check_loss(dataclasses.replace(settings(), algorithm=algorithm), HYPERS)


@pytest.mark.parametrize("algorithm", [APPO, A3C])
def test_losses_of_the_project_pass(algorithm):
    check_loss(dataclasses.replace(settings(), algorithm=algorithm), HYPERS)


def test_a_loss_with_other_parameters_is_not_a_mistake_of_a_file_of_the_project():
    how = dataclasses.replace(settings(), algorithm=dataclasses.replace(APPO, loss=lambda _: None))
    with pytest.raises(ValueError, match=r"raised TypeError for 16 samples: "):
        check_loss(how, HYPERS)


def branch(_, loss, stats):
    return (2 * loss if loss > 0 else 3 * loss), stats


def leaves(*_):
    sys.exit(3)


def spoiled(s, loss, stats):
    ratio = s.log_prob.exp()
    squared = ratio.square()
    ratio.mul_(2)
    return loss + torch.where(s.valid, squared, 0.0).sum(), stats


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (branch, r"'own' raised RuntimeError \(test_own_loss.py, line \d+\) under torch.func.vmap .*no `if`"),
        (leaves, r"'own' raised SystemExit \(test_own_loss.py, line \d+\) .*: 3"),
        (lambda _, loss, stats: (loss * loss.item(), stats), r"under torch.func.vmap \(no \.item\(\)"),
        (lambda s, loss, stats: (loss, stats | {"kl": s.value}), r"'kl' .*shape \[16\]"),
        (lambda _, loss, stats: (loss, stats | {"kl": 0.5}), "'kl' .*float"),
        (lambda s, _, stats: (s.value.square(), stats), r": the loss .*shape \[16\]"),
        (lambda s, loss, stats: (loss + s.value.mean(), stats), "invalid"),
        (lambda _, loss, stats: (loss.detach(), stats), "no gradient"),
        (lambda _, loss, stats: (loss, stats | {"more": loss}), r"\bmore\b.*Algorithm\(statistics"),
        (lambda s, loss, stats: (loss + 0 * s.valid.float().dot(torch.ones(16)), stats), "24 samples"),
        (lambda _, loss, stats: loss, r"Tensor: .*\(loss, statistics\)"),
        (spoiled, "RuntimeError .*in the backward pass"),
    ],
)
def test_what_would_fail_in_an_update_is_one_line(change, said):
    with pytest.raises(ValueError, match=said) as caught:
        check(change)
    assert "\n" not in str(caught.value)


def check_functions(*, use_vtrace=False, **changes):
    how = dataclasses.replace(
        settings(), use_vtrace=use_vtrace, algorithm=dataclasses.replace(APPO, **changes)
    )
    check_targets(how, HYPERS, example_samples(SPEC, 8, 3))


@pytest.mark.parametrize("changes", [{}, {"fixed_advantage": None}, {"use_vtrace": True}])
def test_functions_of_the_project_pass(changes):
    check_functions(**changes)


def own(change):
    return {"fixed_advantage": lambda s, hypers, how: change(s, gae_of_batch(s, hypers, how))}


def own_targets(change):
    return {"fixed_advantage": None, "targets": lambda *given: change(*vtrace_targets(*given))}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (own(lambda s, _: s.rewards), r"^fixed_advantage .*AttributeError \(test_own_loss.py, line \d+\): "),
        (own(lambda _, advantage: advantage[:, 0]), r"\[2, 5\] for \[2, 3, 5\]"),
        (own(lambda _, advantage: advantage * math.nan), "NaN"),
        ({"fixed_advantage": lambda _s, hypers, _: hypers["beta"]}, r"'beta'.*target_hypers"),
        ({"fixed_advantage": leaves}, r"^fixed_advantage 'leaves' raised SystemExit"),
        ({"target_hypers": ("gae_lambda",)}, "target_hypers lacks gamma"),
        (own_targets(lambda target, _: target), r"^targets .*\[2, 3, 5\]: .*\(targets, advantages\)"),
        (own_targets(lambda target, advantage: (target.mean(1), advantage)), r"\[2, 5\] for \[2, 3, 5\]"),
        (own_targets(lambda target, advantage: (target / 0, advantage)), "NaN"),
    ],
)
def test_functions_that_would_fail_in_an_update_are_one_line(changes, said):
    with pytest.raises(ValueError, match=said) as caught:
        check_functions(**changes)
    assert "\n" not in str(caught.value)


@dataclasses.dataclass(frozen=True)
class Undeclared:
    beta: float = 1.0


@dataclasses.dataclass(frozen=True)
class Without:
    """A dataclass without any hyper."""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("optimizer", "adam"),
        ("hypers", {"beta": 1.0}),
        ("hypers", Undeclared),
        ("hypers", Without()),
        ("statistics", None),
        ("target_hypers", "gamma"),
        ("targets", None),
    ],
)
def test_a_field_of_a_wrong_type_is_named_with_its_value(field, value, monkeypatch):
    monkeypatch.setattr(
        sys.modules[__name__], "OWN", dataclasses.replace(APPO, **{field: value}), raising=False
    )
    with pytest.raises(ValueError, match=rf"{__name__}:OWN.*\({field}=") as caught:
        load(f"{__name__}:OWN")
    assert repr(value) in str(caught.value)


def test_a_dataclass_of_hypers_may_be_empty(monkeypatch):
    monkeypatch.setattr(
        sys.modules[__name__], "OWN", dataclasses.replace(APPO, hypers=Without), raising=False
    )
    assert load(f"{__name__}:OWN").hypers is Without


def test_a_hyper_that_nothing_declares_is_named():
    with pytest.raises(ValueError, match=r"loss_hypers: my_coef\."):
        check(lambda _, loss, stats: (loss, stats), loss_hypers=(*APPO.loss_hypers, "my_coef"))
    with pytest.raises(ValueError, match=r"target_hypers: gama\."):
        check(lambda _, loss, stats: (loss, stats), target_hypers=("gama",))


@pytest.mark.parametrize(
    ("recipe", "named"),
    [
        (lambda of_env: of_env["absent"], r"recipe raised KeyError \(test_own_loss.py, line \d+\): 'absent'"),
        (lambda _: ["learner.epochs"], "recipe returned list"),
        (lambda _: {"learner.absent": 1}, "learner.absent"),
        (lambda _: {"learner.epochs": "many"}, "learner.epochs='many'"),
        (lambda _: sys.exit("enough"), "recipe raised SystemExit .*: enough"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_one_line(recipe, named, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "OWN", dataclasses.replace(APPO, recipe=recipe), raising=False)
    with pytest.raises(ConfigError, match=rf"--algo {__name__}:OWN .*{named}"):
        parse_train(["--env=toy/identity", f"--algo={__name__}:OWN"])


def test_options_of_a_recipe_are_read_as_options_of_a_file_are(monkeypatch):
    recipe = {"learner": {"epochs": 3}, "hypers.learning-rate": "0.002"}
    own = dataclasses.replace(APPO, recipe=lambda _: recipe)
    monkeypatch.setattr(sys.modules[__name__], "OWN", own, raising=False)
    config = parse_train(["--env=toy/identity", f"--algo={__name__}:OWN"])
    assert (config.learner.epochs, config.hypers.learning_rate) == (3, 0.002)


@pytest.mark.parametrize(
    ("network", "named"),
    [
        (lambda net, _: net.absent, r"network raised AttributeError \(test_own_loss.py, line \d+\)"),
        (lambda _net, _inputs: None, "network returned NoneType"),
        (lambda _net, _inputs: sys.exit(3), "network raised SystemExit"),
    ],
)
def test_a_network_of_an_algorithm_that_cannot_be_used_is_one_line(network, named):
    config = parse_train(["--env=toy/identity"])
    with pytest.raises(ConfigError, match=f"toy/x.*{named}"):
        build_net(SPEC, config.model, dataclasses.replace(APPO, network=network))
