"""Parts of DeepMind Lab without the engine: scores, actions, words, order of levels, map cache."""

import os
import shutil
import subprocess
import sysconfig
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbt_rl.algos import encoders
from pbt_rl.config import Config, LearnerConfig
from pbt_rl.envs.base import LAST, ArraySpec
from pbt_rl.envs.dmlab.dmlab_options import DmlabOptions
from pbt_rl.envs.dmlab.levels import ACTIONS, LEVELS
from pbt_rl.envs.dmlab.row import DIGEST_BYTES, STALE_SECONDS, LevelCache
from pbt_rl.envs.dmlab.vector_env import TaskScheduler, describe, level_scripts, names, row_setup
from pbt_rl.envs.spaces import hash_words
from pbt_rl.errors import EnvSetupError
from pbt_rl.learner.build import normalized_obs
from tests.helpers.runs import python

# -- levels -------------------------------------------------------------------------------------------------


def test_thirty_levels_of_thirty_two_scripts():
    assert len(LEVELS) == len({level.name for level in LEVELS}) == 30
    train = level_scripts("dmlab30", DmlabOptions())
    test = level_scripts("dmlab30", DmlabOptions(test=True))
    assert len({*train, *test}) == 32
    assert "contributed/dmlab30/rooms_collect_good_objects_train" in train
    assert "contributed/dmlab30/rooms_collect_good_objects_test" in test
    assert not [name for name in train if name.endswith("_test")]
    assert names() == ("dmlab30", *(level.name for level in LEVELS))


def test_scores_and_actions():
    for level in LEVELS:
        assert level.percent(level.random) == 0
        assert level.percent(level.human) == pytest.approx(100)
    assert LEVELS[3].percent(29.0325) == pytest.approx(50)  # rooms_watermaze: 4.065 to 54
    assert [len(ACTIONS[name]) for name in ("standard", "extended")] == [9, 15]
    for chosen in ACTIONS.values():
        assert len({tuple(sorted(pressed.items())) for pressed in chosen}) == len(chosen)
        assert chosen[-1] == {"FIRE": 1}


@pytest.mark.parametrize(("actions", "choices"), [("standard", 9), ("extended", 15)])
def test_the_last_action_and_reward_are_seen_unless_one_does_not_want_it(actions, choices):
    assert encoders.LAST == LAST
    spec = describe("rooms_watermaze", DmlabOptions(actions=actions))
    assert spec.obs[LAST] == ArraySpec((choices + 1,), "float32")
    vectors, images = (
        Config("dmlab/rooms_watermaze", learner=LearnerConfig(**{name: True}))
        for name in ("normalize_observations", "normalize_images")
    )
    assert normalized_obs(vectors, spec) == {}
    assert normalized_obs(images, spec) == {"obs": 3 * 72 * 96}
    assert normalized_obs(replace(images, algo="unreal"), spec) == {}
    assert normalized_obs(replace(images, model=replace(images.model, encoder="mlp")), spec) == {}
    other = {**spec.obs, "position": ArraySpec((3,), "float32")}
    assert normalized_obs(vectors, replace(spec, obs=other)) == {"position": 3}
    assert set(describe("rooms_watermaze", DmlabOptions(last_action_reward=False)).obs) == {"obs", "instr"}


def test_specs():
    one, every = describe("rooms_watermaze", DmlabOptions()), describe("dmlab30", DmlabOptions())
    assert (one.tasks, one.task_cap) == ((), None)
    assert (len(every.tasks), every.task_cap) == (30, 100.0)
    assert one.obs["obs"].shape == (3, 72, 96)
    assert (one.obs["instr"].shape, one.obs["instr"].dtype) == ((16,), "int32")
    assert (one.frame_skip, one.action.nvec) == (4, (9,))
    assert describe("rooms_watermaze", DmlabOptions(actions="extended")).action.nvec == (15,)
    assert one.shaping == {"gain_scale": 5.0, "loss_scale": 0.3}
    code = describe("rooms_watermaze", DmlabOptions(reward_unit=5.0)).shaping
    assert code == {"gain_scale": 5.0, "loss_scale": 1.5}
    whole = describe("rooms_watermaze", DmlabOptions(clip_reward=False)).shaping
    assert whole == {"gain_scale": 1.0, "loss_scale": 1.0}


@pytest.mark.parametrize(
    ("name", "scripts"),
    [
        ("rooms_watermaze", ["contributed/dmlab30/rooms_watermaze"]),
        ("rooms_collect_good_objects", ["contributed/dmlab30/rooms_collect_good_objects_train"]),
        ("lt_chasm", ["lt_chasm"]),
    ],
)
def test_names_of_levels(name, scripts):
    assert level_scripts(name, DmlabOptions()) == scripts


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rooms_watermace", "dmlab/rooms_watermaze"),
        ("rooms_collect_good_objects_test", "dmlab/rooms_collect_good_objects;"),
    ],
)
def test_a_wrong_name_is_one_clear_error(name, words):
    with pytest.raises(EnvSetupError, match=words):
        describe(name, DmlabOptions())


def test_places_of_the_cache(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert DmlabOptions().cache_folder == "/elsewhere/pbt_rl/dmlab"
    assert DmlabOptions(level_cache="none").cache_folder == ""
    assert DmlabOptions(level_cache="here").cache_folder == f"{Path.cwd()}/here"


def test_settings_are_strings_and_those_of_tables_have_dotted_names():
    maze = {"width": 9, "rooms": {"most": 2.5}}
    settings = {"episodeLengthSeconds": 60, "color": True, "maze": maze, "x": "y"}
    config = row_setup(DmlabOptions(), settings, 0).config
    own = {"width": "96", "height": "72", "logLevel": "WARN"}
    of_level = {"episodeLengthSeconds": "60", "color": "true", "x": "y"}
    assert config == {**own, **of_level, "maze.width": "9", "maze.rooms.most": "2.5"}
    for value in (None, [1]):
        with pytest.raises(EnvSetupError, match=r"--env-option maze\.width="):
            row_setup(DmlabOptions(), {"maze": {"width": value}}, 0)


LIBRARY = """
#include <Python.h>
static PyObject* path(PyObject* self, PyObject* none) {  /* as the real one: by its name, not by `self` */
  char** state = PyModule_GetState(PyImport_AddModule("deepmind_lab"));
  return state ? PyUnicode_FromString(*state) : PyErr_Format(PyExc_SystemError, "no state");
}
static PyObject* create(PyObject* spec, PyModuleDef* def) {
  PyObject* module = PyModule_New("deepmind_lab");
  PyModule_AddObject(module, "__file__", PyObject_GetAttrString(spec, "origin"));
  return module;
}
static int run(PyObject* module) {
  PyObject* file = PyObject_GetAttrString(module, "__file__");
  *(const char**)PyModule_GetState(module) = PyUnicode_AsUTF8(file);
  return 0;
}
static PyMethodDef methods[] = {{"runfiles_path", path, METH_NOARGS, ""}, {0}};
static PyModuleDef_Slot slots[] = {{Py_mod_create, create}, {Py_mod_exec, run}, {0}};
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "deepmind_lab", "", sizeof(char*), methods, slots};
PyMODINIT_FUNC PyInit_deepmind_lab(void) { return PyModuleDef_Init(&def); }
"""


def test_the_library_is_loaded_where_its_package_cannot_be(tmp_path):
    include = Path(sysconfig.get_paths()["include"])
    if not (shutil.which("cc") and (include / "Python.h").is_file()):
        pytest.skip("needs a C compiler and Python's headers")
    package = tmp_path / "deepmind_lab"
    package.mkdir()
    (package / "__init__.py").write_text("import a_package_that_is_nowhere")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from pbt_rl.envs.dmlab.row import load_module
print(load_module().runfiles_path(), load_module() is sys.modules["deepmind_lab"])"""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        python(code, tmp_path)
    assert "'a_package_that_is_nowhere'" in failed.value.stderr
    library, source = package / "deepmind_lab.so", tmp_path / "module.c"
    source.write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", source, "-o", library], check=True)
    assert python(code, tmp_path) == f"{library} True\n"


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 200))
def test_no_task_is_ever_more_than_an_episode_ahead(costs, episodes):
    rota, spent = TaskScheduler(range(len(costs))), [0] * len(costs)
    for _ in range(episodes):
        task = rota.next()
        rota.spend(task, costs[task])
        spent[task] += costs[task]
        assert max(spent) - min(spent) <= max(costs)


def words(sentence, places=4):
    out = np.full(places, 77, np.int32)
    hash_words(sentence, out)
    return out.tolist()


def test_words_stand_at_the_end_whatever_their_case_and_signs():
    assert words("") == words(" ... ") == [0, 0, 0, 0]
    red, ball = words("red ball")[-2:]
    assert words("Red, BALL!") == [0, 0, red, ball]
    assert words("ball red")[-2:] == [ball, red]
    assert words("red ball red ball red") == [red, ball, red, ball]
    assert [red, ball] == [2053201807, 1949452379], "in every process"


class Maps:
    """Map cache with a folder for copies of maps."""

    def __init__(self, folder, limit=10**9):
        self.folder = folder
        self.cache = LevelCache(folder / "cache", limit)

    def write(self, key, content=b"map"):
        path = self.folder / "given.pk3"
        path.write_bytes(content)
        self.cache.write(key, str(path))
        path.unlink()

    def fetch(self, key):
        path = self.folder / "got.pk3"
        path.unlink(missing_ok=True)
        found = self.cache.fetch(key, str(path))
        assert found == path.exists()
        return path.read_bytes() if found else None

    @property
    def files(self):
        return sorted((self.folder / "cache").glob("??/*.map"))


def test_maps_come_back_whole_and_under_their_own_key(tmp_path):
    maps = Maps(tmp_path)
    assert maps.fetch("a") is None
    maps.write("a", b"one")
    maps.write("../../b", b"")
    assert (maps.fetch("a"), maps.fetch("../../b"), maps.fetch("c")) == (b"one", b"", None)
    assert Maps(tmp_path).fetch("a") == b"one"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "got.pk3"]
    assert (maps.cache.hits, maps.cache.misses, maps.cache.written) == (2, 2, 2)


@pytest.mark.parametrize("damage", [b"", b"x" * 10, b"y" * (3 + DIGEST_BYTES)])
def test_a_file_that_is_not_whole_is_no_map(tmp_path, damage):
    maps = Maps(tmp_path)
    maps.write("a", b"one")
    maps.files[0].write_bytes(damage)
    assert maps.fetch("a") is None
    assert maps.files == []
    maps.write("a", b"one")
    assert maps.fetch("a") == b"one"


def test_maps_used_longest_ago_are_removed(tmp_path):
    size = 1000 + DIGEST_BYTES
    maps = Maps(tmp_path, limit=4 * size)
    for age, key in enumerate("abcd"):
        maps.write(key, key.encode() * 1000)
        os.utime(max(maps.files, key=lambda p: p.stat().st_mtime), (age, age))
    assert len(maps.files) == 4
    maps.fetch("a")
    maps.write("e", b"e" * 1000)  # above the limit: reduced to 0.9 of the limit
    assert [key for key in "abcde" if maps.fetch(key)] == ["a", "d", "e"]


def test_a_folder_that_cannot_be_written_is_no_cache(tmp_path):
    (tmp_path / "cache").write_text("a file")
    maps = Maps(tmp_path)
    maps.write("a")
    assert maps.fetch("a") is None
    assert maps.cache.written == 0


def test_drafts_of_the_killed_go_in_time(tmp_path):
    maps = Maps(tmp_path)
    maps.write("a")
    old, fresh = (maps.files[0].with_name(f".draft-{name}") for name in ("old", "fresh"))
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - STALE_SECONDS - 60,) * 2)
    Maps(tmp_path).write("b")  # a new process checks the folder's size
    assert (old.exists(), fresh.exists()) == (False, True)


def test_many_write_and_read_at_once(tmp_path):
    def work(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        maps = Maps(folder, limit=20_000)
        maps.cache.folder = tmp_path / "cache"
        for i in range(60):
            key = str((i * 7 + number) % 40)
            if (got := maps.fetch(key)) is None:
                maps.write(key, key.encode() * 500)
            else:
                assert got == key.encode() * 500
        done.append(number)

    done = []
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1, 2, 3]
