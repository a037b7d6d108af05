"""Members' states and the names of a small network, for tests of checkpoints."""

import numpy as np

from pbt_rl.actors.state_pool import MemberSnapshot, SnapshotHeader
from pbt_rl.record.checkpoints import NetNames

NAMES = NetNames(
    (
        ("body.conv.weight", 0, (2, 3, 2, 2)),
        ("body.conv.bias", 24, (2,)),
        ("heads.policy.weight", 32, (4, 5)),
        ("heads.policy.bias", 52, (4,)),
    ),
    64,
)
VALUES = {"learning_rate": 2.5e-4, "shaping.life_lost": -1.0}


def header(member=0, generation=0, frames=1000, remembered=False):
    return SnapshotHeader(member, generation, VALUES, frames, 200, 10, 30, remembered)


def snapshot(member=0, generation=0, frames=1000, remembered=False, names=NAMES, moments=("mean", "square")):
    """Numbers depend on member, generation and frames."""
    rng = np.random.default_rng((member, generation, frames))
    arrays = {name: flat(names, rng) for name in ("param", *moments)}
    arrays["optimizer_steps"] = np.array(float(frames), np.float64)
    arrays["lr_factor"] = np.array(0.5, np.float32)
    arrays["return_square"] = np.array(rng.random(), np.float32)
    arrays["obs_mean.x"] = rng.random(3).astype(np.float32)
    arrays["obs_var.x"] = rng.random(3).astype(np.float32)
    arrays["obs_count.x"] = np.array(12.0, np.float64)
    return MemberSnapshot(header(member, generation, frames, remembered), arrays)


def flat(names, rng):
    """A vector whose padding is 0, as it is in a pack."""
    vector = np.zeros(names.size, np.float32)
    for view in names.views(vector).values():
        view[...] = rng.standard_normal(view.shape)
    return vector


def assert_same(found, wanted):
    assert found.header == wanted.header
    assert found.arrays.keys() == wanted.arrays.keys()
    for name, array in wanted.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].tobytes() == array.tobytes()
