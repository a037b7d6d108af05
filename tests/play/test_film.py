"""Films of games."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pbt_rl.errors import ConfigError
from pbt_rl.play.film import BestFilm, Film, check_film


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_film_holds_every_picture_in_its_own_time(tmp_path, suffix):
    imageio = pytest.importorskip("imageio.v2")
    path = tmp_path / f"film.{suffix}"
    film = Film(path, 10.0)
    for brightness in range(0, 250, 50):
        film.add(np.full((81, 50, 3), brightness, np.uint8))
    film.close()
    pictures = list(imageio.get_reader(path).iter_data())
    assert len(pictures) == 5
    assert pictures[0].shape[:2] == (324, 200)
    assert abs(int(pictures[3].mean()) - 150) < 8
    if suffix == "mp4":
        assert imageio.get_reader(path).get_meta_data()["fps"] == 10
    else:
        from PIL import Image

        assert Image.open(path).info["duration"] == 100


@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_a_film_that_the_disk_does_not_hold_is_an_error(tmp_path, suffix):
    script = f"""
import resource, sys
import numpy as np
from pathlib import Path
from pbt_rl.errors import ConfigError
from pbt_rl.play.film import Film
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
film, rng = Film(Path("film.{suffix}"), 30.0), np.random.default_rng(0)
try:
    for _ in range(int(sys.argv[1])):
        film.add(rng.integers(0, 255, (320, 320, 3), dtype=np.uint8))
    film.close()
except ConfigError as error:
    print(error)
"""
    for pictures in (2, 200):
        command = [sys.executable, "-c", script, f"{pictures}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"--video film.{suffix} cannot be written: "), done


def test_a_folder_is_no_film_and_a_missing_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "film.gif").mkdir()
    with pytest.raises(ConfigError, match="it is a folder"):
        check_film(tmp_path / "film.gif")
    monkeypatch.setattr("pbt_rl.play.film.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"imageio-ffmpeg: pip install 'pbt-rl\[video\]'"):
        check_film(tmp_path / "film.mp4")


def test_the_film_is_of_the_best_episode(tmp_path, monkeypatch):
    class Camera:
        frames_per_second = 30.0

        def shoot(self, step, action):
            return "first" if action is None else f"{float(step.objective[0]):g}"

    class Written:
        def __init__(self, path, frames_per_second):
            self.file = path.open("w")

        def add(self, picture):
            self.file.write(f"{picture} ")

        def close(self):
            self.file.close()

    kept = tmp_path / "game.mp4"
    monkeypatch.setattr("pbt_rl.play.film.Film", Written)
    film = BestFilm(kept, Camera())
    for objective, done in ((0, False), (1, True), (0, False), (5, True), (0, False), (3, True), (0, False)):
        film.take(SimpleNamespace(objective=[objective], episode_done=[done]), np.zeros((1, 1)))
    film.close()
    assert kept.read_text() == "0 5 "
    assert list(tmp_path.iterdir()) == [kept], "nothing is left of the others"
    BestFilm(tmp_path / "none.mp4", Camera()).close()
    assert list(tmp_path.iterdir()) == [kept], "an environment that cannot be drawn leaves no file"
