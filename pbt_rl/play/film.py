"""Videos of evaluation episodes: complete episodes as .mp4 or .gif, and short GIFs for TensorBoard."""

from __future__ import annotations

import errno
import math
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec, StepArrays, VectorEnv, default_shaping_source
from pbt_rl.envs.films import Camera, film, has_pictures
from pbt_rl.envs.frames import Picture, fitted
from pbt_rl.envs.lookup import EnvOptions
from pbt_rl.envs.time_limits import closing
from pbt_rl.errors import ConfigError, require
from pbt_rl.play.member import Filmed

LEAST_HEIGHT, MOST_SIDE = 320, 1920
"""Pictures with a height below LEAST_HEIGHT pixels are enlarged by an integer factor, up to MOST_SIDE pixels per side.
Pictures with a side of more than 2 * MOST_SIDE pixels are reduced."""
LEAST_PIXELS = 16
"""Minimum number of pixels of each side, because codecs reject smaller pictures."""
CLIP_SECONDS, CLIP_PICTURES_PER_SECOND, CLIP_SIZE = 30, 8, 200
"""Clip for TensorBoard: maximum duration, approximate maximum frame rate, maximum pixels of the longer side."""

H264 = ("-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "25")
"""ffmpeg options of .mp4 files, which common video players and browsers support."""
PALETTES = (
    "-filter_complex",
    "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1:dither=none",
)
"""ffmpeg options of .gif files, with one palette per picture. Up to 255 colours of a picture are exact."""


def factor_of(height: int, width: int) -> float:
    """Return the factor by which pictures of this size are scaled: an integer to enlarge, a float to reduce."""
    long = max(height, width)
    if long > 2 * MOST_SIDE:
        return 2 * MOST_SIDE / long
    return max(1, min(-(-LEAST_HEIGHT // height), MOST_SIDE // long))


class Film:
    """.mp4 or .gif file, to which pictures are written one by one, because all together would need too much memory.

    The constructor empties the file. Raises ConfigError if the file cannot be written.
    """

    def __init__(self, path: Path, frames_per_second: float) -> None:
        self._path, self._rate = path, frames_per_second
        self._process: subprocess.Popen[bytes] | None = None
        self._shape = self._size = 0, 0
        """Height and width of the first picture, and of the film."""
        self._factor: float = 1
        try:
            path.open("wb").close()
        except OSError as error:
            raise self._error(error.strerror or str(error)) from error

    def add(self, picture: Picture) -> None:
        """Append a picture, uint8 [height, width, 3].

        The first picture sets the size of the film. Both sides are rounded down to even numbers, which the codec needs.
        Raises ConfigError if ffmpeg has ended with an error.
        """
        shape = picture.shape[:2]
        if self._process is None:
            self._shape, self._factor = shape, factor_of(*shape)
            sides = (max(LEAST_PIXELS, int(n * self._factor)) for n in shape)
            self._size = (next(sides) // 2 * 2, next(sides) // 2 * 2)
            self._process = self._start(*self._size)
        height, width = self._size
        if (
            isinstance(self._factor, int)
            and shape == self._shape
            and min(shape) * self._factor >= LEAST_PIXELS
        ):
            shown = picture.repeat(self._factor, axis=0).repeat(self._factor, axis=1)[:height, :width]
        else:
            shown = fitted(picture, height, width)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(shown.tobytes())
        except BrokenPipeError:
            self.close()  # raises an error with the reason

    def close(self) -> None:
        """Finish the file. Raises ConfigError if ffmpeg failed."""
        if self._process is None:
            return
        process, self._process = self._process, None
        _, errors = process.communicate()
        if process.returncode != 0:
            said = errors.decode(errors="replace").strip()
            full = os.strerror(errno.ENOSPC)
            raise self._error(
                full if full in said else said.split("\n")[0] or f"ffmpeg: {process.returncode}"
            )

    def _start(self, height: int, width: int) -> subprocess.Popen[bytes]:
        from imageio_ffmpeg import get_ffmpeg_exe  # noqa: PLC0415 - the extra `video`; checked by `check_film`

        raw = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {self._rate:g} -i -".split()
        codec = PALETTES if self._path.suffix.lower() == ".gif" else H264
        return subprocess.Popen(
            [get_ffmpeg_exe(), "-y", "-loglevel", "error", *raw, *codec, str(self._path)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,  # cannot fill, because ffmpeg prints only errors
            process_group=0,  # Ctrl-C does not end ffmpeg, because the evaluation closes the film
        )

    def _error(self, why: str) -> ConfigError:
        return ConfigError(f"--video {self._path} cannot be written: {why}")


class Clip:
    """Small GIF of the first episode on row 0, at most CLIP_SECONDS long. `close` writes the file."""

    def __init__(self, file: IO[bytes], camera: Camera) -> None:
        self._file, self._camera = file, camera
        self._every = max(1, round(camera.frames_per_second / CLIP_PICTURES_PER_SECOND))
        self._milliseconds = 1000 * self._every / camera.frames_per_second
        self._most = round(CLIP_SECONDS * 1000 / self._milliseconds)
        self._seen = 0
        self._kept: list[Any] = []
        self._over = False

    def take(self, step: StepArrays, action_RA: NDArray[Any] | None) -> None:
        """Record a step (see `play.member.Records`). Keep only the pictures for the clip's frame rate, scaled down."""
        from PIL import Image  # noqa: PLC0415 - of the extra `video`; checked by `check_clips`

        if self._over:
            return
        picture = self._camera.shoot(step, None if action_RA is None else action_RA[0])
        if self._seen % self._every == 0 and len(self._kept) < self._most:
            small = Image.fromarray(picture)
            small.thumbnail((CLIP_SIZE, CLIP_SIZE))
            self._kept.append(small)
        self._seen += 1
        self._over = bool(step.episode_done[0])

    def close(self) -> None:
        """Write the pictures to the GIF file. Without a picture, the file is empty."""
        if self._kept:
            first, *others = self._kept
            how = {"append_images": others, "duration": self._milliseconds, "loop": 0}
            first.save(self._file, format="GIF", save_all=True, **how)
        self._file.flush()


class BestFilm:
    """Film of the episode on row 0 with the highest objective.

    The first episode is written to `path`. Each later episode is first written to a separate file.
    """

    def __init__(self, path: Path, camera: Camera) -> None:
        self._camera, self._kept = camera, path
        self._best = -math.inf
        self._path = path  # the first episode is written here, to fail early if the path cannot be written
        self._film: Film | None = Film(path, camera.frames_per_second)

    def take(self, step: StepArrays, action_RA: NDArray[Any] | None) -> None:
        """Record a step (see `play.member.Records`)."""
        if self._film is None:
            self._path = self._kept.with_name(f".{self._kept.stem}.part{self._kept.suffix}")
            self._film = Film(self._path, self._camera.frames_per_second)
        self._film.add(self._camera.shoot(step, None if action_RA is None else action_RA[0]))
        if not step.episode_done[0]:
            return
        film, self._film = self._film, None
        film.close()
        objective = float(step.objective[0])
        if objective > self._best:
            self._best = objective
            self._path.replace(self._kept)
        elif self._path != self._kept:
            self._path.unlink()

    def close(self) -> None:
        """Remove the film of an unfinished episode if there is another film, or if the film is empty."""
        if self._film is not None:
            film, self._film = self._film, None
            film.close()
            if self._path != self._kept or not self._path.stat().st_size:
                self._path.unlink()


def best_film(path: Path) -> Filmed:
    """Return a factory of recorders that film the best episode on row 0. Raises the errors of `check_film`."""
    check_film(path)
    return partial(_filmed, partial(BestFilm, path.absolute()))


def first_clip(file: IO[bytes]) -> Filmed:
    """Return a factory of recorders that write a clip of the first episode for TensorBoard."""
    return partial(_filmed, partial(Clip, file))


@contextmanager
def _filmed(
    begin: Callable[[Camera], Clip | BestFilm], spec: EnvSpec, rows: int, seed: int, options: EnvOptions
) -> Iterator[tuple[VectorEnv, Clip | BestFilm]]:
    """Yield a vector env and its recorder. begin: function from the camera to the recorder.

    Raises ConfigError if the environment has no pictures, and EnvSetupError if it cannot be rendered.
    """
    made = film(spec.env_id, rows, seed, options, default_shaping_source(spec))
    if made is None:
        raise ConfigError(f"--video: {spec.env_id} has no pictures: leave --video out")
    vector_env, camera = made
    with closing(camera), closing(vector_env), closing(begin(camera)) as recording:
        yield vector_env, recording


def check_clips(config: Config) -> None:
    """Raise ConfigError if a package is missing, or if the environment's family has no pictures."""
    if find_spec("PIL") is None:
        raise ConfigError("--evaluate-video needs the package pillow: pip install 'pbt-rl[video]'")
    shown = has_pictures(config.env, config.env_options)
    require(shown, "evaluate-video", "true", f"{config.env} has no pictures: leave it out")


def check_film(path: Path) -> None:
    """Raise ConfigError for an unknown format, a missing package, or a folder that does not exist."""
    kind = path.suffix.lower()
    if kind not in (".mp4", ".gif"):
        raise ConfigError(f"--video {path} has an unknown format: give a name that ends in .mp4 or .gif")
    if find_spec("imageio_ffmpeg") is None:
        raise ConfigError("--video needs the package imageio-ffmpeg: pip install 'pbt-rl[video]'")
    if path.is_dir():
        raise ConfigError(f"--video {path} cannot be written: it is a folder; give a file name")
    if not path.parent.is_dir():
        raise ConfigError(f"--video {path} cannot be written: the folder {path.parent} does not exist")
