"""The registry: look-up, errors, recipes that fit the config, and lazy imports."""

import os
import subprocess
import sys
from dataclasses import is_dataclass, replace

import gymnasium
import numpy as np
import pytest

from pbt_rl.config import Config
from pbt_rl.envs import lookup
from pbt_rl.envs.atari import AtariOptions
from pbt_rl.envs.base import default_shaping_source, private_step_arrays
from pbt_rl.envs.family import Family
from pbt_rl.envs.films import film
from pbt_rl.envs.lookup import EnvOptions, make_vector_env, probe, recipe
from pbt_rl.errors import EnvSetupError
from tests.helpers.runs import HANG_SECONDS, ROOT

OPTIONS = EnvOptions()
IDS = [
    "atari/pong",
    "gym/CartPole-v1",
    "gym/Pendulum-v1",
    "toy/identity",
    "toy/memory",
    "toy/shaped",
    "vizdoom/deathmatch",
]


@pytest.mark.parametrize("env_id", IDS)
def test_probe_and_vector_env_agree(env_id):
    spec = probe(env_id, OPTIONS)
    vector_env = make_vector_env(env_id, 2, 0, OPTIONS, default_shaping_source(spec))
    assert spec.env_id == env_id
    assert vector_env.spec == spec
    assert vector_env.rows == 2
    out = private_step_arrays(spec, 2)
    vector_env.reset(out)
    vector_env.step(np.zeros((2, spec.action.components), spec.action.dtype), out)
    assert (out.length[out.episode_done] == 1).all()
    vector_env.close()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("atri/pong", "atri/pong.*atari/pong"),
        ("atari/", "'atari/': .*atari/NAME"),
        ("gym/CartPole-v9", "CartPole-v9 .*version"),
        ("gym/no_such_package:Thing-v0", "no_such_package"),
        ("toy/memry", "toy/memory"),
    ],
)
@pytest.mark.parametrize(
    "ask", [lambda e: probe(e, OPTIONS), lambda e: make_vector_env(e, 1, 0, OPTIONS, None)]
)
def test_an_unknown_name_is_reported_with_close_ones_and_the_list(env_id, message, ask):
    with pytest.raises(EnvSetupError, match=message) as error:
        ask(env_id)
    assert "`pbt-rl envs`" in str(error.value)


def test_a_gymnasium_environment_may_come_from_a_package(tmp_path, monkeypatch):
    (tmp_path / "made_for_a_test.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('MadeForATest-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert probe("gym/made_for_a_test:MadeForATest-v0", OPTIONS).action.nvec == (2,)
    finally:
        gymnasium.registry.pop("MadeForATest-v0", None)


def test_a_missing_package_is_reported_with_its_install_hint(monkeypatch):
    absent = replace(lookup.FAMILIES["atari"], requires=("not_installed_at_all",))
    monkeypatch.setattr(lookup, "FAMILIES", {**lookup.FAMILIES, "atari": absent})
    with pytest.raises(EnvSetupError, match=r"not_installed_at_all: .*ale-py"):
        probe("atari/pong", OPTIONS)
    assert (absent.missing, absent.names()) == (("not_installed_at_all",), ())


def test_families_list_their_environments():
    assert {"atari", "dmlab", "gym", "pettingzoo", "toy", "vizdoom"} <= set(lookup.FAMILIES)
    assert all(family.install_hint for family in lookup.FAMILIES.values())
    dmlab = lookup.FAMILIES["dmlab"]
    if dmlab.missing:  # the package is on no registry
        assert (dmlab.missing, dmlab.names()) == (("deepmind_lab",), ())
    for family in lookup.FAMILIES.values():
        if family.missing:
            continue
        key, _, name = family.example.partition("/")
        assert key == family.name
        assert name in family.names()
    gym = lookup.FAMILIES["gym"].names()
    assert "Pendulum-v1" in gym
    assert not any(name.startswith("ALE/") or "GymV" in name for name in gym)


@pytest.mark.parametrize("env_id", IDS)
def test_a_recipe_fits_the_config(env_id):
    config = Config(env=env_id)
    changes: dict[str, dict[str, object]] = {}
    for path, value in recipe(env_id).items():
        group, _, name = path.rpartition(".")
        place = getattr(config, group) if group else config
        assert is_dataclass(place)
        assert type(getattr(place, name)) is type(value), path
        changes.setdefault(group, {})[name] = value
    parts = {group: replace(getattr(config, group), **values) for group, values in changes.items() if group}
    assert (
        replace(config, **parts, **changes.get("", {})).env == env_id
    )  # every validation of the config passes


def test_the_registry_imports_families_when_they_are_used_and_never_torch():
    code = (
        "import sys\n"
        "from pbt_rl.envs import lookup as r\n"
        "from pbt_rl.envs.base import default_shaping_source as source\n"
        "def make(env_id):\n"
        "    options = r.EnvOptions()\n"
        "    r.make_vector_env(env_id, 2, 0, options, source(r.probe(env_id, options)))\n"
        "assert not {'ale_py', 'gymnasium', 'torch'} & set(sys.modules), 'imported too early'\n"
        "make('toy/identity')\n"
        "assert 'ale_py' not in sys.modules\n"
        "make('atari/pong')\n"
        "[family.names() for family in r.FAMILIES.values()]\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_SECONDS)


FAMILY = """
from dataclasses import replace

from pbt_rl.envs.family import Backend
from pbt_rl.envs.gym import GymVectorEnv, probe_with
from pbt_rl.envs.toy import Identity


def make_vector_env(name, rows, seed, options, shaping):
    return GymVectorEnv(f"mine/{name}", lambda: Identity(int(name)), rows, seed, shaping)


BACKEND = Backend(
    names=lambda: ("4", "5"),
    probe=lambda name, options: probe_with(f"mine/{name}", lambda: Identity(int(name))),
    make_vector_env=make_vector_env,
    for_evaluation=lambda options: replace(options, keywords={"judged": True}),
    film=lambda *arguments: (make_vector_env(*arguments), 30.0),
)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Register a family that consists of one module and one line of the registry."""
    (tmp_path / "mine_for_a_test.py").write_text(FAMILY)
    monkeypatch.syspath_prepend(tmp_path)
    line = Family("mine", "mine", "mine/4", (), "nothing to install", "mine_for_a_test")
    monkeypatch.setattr(lookup, "FAMILIES", {**lookup.FAMILIES, "mine": line})
    yield line
    sys.modules.pop("mine_for_a_test", None)


def test_a_family_is_one_module_and_one_line(mine):
    spec = probe("mine/5", OPTIONS)
    assert spec.action.nvec == (5,)
    vector_env = make_vector_env("mine/5", 2, 0, OPTIONS, default_shaping_source(spec))
    assert vector_env.spec == spec
    assert recipe("mine/5") == {}, "a recipe is optional"
    assert lookup.make_raw("mine/5", OPTIONS) is None
    assert mine.names() == ("4", "5")
    assert lookup.evaluation_options("mine/4", OPTIONS).keywords == {"judged": True}
    assert film("mine/4", 1, 0, OPTIONS, lambda _row: (0, {}))[1].frames_per_second == 30.0
    assert film("toy/identity", 1, 0, OPTIONS, lambda _row: (0, {})) is None


@pytest.mark.parametrize("env_id", ["atari/pong", "envpool/Pong-v5"])
def test_atari_is_evaluated_by_raw_scores(env_id):
    family = lookup.family_of(env_id)
    if family.missing:
        pytest.skip(f"{env_id} needs {family.missing}")
    atari = lookup.evaluation_options(env_id, OPTIONS).of(AtariOptions)
    assert (atari.episodic_life, atari.clip_reward, atari.frame_skip) == (True, False, 4)


def test_a_family_names_its_option_groups_without_being_imported():
    code = (
        "import sys\n"
        "from pbt_rl.envs import lookup as r\n"
        "groups = {name: family.option_groups for name, family in r.FAMILIES.items() if family.option_groups}\n"
        "of_one_agent = {name: g for name, g in groups.items() if g != ('matchup',)}\n"
        "assert of_one_agent == {'atari': ('atari',), 'envpool': ('atari',), 'dmlab': ('dmlab',)}, groups\n"
        "assert groups.keys() - of_one_agent == {'pettingzoo', 'dmlab2d', 'vizdoom'}, groups\n"
        "assert r.family_of('dmlab30').name == 'dmlab'\n"
        "assert r.family_of('module:factory') is None\n"
        "assert not {'ale_py', 'envpool', 'deepmind_lab', 'gymnasium', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_SECONDS)


@pytest.mark.parametrize("family", lookup.FAMILIES.values(), ids=lambda family: family.name)
def test_option_groups_are_fields_of_the_config(family):
    assert all(is_dataclass(getattr(Config(env=family.example), group)) for group in family.option_groups)


def test_another_package_adds_a_family_and_an_algorithm(tmp_path):
    (tmp_path / "mine_for_a_test.py").write_text(
        FAMILY
        + "from pbt_rl.algos.hypers import AlgorithmEntry\n"
        + "from pbt_rl.envs.family import Family\n"
        + "MINE = Family('mine', 'mine', 'mine/4', (), 'nothing to install', 'mine_for_a_test')\n"
        + "ENTRY = AlgorithmEntry('pbt_rl.algos.a3c:A3C', 'as a3c.')\n"
    )
    info = tmp_path / "mine_for_a_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-for-a-test\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[pbt_rl.families]\nmine = mine_for_a_test:MINE\n\n[pbt_rl.algorithms]\nmine = mine_for_a_test:ENTRY\n"
    )
    command = (
        "train --env mine/5 --algo mine --mode serial --num-policies 2 --train-for-frames 500 --out runs"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pbt_rl", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "mine/5: 2 policies" in done.stdout + done.stderr
