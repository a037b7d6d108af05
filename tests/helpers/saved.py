"""Runs with checkpoints of a pack's slots, for tests of what reads them."""

import json

import torch

from pbt_rl.actors.state_pool import MemberSnapshot, SnapshotHeader
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.envs.lookup import probe
from pbt_rl.learner.build import build_pack, net_names
from pbt_rl.plan import PackPlan
from pbt_rl.record.checkpoint_writer import CheckpointWriter
from pbt_rl.record.folder import RunFolder, to_json
from tests.helpers.checkpoints import TIMEOUT_SECONDS, ended

KEEP = 9


def write_run(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_json(config)))
    return folder


def save(run, pack, members, best=None, frames=1000, **state):
    """Write one checkpoint. members: id -> slot of the pack. Return its folder."""
    writer = CheckpointWriter(RunFolder(run).checkpoints, net_names(pack), KEEP, warn=print)
    writer.begin_checkpoint(frames, {"best_member": best, **state}, len(members), kept=False)
    for member, slot in members.items():
        arrays = {name: tensor.numpy() for name, tensor in pack.export_member(slot).items()}
        header = SnapshotHeader(member, 0, {"gamma": 0.5}, frames, 200, 10, 0)
        writer.add(MemberSnapshot(header, arrays), lambda: None)
    written = ended(writer)
    assert writer.close(TIMEOUT_SECONDS)
    return written.path


def saved_run(folder, config):
    """A run whose member 0, with fresh weights, is the best."""
    write_run(folder, config)
    values = {name: hyper.default for name, hyper in hyper_table(config.hypers).items()}
    spec = probe(config.env, config.env_options)
    pack = build_pack(config, spec, PackPlan("cpu", (0,), 1, 1, 1, 1, 1, 1), [values], 5)
    head = pack.state["param"]
    head += 0.1 * torch.randn(head.shape, generator=torch.Generator().manual_seed(0))  # decided preferences
    save(folder, pack, {0: 0}, best=0)
    return folder
