"""Pictures of the first episode of an evaluation, and the film that is made of them.

A unit has no pictures of its own: learners need none. Here an environment is filmed without changing how it
is played: a Gymnasium environment is made with `rgb_array`, and an Atari game is played a second time, in
colour and beside the first, with the same actions. A game with sticky actions draws them from its own
generator, so a second one would go another way: of such a game the policy's own grey frames are shown.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from pbt_rl.envs.atari import AtariOptions
from pbt_rl.envs.base import EnvSpec, ShapingSource, StepArrays, Unit, default_shaping_source
from pbt_rl.envs.gym import GymUnit, maker
from pbt_rl.envs.registry import EnvOptions, make_unit
from pbt_rl.errors import ConfigError

Picture = NDArray[np.uint8]
"""[H, W, 3]"""

ATARI_FRAMES_PER_SECOND = 60
SEEN_FRAMES_PER_SECOND = {"vizdoom": 35, "dmlab": 60}
"""Families of which the film shows what the policy sees."""
ATARI_SCREEN = (210, 160)
LEAST_HEIGHT = 320
"""Smaller pictures are enlarged by a whole factor."""


class Camera(Protocol):
    """Takes pictures of row 0 of a unit."""

    @property
    def frames_per_second(self) -> float:
        """Pictures of a second in the environment's own time."""

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:
        """Show row 0 after the step that this action caused; None after the first reset."""

    def close(self) -> None:
        """Release what belongs to the camera alone."""


class ColourTwin:
    """The same Atari game a second time, in colour. Its no-op steps are those marked `first`."""

    def __init__(self, game: str, options: AtariOptions) -> None:
        from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415 - needed for films of Atari only

        assert options.repeat_action_probability == 0, "a twin with sticky actions goes another way"
        height, width = ATARI_SCREEN
        self.frames_per_second = ATARI_FRAMES_PER_SECOND / options.frame_skip
        self._engine: Any = AtariVectorEnv(
            game,
            1,
            num_threads=1,
            max_num_frames_per_episode=options.max_frames_per_episode,
            full_action_space=options.full_action_space,
            img_height=height,
            img_width=width,
            grayscale=False,
            stack_num=1,
            frameskip=options.frame_skip,
            noop_max=0,
            reward_clipping=False,
            use_fire_reset=options.fire_reset,
        )

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:
        """See Camera. Action 0 is NOOP in every game that starts with no-ops."""
        if action_A is None:
            frames, _ = self._engine.reset()
        else:
            frames = self._engine.step(np.zeros(1, np.int32) if step.first[0] else action_A[:1])[0]
        picture: Picture = frames[0, 0].copy()
        return picture

    def close(self) -> None:
        """Release the engine."""
        self._engine = None


class GreyFrames:
    """What the policy itself sees of an Atari game: the newest 84x84 grey frame."""

    def __init__(self, options: AtariOptions) -> None:
        self.frames_per_second = ATARI_FRAMES_PER_SECOND / options.frame_skip

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:  # noqa: ARG002 - a Camera
        """See Camera."""
        return np.repeat(step.obs["obs"][0][..., None], 3, axis=-1)

    def close(self) -> None:
        """Hold nothing."""


class SeenPictures:
    """What the policy itself sees, where that is an RGB picture [3, H, W]."""

    def __init__(self, frames_per_second: float) -> None:
        self.frames_per_second = frames_per_second

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:  # noqa: ARG002 - a Camera
        """See Camera."""
        return np.moveaxis(step.obs["obs"][0], 0, -1)

    def close(self) -> None:
        """Hold nothing."""


class GymCamera:
    """Renders a Gymnasium environment that was made with `render_mode="rgb_array"`."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self.frames_per_second = float(env.metadata.get("render_fps", 30))

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:  # noqa: ARG002 - a Camera
        """See Camera. Raises ConfigError where the environment cannot be drawn."""
        try:
            picture: Any = self._env.render()
        except (gymnasium.error.Error, ImportError) as error:
            raise ConfigError(
                f"--video: the environment cannot be drawn: {str(error).rstrip('.')}"
            ) from error
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise ConfigError(f"--video: render() returned {type(picture).__name__}, not a picture [H, W, 3]")
        return picture[..., :3].astype(np.uint8, copy=False)

    def close(self) -> None:
        """The unit closes its environments."""


def filmed_unit(spec: EnvSpec, rows: int, seed: int, options: EnvOptions) -> tuple[Unit, Camera]:
    """Make a unit, and a camera on its row 0. Raises ConfigError for environments without pictures."""
    shaping = default_shaping_source(spec)
    family, _, name = spec.env_id.partition("/")
    if family == "atari":
        sticky = options.atari.repeat_action_probability > 0
        camera: Camera = GreyFrames(options.atari) if sticky else ColourTwin(name, options.atari)
        return make_unit(spec.env_id, rows, seed, options, shaping), camera
    if family == "gym":
        return _filmed_gym_unit(spec.env_id, name, rows, seed, shaping, options)
    if family in SEEN_FRAMES_PER_SECOND:
        unit = make_unit(spec.env_id, rows, seed, options, shaping)
        return unit, SeenPictures(SEEN_FRAMES_PER_SECOND[family] / spec.frame_skip)
    raise ConfigError(
        f"--video: {spec.env_id} has no pictures; atari/, vizdoom/ and dmlab/ have, and gym/ where rgb_array can be "
        "rendered"
    )


def _filmed_gym_unit(
    env_id: str, name: str, rows: int, seed: int, shaping: ShapingSource, options: EnvOptions
) -> tuple[GymUnit, GymCamera]:
    made: list[gymnasium.Env[Any, Any]] = []

    def make() -> gymnasium.Env[Any, Any]:
        mode = None if made else "rgb_array"
        env = gymnasium.make(name, render_mode=mode, disable_env_checker=True, **options.keywords)
        made.append(env)
        return env

    plain = maker(name, options.keywords)()
    modes = plain.metadata.get("render_modes") or []
    plain.close()
    if "rgb_array" not in modes:
        raise ConfigError(f"--video: {env_id} cannot render rgb_array, only {', '.join(modes) or 'nothing'}")
    unit = GymUnit(env_id, make, rows, seed, shaping)
    return unit, GymCamera(made[0])


class Film:
    """A .mp4 or .gif that is written picture by picture: a game of half an hour needs no memory."""

    def __init__(self, path: Path, frames_per_second: float) -> None:
        import imageio.v2 as imageio  # noqa: PLC0415 - the extra `video`; checked by `check_film`

        options: dict[str, Any] = (
            {"duration": 1000 / frames_per_second, "loop": 0}
            if path.suffix.lower() == ".gif"
            else {"fps": frames_per_second, "macro_block_size": 2}
        )
        try:
            self._writer: Any = imageio.get_writer(path, mode="I", **options)
        except OSError as error:
            raise ConfigError(f"--video {path} cannot be written: {error.strerror or error}") from error

    def add(self, picture: Picture) -> None:
        """Append a picture, enlarged where it is small. An odd row or column is cut: codecs want pairs."""
        factor = -(-LEAST_HEIGHT // picture.shape[0])
        large = picture.repeat(factor, axis=0).repeat(factor, axis=1)
        height, width = (n - n % 2 for n in large.shape[:2])
        self._writer.append_data(large[:height, :width])

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def check_film(path: Path) -> None:
    """Raise ConfigError where a film could not be written, before anything is played."""
    kind = path.suffix.lower()
    if kind not in (".mp4", ".gif"):
        raise ConfigError(f"--video {path}: write a name that ends in .mp4 or .gif")
    needs = ("imageio",) if kind == ".gif" else ("imageio", "imageio_ffmpeg")
    missing = [package for package in needs if find_spec(package) is None]
    if missing:
        raise ConfigError(f"--video needs the package {', '.join(missing)}: pip install 'pbt-rl[video]'")
    if not path.parent.is_dir():
        raise ConfigError(f"--video {path} cannot be written: the folder {path.parent} is not there")
