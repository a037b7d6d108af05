"""Memory of a run, known before it starts."""

import re

import pytest

from pbt_rl.envs.base import ArraySpec
from pbt_rl.errors import ConfigError
from pbt_rl.learner.learner import Learner
from pbt_rl.plan import Machine
from pbt_rl.run.limits import (
    GIB,
    HOST,
    MIB,
    SUPERVISOR_BYTES,
    HostMemory,
    check_memory,
    describe_rows,
    estimate,
    host_memory,
    memory_notes,
    pack_bytes,
    rollouts_of,
)
from pbt_rl.run.memory import Memory
from tests.helpers.driven import DrivenLearner
from tests.helpers.plans import fresh, resolved
from tests.helpers.pretend import DEVICE, PretendRecorder, pretend_device


@pytest.mark.parametrize(
    "options", [(), ("--mode=sync",), ("--model.core=gru", "--algo=a3c"), ("--slots=2",)], ids=str
)
def test_the_large_parts_are_what_a_learner_allocates(options):
    run = resolved("toy/identity", "--num-policies=3", "--model.encoder=mlp", *options)
    memory = Memory(run, fresh(run))
    learner = Learner(memory.learners[0], _Silent())
    (pack,), plan = estimate(run).packs, run.plan.packs[0]

    rollouts = [vector_env.rollout for vector_env in learner.sampler.vector_envs]
    while len(learner.shared.free):
        rollouts.append(learner.shared.free.popleft())
    assert len(rollouts) == rollouts_of(run.config, plan)
    arrays = [x for r in rollouts for x in (*r.obs.values(), *vars(r).values()) if hasattr(x, "nbytes")]
    counts = sum(r.weights_version.nbytes + r.lineage_version.nbytes for r in rollouts)
    assert sum(x.nbytes for x in arrays) - counts == pack.rollouts

    weights = learner.pack.weights
    masters = {id(x): x for x in (weights.working, weights.grad, weights.working_grad, weights.serving)}
    masters |= {id(x): x for x in (*learner.pack.state.values(), weights.serving_heads)}
    assert sum(x.nbytes for x in masters.values()) == pytest.approx(pack.weights, rel=0.05)
    member_bytes = sum(x.nbytes for x in learner.pack.export_member(0).values())
    assert pack.parked == pytest.approx(member_bytes * (3 - plan.slots), rel=0.05)
    boxes = [box for record in memory.actors for box in record.boxes]
    assert sum(len(box.memory) for box in boxes) == pytest.approx(pack.mailboxes, rel=0.3)
    memory.close()


def test_the_replay_is_counted():
    run = resolved("toy/treasure", "--num-policies=2", "--algo=unreal")
    (pack,), plan = estimate(run).packs, run.plan.packs[0]
    of_step = 2 * 28 * 28 + 4 * 5 + 4  # the image, the last action and reward, the action
    streams = min(plan.envs_per_policy, 16 // plan.vector_envs) * plan.vector_envs
    assert pack.replay == 2 * streams * 2000 * of_step
    without = estimate(resolved("toy/treasure", "--algo=a3c"))
    assert estimate(run).needed[HOST] > without.needed[HOST] + pack.replay
    assert resolved("toy/treasure").config.algorithm.auxiliary is None


class _Silent:
    def send(self, _message):
        pass

    def poll(self):
        return False


def test_policies_of_atari_are_estimated_as_they_were_measured():
    """PSS of a learner in a run."""
    for policies, measured in ((1, 501), (4, 650), (40, 2500)):
        options = (f"--num-policies={policies}", "--learner.precision=bf16")
        needed = estimate(resolved("atari/pong", *options))
        pack = needed.packs[0]
        learner = needed.needed[HOST] - pack.actors - pack.environments - pack.mailboxes - SUPERVISOR_BYTES
        assert learner / MIB == pytest.approx(measured, rel=0.3)


@pytest.fixture
def there(monkeypatch):
    """Return a function that sets what the host has and has available, and the memory of a GPU, in GiB."""

    def have(total, available, gpu=0):
        host = HostMemory(total * GIB, available * GIB)
        monkeypatch.setattr("pbt_rl.run.limits.host_memory", lambda: host)
        monkeypatch.setattr("pbt_rl.run.limits._device_bytes", lambda _device: gpu * GIB)

    return have


def test_more_than_fits_is_refused_with_what_fits(there):
    there(23, 22)
    run = resolved("atari/pong", "--num-policies=500")
    with pytest.raises(ConfigError, match=r"memory: .*[0-9.]+ GiB .*\b23\.0 GiB"):
        check_memory(run)
    check_memory(resolved("atari/pong", "--num-policies=500", "--slots=8"))
    run = resolved("atari/pong", "--num-policies=4", "--envs-per-vector-env=100000")
    with pytest.raises(ConfigError, match=r"\(--envs-per-vector-env"):
        check_memory(run)
    run = resolved("atari/pong", "--num-policies=64", machine=Machine(16, 1))
    there(2000, 2000, gpu=80)
    check_memory(run)
    there(2000, 2000, gpu=6)
    with pytest.raises(ConfigError, match=r"cuda:0.*--learner\.batch"):
        check_memory(run)


def test_a_run_that_is_near_what_is_there_is_warned_about_only(there):
    run = resolved("atari/pong", "--num-policies=16")
    there(4, 1)
    check_memory(run)
    (text,) = memory_notes(run)
    assert re.match(r"warning: .*\b1\.0 GiB .*actors", text)
    there(32, 30)
    assert memory_notes(run) == []


def test_memory_of_a_device_is_counted_apart(there):
    there(128, 120, gpu=2)
    run = resolved("atari/pong", "--num-policies=40", "--learner.precision=bf16", machine=Machine(16, 1))
    needed = estimate(run)
    assert needed.needed["cuda:0"] > 5 * GIB
    assert needed.certain[HOST] < GIB
    (text,) = memory_notes(run)
    assert re.search(r"cuda:0.* 2\.0 GiB", text)


@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_what_the_tightest_cgroup_leaves(tmp_path, version):
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 800 kB\n")
    own, top = tmp_path / "own", tmp_path / "cgroup"
    files = (tmp_path / "meminfo", own, top)
    assert host_memory(*files) == HostMemory(1000 * 1024, 800 * 1024), "no cgroup"

    own.write_text("0::/outer/inner\n" if version == 2 else "5:cpu:/elsewhere\n4:memory:/outer/inner\n")
    outer = top / "outer" if version == 2 else top / "memory/outer"
    (outer / "inner").mkdir(parents=True)
    names = "memory.max memory.current inactive_file"
    if version == 1:
        names = "memory.limit_in_bytes memory.usage_in_bytes total_inactive_file"
    limit, usage, cache = names.split()
    (outer / "inner" / limit).write_text("max\n" if version == 2 else f"{2**63 - 4096}\n")
    (outer / "inner" / usage).write_text("1000\n")
    (outer / limit).write_text("500000\n")
    (outer / usage).write_text("300000\n")
    (outer / "memory.stat").write_text(f"anon 5\n{cache} 100000\n")
    assert host_memory(*files) == HostMemory(500000, 300000)


# -- of a GPU, on the pretend device ------------------------------------------------------------------------

recording = pytest.importorskip("pbt_rl.learner.cuda.recording")
streams = pytest.importorskip("pbt_rl.learner.cuda.streams")
PIXELS = {"obs": ArraySpec((84, 84), "uint8")}
LARGE = {"num_policies": 4, "hidden": 256, "layers": 2, "batch": 192}
IMAGES = {"obs": PIXELS, "num_policies": 2, "hidden": 128, "envs_per_vector_env": 8, "batch": 96}
KINDS = {
    "vmap": {"packing": "vmap", **LARGE},
    "loop": {"packing": "loop", **LARGE},
    "memory": {"packing": "vmap", "core": "gru", "core_size": 128, **LARGE},
    "images by products": {"packing": "bmm", **IMAGES},
    "images one by one": {"packing": "loop", **IMAGES},
    "replay": {"env": "toy/treasure", "packing": "loop", "algo": "unreal", **IMAGES, "batch": 48},
}
LONG = {"images one by one", "replay", "memory"}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, id=name, marks=[pytest.mark.long] * (name in LONG)) for name, k in KINDS.items()]
)
def test_the_estimate_is_what_a_learner_takes_and_it_takes_it_at_its_start(kind, monkeypatch):
    from tests.helpers.order import Order, PretendStreams

    with pretend_device() as device:
        recorder = PretendRecorder(device)
        monkeypatch.setitem(recording.RECORDERS, DEVICE.type, lambda _: recorder)
        monkeypatch.setitem(streams.SEPARATE, DEVICE.type, lambda _: PretendStreams(Order()))
        with DrivenLearner(device=str(DEVICE), **kind) as driven:
            at_start = device.memory.most
            driven.batches(1)
            driven.edit(1, donor=0)
            setup = driven.learner._setup
            needed = pack_bytes(setup.config, setup.spec, setup.plan)
            estimated = needed.rollouts + needed.replay + needed.weights + needed.update
            assert estimated == pytest.approx(device.memory.most, rel=0.2)
            assert device.memory.most <= 1.02 * at_start, "nothing later takes more than the start"


def test_the_memory_of_a_simulators_row_and_the_rows_that_fit(monkeypatch):
    def told(*words):
        (line,) = describe_rows(resolved("tensors/pendulum", "--num-policies=4", *words))
        found = re.match(r".*? ([\d.]+) KiB for (\d+) steps .* ([\d,]+) rows", line)
        return float(found[1]), int(found[2]), int(found[3].replace(",", ""))

    monkeypatch.setattr("pbt_rl.run.limits.host_memory", lambda: HostMemory(8 * GIB, 8 * GIB))
    small, steps, fit = told("--rows=256")
    assert steps == 24
    assert told("--rows=1024")[0] == pytest.approx(small, rel=0.01), "a row costs the same among more rows"
    wide, _, fewer = told("--rows=256", "--model.hidden=512")
    assert wide > 1.5 * small
    assert fewer < fit / 1.5
    plan = resolved("tensors/pendulum", "--num-policies=4", f"--rows={fit // 256 * 256}")
    assert 0.8 * 8 * GIB < estimate(plan).needed[HOST] < 1.1 * 8 * GIB
    assert describe_rows(resolved("gym/CartPole-v1")) == []
