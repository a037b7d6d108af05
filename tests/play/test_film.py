"""Films of games."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from pbt_rl.envs.frames import Frames
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


GREY = np.arange(64 * 48).reshape(64, 48) % 200
SHADES = np.repeat(GREY[..., None], 3, axis=2).astype(np.uint8)


@pytest.mark.parametrize(
    "frame",
    [
        SHADES,
        GREY.astype(np.uint8),
        GREY.astype(np.int64)[..., None],
        np.moveaxis(SHADES, -1, 0),
        np.moveaxis(SHADES, -1, 0)[:1],
        np.dstack([SHADES, np.zeros((64, 48), np.uint8)]),
        SHADES / 255,
        (SHADES / 127.5 - 1).astype(np.float32),
        SHADES.astype(np.float32),
        SHADES.astype(np.uint16) * 256,
        torch.from_numpy(SHADES / 255),
        [np.zeros_like(SHADES), SHADES],
        SHADES[None],
        SHADES.tolist(),
        {"front": SHADES, "back": np.zeros_like(SHADES)},
        Image.fromarray(SHADES),
    ],
)
def test_any_frame_that_can_be_shown_is_shown_right(frame):
    assert np.abs(Frames().picture(frame).astype(int) - SHADES).max() <= 1


def test_truths_are_black_and_white_and_floats_keep_their_scale():
    assert np.unique(Frames().picture(GREY > 9)).tolist() == [0, 255]
    frames = Frames()
    assert frames.picture(np.full((4, 4), 40.0)).max() == 40
    assert frames.picture(np.full((4, 4), 1.0)).max() == 1, "a dark one"
    assert frames.picture(np.array([[np.nan, np.inf]])).max() == 255


@pytest.mark.parametrize(
    "frame", [None, "ansi", np.zeros((0, 0, 3), np.uint8), np.zeros((8, 8, 7)), np.zeros(5), {}, [], object()]
)
def test_what_is_no_frame_is_refused(frame):
    with pytest.raises(ValueError, match=r"\w"):
        Frames().picture(frame)


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ([(8, 2000)], (16, 2000)),
        ([(2000, 8)], (2000, 16)),
        ([(1, 1)], (320, 320)),
        ([(30, 6000)], (18, 3840)),
        ([(81, 50), (50, 81), (200, 200)], (324, 200)),
        ([(65, 65)], (324, 324)),
    ],
)
def test_films_of_any_size(tmp_path, sizes, shown):
    imageio = pytest.importorskip("imageio.v2")
    film = Film(tmp_path / "film.mp4", 10.0)
    for size in sizes:
        film.add(np.full((*size, 3), 255, np.uint8))
    film.close()
    pictures = list(imageio.get_reader(tmp_path / "film.mp4").iter_data())
    assert [picture.shape[:2] for picture in pictures] == [shown] * len(sizes)
    assert all(picture.max() > 250 for picture in pictures)


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
        assert done.stdout.startswith(f"--video film.{suffix} "), done


def test_a_folder_is_no_film_and_a_missing_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "film.gif").mkdir()
    with pytest.raises(ConfigError, match="a folder"):
        check_film(tmp_path / "film.gif")
    monkeypatch.setattr("pbt_rl.play.film.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"imageio-ffmpeg.*pbt-rl\[video\]'"):
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
