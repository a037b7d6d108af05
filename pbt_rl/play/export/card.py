"""Model card of an exported member: a README.md for model hubs, with YAML header and Markdown.

The card of an Atari member documents the preprocessing of the game, because other programs must repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isinf

import yaml

from pbt_rl.actors.state_pool import SnapshotHeader
from pbt_rl.config import Config
from pbt_rl.controllers.hypers import SHAPING
from pbt_rl.controllers.lineage import Lineage, Node
from pbt_rl.controllers.objectives import mean, spread
from pbt_rl.display.ranking import two_values
from pbt_rl.envs.ale import fire_of
from pbt_rl.envs.atari import AtariOptions, game_facts
from pbt_rl.envs.base import ActionSpec
from pbt_rl.envs.lookup import EnvOptions
from pbt_rl.play.export.net import STATE_IN, ExportedPolicy, Port
from pbt_rl.record.saved import SavedPolicy
from pbt_rl.version import __version__

INDICES = "indices count from 0: add the `start` of a `Discrete` or `MultiDiscrete`, or the `low` of an integer `Box`"
ORDER = "components are in the order of the action space (in a `Dict`: sorted by key), discrete before continuous ones"
USES = {
    "onnx": """import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("policy.onnx")
inputs = {one.name: ... for one in session.get_inputs()}  # NumPy arrays as in the table
outputs = session.run(None, inputs)""",
    "safetensors": """from safetensors.numpy import load_file

weights = load_file("policy.safetensors")  # net.*: the network's state_dict; statistics.*: the normalisers""",
    "rsl_rl": """import json

from rsl_rl.runners import OnPolicyRunner

with open("policy_rsl_rl.json") as file:
    found = json.load(file)
runner = OnPolicyRunner(env, found["runner"], device=env.device)  # name your observation group in "obs_groups"
runner.load("policy_rsl_rl.pt")  # without a critic in it: load_cfg={"actor": True}
act = runner.get_inference_policy()

# Or train from scratch with the schedule of hyperparameters:
steps = env.num_envs * found["runner"]["num_steps_per_env"]
for now, then in zip(found["schedule"], [*found["schedule"][1:], found["end"]]):
    for name, value in now["algorithm"].items():
        setattr(runner.alg, name, value)
    for group in runner.alg.optimizer.param_groups:
        group["lr"] = now["algorithm"]["learning_rate"]
    for term, weight in now["reward_weights"].items():
        env.unwrapped.reward_manager.get_term_cfg(term).weight = weight
    runner.learn((then["steps"] - now["steps"]) // steps)""",
}


@dataclass(frozen=True)
class Card:
    """Contents of a model card.

    scores: objectives of evaluation episodes, may be empty. played: description of the environment's preprocessing.
    lineage: lineages of all members of the run. None if unknown.
    """

    config: Config
    saved: SavedPolicy
    header: SnapshotHeader
    policy: ExportedPolicy
    formats: Sequence[str]
    scores: Sequence[float]
    played: str
    lineage: Lineage | None

    def text(self) -> str:
        """Return the text of README.md."""
        header = yaml.safe_dump(self._metadata(), sort_keys=False, allow_unicode=True)
        played = f"## Environment\n\n{self.played}" if self.played else ""
        parts = [self._what(), self._how(), played, self._values(), self._descent()]
        return f"---\n{header}---\n\n" + "\n\n".join(part for part in parts if part) + "\n"

    @property
    def _name(self) -> str:
        return f"{self.saved.run.resolve().name}-policy-{self.saved.member:02d}"

    def _score(self) -> str:
        return f"{mean(self.scores):.2f} +/- {spread(self.scores):.2f}"

    def _metadata(self) -> dict[str, object]:
        env, kind = self.config.env, "reinforcement-learning"
        tags = [env, kind, f"deep-{kind}", "population-based-training", *self.formats]
        content: dict[str, object] = {"library_name": "pbt_rl", "tags": tags}
        if self.scores:
            metric = {"type": "mean_reward", "value": self._score(), "name": "mean_reward", "verified": False}
            dataset = {"name": env, "type": env}
            result = {"task": {"type": kind, "name": kind}, "dataset": dataset, "metrics": [metric]}
            content["model-index"] = [{"name": self._name, "results": [result]}]
        return content

    def _what(self) -> str:
        header, model = self.header, self.config.model
        score = (
            f", objective {self._score()} over {len(self.scores)} episodes with sampled actions"
            if self.scores
            else ""
        )
        width = "" if ":" in model.core else f" of {model.core_size}"
        core = "" if model.core == "none" else f", {model.core}{width}"
        return (
            f"# {self._name}\n\nA policy for `{self.config.env}`{score}. Trained by pbt_rl "
            f"{__version__} as member {header.member} of a population of {self.config.num_policies}, "
            f"with `{self.config.algo}`, for {header.frames:,} frames "
            f"and {header.updates:,} updates. Encoder `{model.encoder}`{core}."
        )

    def _how(self) -> str:
        rows = [f"| `{p.name}` | {p.dtype} | {_shape(p)} | {_meaning(p)} |" for p in self.policy.inputs]
        action = self.policy.action
        parts = [
            f"the most probable index of each component, of {list(action.nvec)}" * bool(action.nvec),
            _mean(action) * bool(action.low),
        ]
        kind = f"{action.dtype} [N, {action.components}]: {', then '.join(filter(None, parts))}"
        kind += f"; {INDICES}" * bool(action.nvec) + f"; {ORDER}" * (action.components > 1)
        pieces = ["logits of all components"] * bool(action.nvec)
        pieces += ["means", "log stds"] * bool(action.low)
        wide = ", then ".join(pieces)
        centre, half = action.units
        moved = any(centre) or any(x != 1 for x in half)
        if action.low and self.config.model.action_bounds == "clip" and moved:
            wide += f" (of numbers u; an action is {list(centre)} + {list(half)} * u, clipped to its bounds)"
        value = "" if self.policy.acts_only else "\n- `value` float32 [N]: expected return"
        state = (
            f"\n- `state_out` float32 {_shape(self.policy.inputs[-1])}: `{STATE_IN}` of the next step"
            * self.policy.recurrent
        )
        normalised = "Observations are normalised inside. " if self.policy.normalises else ""
        size = self.policy.distribution.param_size
        uses = "\n\n".join(f"```python\n{USES[name]}\n```" for name in self.formats)
        return (
            "## Use\n\n"
            + uses
            + "\n\n| input | dtype | shape | |\n| --- | --- | --- | --- |\n"
            + "\n".join(rows)
            + f"\n\nOutputs:\n\n- `action` {kind}\n- `params` float32 [N, {size}]: {wide}; "
            f"sample from them to act as in training{value}{state}\n\n"
            f"{normalised}The network computes in float32. If training used bfloat16, the order of two almost equally "
            "probable actions may differ."
        )

    def _values(self) -> str:
        rows = [f"| {name.removeprefix(SHAPING)} | {value:g} |" for name, value in self.header.values.items()]
        return "## Hyperparameters and reward shaping at the end\n\n| | |\n| --- | --- |\n" + "\n".join(rows)

    def _descent(self) -> str:
        key = (self.header.member, self.header.generation)
        if self.lineage is None or key not in self.lineage:
            return ""
        line = self.lineage.line(key)
        steps = [_step(before, node) for before, node in zip([None, *line], line, strict=False)]
        return "## Lineage\n\nOrigin of the weights, oldest first:\n\n" + "\n".join(steps)


def _mean(action: ActionSpec) -> str:
    if all(map(isinf, (*action.low, *action.high))):
        return "the mean, without bounds"
    return f"the mean, within {list(action.low)} to {list(action.high)}"


def _shape(port: Port) -> str:
    return f"[{', '.join(map(str, ('N', *port.shape)))}]"


def _meaning(port: Port) -> str:
    of = f"observation `{port.obs}`: " if port.obs not in ("", port.name) else ""
    if port.name == STATE_IN:
        return "recurrent state; zeros when an episode begins, then `state_out`"
    if port.frames > 1:
        return f"{of}the last {port.frames} frames, oldest first; an episode begins with copies of its first frame"
    if port.dtype == "uint8" and len(port.shape) == 3:
        shown = f" (the environment returns {port.given})" if port.given else ""
        return f"{of}pixels, always channels first{shown}"
    if port.dtype == "int32":
        return f"{of}the words of a text, hashed as in training, right-aligned and padded with 0"
    scaled = f", {port.given}" if port.given else ""
    return f"{of}numbers as returned by the environment{scaled}; for a `Discrete` space one-hot, 1 at value - `start`"


def _step(before: Node | None, node: Node) -> str:
    if before is None:
        return f"1. member {node.member}: initialised weights"
    moved = [
        f"{name} {' -> '.join(two_values(before.values[name], value))}"
        for name, value in node.values.items()
        if before.values.get(name, value) != value
    ]
    kind = "copied from" if node.member != before.member else "continued from"
    values = f", {', '.join(moved)}" if moved else ""
    return f"1. member {node.member} at {node.frames:,} frames: {kind} member {before.member}{values}"


_FRAMES = (
    "Single frames are those of `ale_py.vector_env.AtariVectorEnv({game!r}, N, stack_num=1, "
    "frameskip={frame_skip}, noop_max={noops}, repeat_action_probability={repeat_action_probability}, "
    "full_action_space={full_action_space}, max_num_frames_per_episode={max_frames_per_episode}, "
    "reward_clipping=False, use_fire_reset=False)`: grey, 84x84, the maximum of a step's last two emulator frames."
)
_FIRE = (
    "FIRE ({fire}) is then pressed for one step, regardless of the policy's action. The next frame is the first of an "
    "episode for the policy: the frame stack is filled with copies of it, and a recurrent state is reset to zeros. "
    "FIRE is also pressed for the step after each lost life except the last"
)
_FIRE_BEGINS = "; this also begins an episode for the policy."
_FIRE_GOES_ON = ", within the episode."
_SCORE = "The score is the sum of all unclipped rewards of a game; a lost life does not end the game."


def played(env_id: str, options: EnvOptions) -> str:
    """Describe the keywords of the environment's factory, and the preprocessing of an Atari game, as Markdown.

    Return "" without keywords, except for Atari games.
    """
    family, _, name = env_id.partition("/")
    keywords = ", ".join(f"`{key}={value!r}`" for key, value in options.keywords.items())
    parts = [
        f"The environment is created with {keywords}." if keywords else "",
        game_played(name, options.of(AtariOptions)) if family == "atari" else "",
    ]
    return "\n\n".join(filter(None, parts))


def game_played(game: str, options: AtariOptions) -> str:
    """Describe the preprocessing of an Atari game as a Markdown list."""
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
