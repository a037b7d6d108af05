"""Serial mode over several packs: on one machine and over nodes, the same seed makes the same run, bit for bit."""

import pytest

from pbt_rl.config.command import parse_train
from pbt_rl.run.nodes.backend import Node
from pbt_rl.run.train import train_on
from tests.helpers.serial import OPTIONS, record, weights
from tests.run.nodes.fakes import InProcessBackend
from tests.run.nodes.watched import FLEETS, Watched

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of two packs on one machine, and the same over two nodes."""
    out = tmp_path_factory.mktemp("serial")
    cluster = Watched(InProcessBackend({name: Node(name, 1.0, 0) for name in "ab"}))

    def run(name, *options, over=None):
        noisy = ("--pbt.replace-errors=0", "--pbt.replace-gap=0")  # any lead replaces
        config = parse_train([*OPTIONS, *noisy, f"--out={out}", f"--name={name}", *options])
        assert train_on(over, config) == 0
        return out / name

    return [run("here"), run("over", "--nodes=ray", over=cluster)]


@pytest.mark.parametrize("part", [weights, record])
def test_nodes_make_no_difference(runs, part):
    here, over = map(part, runs)
    assert here == over


def test_members_were_replaced_by_others_of_the_other_pack(runs):
    """Else the comparison above says little."""
    applied = [e for e in record(runs[0]) if e["event"] == "applied" and e["donor"] is not None]
    assert sum(event["donor"] % 2 != event["member"] % 2 for event in applied) >= 2
    assert all(event["donor_unchanged"] for event in applied)


def test_copied_weights_are_those_of_the_donor_which_stays_as_it_is(runs):
    assert runs
    found = FLEETS[-1].replacements
    assert len(found) >= 2
    assert all(replacement.holds() for replacement in found)
