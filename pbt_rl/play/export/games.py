"""How environments are played, for those who play them without this package."""

from __future__ import annotations

from dataclasses import asdict

from pbt_rl.envs.ale import fire_of
from pbt_rl.envs.atari import AtariOptions, game_facts
from pbt_rl.envs.registry import EnvOptions

_FRAMES = (
    "Frames, one at a time, are those of `ale_py.vector_env.AtariVectorEnv({game!r}, N, stack_num=1, "
    "frameskip={frame_skip}, noop_max={noops}, repeat_action_probability={repeat_action_probability}, "
    "full_action_space={full_action_space}, max_num_frames_per_episode={max_frames_per_episode}, "
    "reward_clipping=False, use_fire_reset=False)`: grey, 84x84, the maximum of a step's last two emulator frames."
)
_FIRE = (
    "FIRE ({fire}) is then pressed for one step, whatever the policy says. The frame after it is the "
    "first of an episode for the policy: a stack begins anew with copies of it, and a recurrent state with zeros. FIRE "
    "is pressed, too, for the step after each lost life but the last"
)
_FIRE_BEGINS = "; it begins an episode for the policy there as well."
_FIRE_GOES_ON = ", within the episode."
_SCORE = "Its score is the sum of all rewards, unclipped, to its end: a lost life does not end it."


def played(env_id: str, options: EnvOptions) -> str:
    """Return what lies between its engine and a policy, as Markdown; "" if nothing."""
    family, _, name = env_id.partition("/")
    keywords = ", ".join(f"`{key}={value!r}`" for key, value in options.keywords.items())
    parts = [
        f"It is made with {keywords}." if keywords else "",
        game_played(name, options.of(AtariOptions)) if family == "atari" else "",
    ]
    return "\n\n".join(filter(None, parts))


def game_played(game: str, options: AtariOptions) -> str:
    """Say how a game is played, for those who play it without this package."""
    names = game_facts(game)[0]
    actions = ", ".join(f"{i} {name}" for i, name in enumerate(names))
    lines = [_FRAMES.format(game=game, noops=options.noop_max + 1, **asdict(options))]
    if options.frame_stack > 1:
        lines.append(f"The newest {options.frame_stack} frames are stacked.")
    lines.append("All 18 actions are legal." if options.full_action_space else f"Actions: {actions}.")
    lines.append(
        f"A game starts with 0 to {options.noop_max} single emulator frames without an action. {_SCORE}"
    )
    fire = fire_of(game, options)
    if options.fire_reset and fire is not None:
        lines.append(_FIRE.format(fire=fire) + (_FIRE_BEGINS if options.episodic_life else _FIRE_GOES_ON))
    return "\n".join(f"- {line}" for line in lines)
