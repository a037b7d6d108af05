"""Populations over a real cluster of Ray, all of it on this machine. `make test-nodes` installs Ray and runs this."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'pbt-rl[ray]'")

from pbt_rl.config.command import parse_train
from pbt_rl.run.nodes.node_fleet import connected
from pbt_rl.run.train import train, train_on
from tests.helpers import serial
from tests.run.nodes.clusters import ROOT, Nodes, Run
from tests.run.nodes.watched import FLEETS, Watched

pytestmark = [pytest.mark.timeout(900), pytest.mark.nodes]


@pytest.fixture(scope="module")
def nodes():
    cluster = Nodes(2)
    yield cluster
    cluster.close()


@pytest.fixture
def start(nodes, tmp_path):
    runs = []
    while len(nodes.workers) < 2:
        nodes.add()

    def begin(name, *options, command="train", address=True):
        over = [f"--nodes=ray:{nodes.address}", "--devices=cpu,cpu"] if address else []
        runs.append(Run(tmp_path, name, *over, *options, command=command))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill()


def audit(run):
    command = [sys.executable, "-m", "pbt_rl", "audit", str(run.folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def packs(run):
    """Member -> the pack that it belongs to."""
    found = {member: member % 2 for member in range(4)}
    return found | {event["member"]: event["pack"] for event in run.events("moved")}


def crossing(run):
    """Replacements across nodes."""
    found = packs(run)
    copied = (event for event in run.events("applied") if event["donor"] is not None)
    return [event for event in copied if found[event["donor"]] != found[event["member"]]]


def test_replacements_cross_nodes_and_a_driver_that_is_killed_goes_on(start):
    run = start("crossing", "--save-every-seconds=3")
    run.wait(lambda: len(crossing(run)) >= 2 and run.events("checkpoint"), 250)
    assert all(event["donor_unchanged"] for event in run.events("applied"))
    run.kill()
    again = start("crossing", "--trust", command="resume", address=False)
    again.wait(lambda: again.events("resume"))
    again.comparisons()
    assert again.end(signal.SIGINT) == 130, again.text()
    audited = audit(again)
    assert audited.returncode == 0, audited.stdout + audited.stderr


def test_a_population_shrinks_and_grows_with_its_cluster(nodes, start):
    run = start("shrinking", "--save-every-seconds=4", "--slot-frames=4000")
    run.comparisons()
    run.wait(lambda: run.events("checkpoint"))
    nodes.kill(nodes.workers[0])
    run.wait(lambda: len(run.events("moved")) >= 2)
    *before, lost = run.events("pack_lost")  # processes die one by one: the learner may do so first
    assert {event["pack"] for event in before} <= {lost["pack"]}
    assert lost["kind"] == "machine"
    assert {m["member"] for m in lost["members"]} in ({0, 2}, {1, 3})
    assert all(m["from"]["checkpoint"] for m in lost["members"]), lost
    moved = {event["member"] for event in run.events("moved")}
    run.wait(lambda: moved & {e["enters"] for e in run.events("slot")[-2:]})
    nodes.add()
    run.wait(lambda: len(run.events("moved")) >= 4)
    assert len(set(packs(run).values())) == 2
    run.comparisons()
    assert run.end(signal.SIGTERM) == 143, run.text()
    assert audit(run).returncode == 0


def test_a_raylet_that_is_stopped_for_a_while_is_no_loss(nodes, start):
    run = start("stopped")
    run.comparisons()
    os.kill(nodes.raylet(nodes.workers[0]), signal.SIGSTOP)
    time.sleep(20)
    os.kill(nodes.raylet(nodes.workers[0]), signal.SIGCONT)
    run.comparisons()
    assert run.events("pack_lost") == []
    assert run.end(signal.SIGINT) == 130


def test_a_node_whose_end_is_announced_is_left_before(nodes, start):
    nodes.add()
    run = start("leaving")
    run.comparisons()
    log = run.log.read_text()
    worker = next(one for one in nodes.workers if f"({one.node_id[:8]})" in log)
    nodes.drain(worker)
    run.wait(lambda: run.events("pack_lost"))
    run.comparisons()
    nodes.kill(worker)
    run.comparisons()
    [lost] = run.events("pack_lost")
    assert "taken away" in lost["cause"]
    assert all(m["from"]["checkpoint"] for m in lost["members"]), "the run was saved at once"
    assert run.events("moved") == [], "there was room for the pack"
    assert run.end(signal.SIGINT) == 130, run.text()


def test_serial_mode_makes_the_same_run_as_on_one_machine(nodes, tmp_path):
    options = [*serial.OPTIONS, "--pbt.replace-errors=0", "--pbt.replace-gap=0", f"--out={tmp_path}"]
    here = parse_train([*options, "--name=here"])
    over = parse_train([*options, "--name=over", f"--nodes=ray:{nodes.address}"])
    assert train(here) == 0
    with connected(over) as cluster:
        assert train_on(Watched(cluster.backend), over) == 0
    assert serial.record(tmp_path / "here") == serial.record(tmp_path / "over")
    assert serial.weights(tmp_path / "here") == serial.weights(tmp_path / "over")
    found = FLEETS[-1].replacements
    assert len(found) >= 2, "replacements across nodes"
    assert all(replacement.holds() for replacement in found)
