"""A loss of one's own is tried before anything starts: alone, under vmap, with samples that are not valid."""

import dataclasses
import sys

import pytest

from pbt_rl.algos.a3c import A3C
from pbt_rl.algos.appo import APPO, appo_loss
from pbt_rl.learner.own_loss import check_loss
from tests.helpers.packs import HYPERS, settings


def check(change, **others):
    def own(s, hypers, how):
        return change(s, *appo_loss(s, hypers, how))

    algorithm = dataclasses.replace(APPO, loss=own, **others)
    check_loss(dataclasses.replace(settings(), algorithm=algorithm), HYPERS)


@pytest.mark.parametrize("algorithm", [APPO, A3C])
def test_losses_of_the_project_pass(algorithm):
    check_loss(dataclasses.replace(settings(), algorithm=algorithm), HYPERS)


def branch(_, loss, stats):
    return (2 * loss if loss > 0 else 3 * loss), stats


def leaves(*_):
    sys.exit(3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (branch, r"'own' raised RuntimeError \(test_own_loss.py, line \d+\) under torch.func.vmap .*no `if`"),
        (leaves, r"'own' raised SystemExit \(test_own_loss.py, line \d+\): 3"),
        (lambda _, loss, stats: (loss * loss.item(), stats), r"under torch.func.vmap \(no \.item\(\)"),
        (lambda s, loss, stats: (loss, stats | {"kl": s.value}), r"'kl' .*shape \[16\]"),
        (lambda _, loss, stats: (loss, stats | {"kl": 0.5}), "'kl' .*float"),
        (lambda s, _, stats: (s.value.square(), stats), r": the loss .*shape \[16\]"),
        (lambda s, loss, stats: (loss + s.value.mean(), stats), "invalid"),
        (lambda _, loss, stats: (loss.detach(), stats), "no gradient"),
        (lambda _, loss, stats: (loss, stats | {"more": loss}), r"\bmore\b.*Algorithm\(statistics"),
        (lambda _, loss, stats: loss, r"Tensor: .*\(loss, statistics\)"),
    ],
)
def test_what_would_fail_in_an_update_is_one_line(change, said):
    with pytest.raises(ValueError, match=said) as caught:
        check(change)
    assert "\n" not in str(caught.value)


def test_a_hyper_that_nothing_declares_is_named():
    with pytest.raises(ValueError, match=r"loss_hypers: my_coef\."):
        check(lambda _, loss, stats: (loss, stats), loss_hypers=(*APPO.loss_hypers, "my_coef"))
