"""Checks of device simulators (`SimulatorEnv`): return values, use of shaping weights, synchronisations.

Two policies act in one simulator. The main run has default shaping weights for the first policy, and other weights for
the second policy. If there are shaping weights, the main run is compared with two runs of the same seed and actions: a
repetition, and a run with default weights for both policies.

Axes: P = 2 policies, b rows of a policy, R = P * b, K shaping terms, T steps, A action components.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pbt_rl.envs import lookup
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.first_trial import environment_traceback
from pbt_rl.envs.simulators import Checks, SimulatorEnv, SimulatorStep
from pbt_rl.errors import EnvSetupError
from pbt_rl.learner.cuda.recording import INDEXING, WAITING

POLICIES, ENVS = 2, 4
STEPS = 400
"""Maximum number of steps per row."""
SAME_LENGTH = 8
"""Number of episodes of equal length, without truncation, from which an undeclared time limit is suspected."""
_ELSEWHERE = tuple(f"{folder}/" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))
_OURS = tuple(f"{Path(__file__).resolve().parents[3] / room}/" for room in ("pbt_rl", "envs", "algos"))


@dataclass
class Played:
    """Record of one run of the simulator."""

    rewards: list[Tensor] = field(default_factory=list)
    """T tensors [R]: rewards of each step."""
    objectives: list[Tensor] = field(default_factory=list)
    """T tensors [R]: objectives of each step. Empty if the simulator returns no objectives."""
    lengths: list[int] = field(default_factory=list)
    """Lengths of all ended episodes, in steps."""
    terminated: int = 0
    truncated: int = 0
    final_obs: bool = False
    """True if the simulator returns final observations."""
    adapted: bool = False
    """True if pbt_rl contains the simulator's class, which is mostly an adapter of a third-party simulator."""
    waits: Counter[str] = field(default_factory=Counter)
    """Call and source line -> number of synchronisations."""
    broke: str = ""
    """Error that ended the run. Empty without an error."""


class Waits(TorchDispatchMode):
    """Dispatch mode that counts device synchronisations per line of the simulator's code."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's has no annotations
        self._found = found

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().split("::")[1].split(".")[0]
        by_mask = name in INDEXING and any(
            isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in args[1]
        )
        if name in WAITING or by_mask:
            self._found[f"{'a mask as index' if by_mask else _said(name)}, {_place()}"] += 1
        return func(*args, **(kwargs or {}))


def _said(name: str) -> str:
    return ".item(), float() or a truth value" if name == "_local_scalar_dense" else f"{name}()"


def _place() -> str:
    """Return the innermost source line in the call stack outside pbt_rl and torch."""
    frames = traceback.extract_stack(sys._getframe(2))  # noqa: SLF001 - start at the caller
    inside = [frame for frame in frames if not frame.filename.startswith((*_ELSEWHERE, *_OURS))]
    last = (inside or frames)[-1]
    return f"{Path(last.filename).name}:{last.lineno} in {last.name}"


def check_rows(
    env_id: str, options: lookup.EnvOptions, spec: EnvSpec, steps: int, seed: int, device: str
) -> tuple[list[str], list[str]]:
    """Run all checks of a device simulator. Return (errors, warnings), one text per finding.

    steps: total number of steps over all rows. device: device of the simulator, such as "cuda:0".
    """
    defaults = list(spec.shaping.values())
    others = [2 * value or 1.0 for value in defaults]
    each = max(1, min(STEPS, steps // (POLICIES * ENVS)))

    def play(*weights: list[float]) -> Played:
        return _played(env_id, options, weights, each, seed, device)

    main = play(defaults, others)
    if main.broke:
        return [main.broke], []
    mistakes, notes = _of_ends(main)
    if main.waits:
        place, _ = main.waits.most_common(1)[0]
        text = (
            f"a step waits for the device {sum(main.waits.values()) / each:.3g} times on average ({place}). Use "
            "torch.where and masks instead"
        )
        (notes if main.adapted else mistakes).append(text)
    if spec.shaping:
        of_weights = _of_weights(main, play(defaults, others), play(defaults, defaults))
        mistakes += of_weights[0]
        notes += of_weights[1]
    return mistakes, notes


def _played(
    env_id: str, options: lookup.EnvOptions, weights: Any, steps: int, seed: int, device: str
) -> Played:
    played = Played()
    try:
        env: SimulatorEnv = lookup.make_simulator(env_id, POLICIES * ENVS, seed, device, options)
        with closing(env):
            _play(env, torch.tensor(weights, device=env.device), steps, played)
    except EnvSetupError as error:
        played.broke = str(error).removeprefix(f"{env_id}: ")
    except Exception as error:  # noqa: BLE001 - any exception of the simulator is reported
        played.broke = f"it raised {type(error).__name__}\n{environment_traceback(error)}"
    if played.broke:
        played.broke = f"at step {len(played.rewards) + 1}: {played.broke}"
    return played


@torch.no_grad()
def _play(env: SimulatorEnv, weights_PK: Tensor, steps: int, played: Played) -> None:
    played.adapted = type(env).__module__.startswith("pbt_rl.")
    checks, random = Checks(env, POLICIES), torch.Generator().manual_seed(0)
    length = torch.zeros(env.rows, dtype=torch.int64)
    env.attach(weights_PK)
    checks.obs(env.reset())
    for _ in range(steps):
        action = _drawn(env.spec, env.rows, random).to(env.device)
        with Waits(played.waits):
            step = env.step(action)
        checks.step(step)
        checks.values(step.obs)
        checks.rewards(step.reward if step.objective is None else step.reward + step.objective)
        checks.ends(step.terminated, step.truncated)
        wrong = [text for text, so in zip(checks.KINDS, checks.wrong.any(0).tolist(), strict=True) if so]
        if wrong:
            raise EnvSetupError(wrong[0])
        _note(played, step, length)


def _note(played: Played, step: SimulatorStep, length: Tensor) -> None:
    played.rewards.append(step.reward.cpu().clone())
    if step.objective is not None:
        played.objectives.append(step.objective.cpu().clone())
    played.final_obs = step.final_obs is not None
    terminated, truncated = step.terminated.cpu(), step.truncated.cpu()
    length += 1
    played.lengths += length[terminated | truncated].tolist()
    played.terminated += int(terminated.sum())
    played.truncated += int(truncated.sum())
    length.masked_fill_(terminated | truncated, 0)


def _drawn(spec: EnvSpec, rows: int, random: torch.Generator) -> Tensor:
    """Sample actions of an untrained policy, [R, A]."""
    action = spec.action
    parts = [torch.randint(size, (rows, 1), generator=random) for size in action.nvec]
    if action.low:
        centre, half = (torch.tensor(x) for x in action.units)
        drawn = centre + half * torch.randn((rows, len(action.low)), generator=random)
        parts.append(drawn.clamp(torch.tensor(action.low), torch.tensor(action.high)))
    return torch.cat(parts, 1).to(getattr(torch, action.dtype))


def _of_ends(played: Played) -> tuple[list[str], list[str]]:
    number, longest = len(played.lengths), max(played.lengths, default=0)
    as_long = played.lengths.count(longest)
    if as_long >= SAME_LENGTH and not played.truncated and longest > 1:
        remedy = (
            f"terminated after exactly {longest} steps. At a time limit, set truncated instead of terminated. "
            "Otherwise, the values of all earlier states are too low"
        )
        if as_long == number:
            return [f"no time-outs: all {number} episodes were {remedy}"], []
        if 2 * as_long > number:
            return [], [f"no time-outs: the longest episodes ({as_long} of {number}) were {remedy}"]
    if played.truncated and not played.final_obs:
        text = "no final_obs: at a time limit, the value of the observation before the last step is used"
        return [], [text]
    return [], []


NO_OBJECTIVE = (
    "it returns no objective, but the reward depends on tuned weights. Set SimulatorStep.objective, because PBT ranks "
    "members by the objective"
)
BY_CHANCE = "not deterministic under a seed: the effect of the weights cannot be separated from chance"
OF_ANOTHER = (
    "the rewards of a policy depend on the weights of another policy. Row r belongs to policy r // b: use "
    "weights_PK.repeat_interleave(rows // len(weights_PK), 0)"
)
CONTAINED = (
    "the objective depends on the weights. Compute the objective without weights, because a member could otherwise "
    "raise its objective by its weights"
)
UNREAD = "the weights had no effect on any reward: read them at every step"


def _of_weights(main: Played, again: Played, usual: Played) -> tuple[list[str], list[str]]:
    """Check the effect of shaping weights by comparing runs. Return (errors, warnings).

    main, again: two equal runs, with other weights for the second policy than for the first policy.
    usual: run with default weights for both policies.
    """
    if not main.objectives:
        return [NO_OBJECTIVE], []
    if not _same(main.rewards, again.rewards):
        return [], [BY_CHANCE]
    if not _same(main.rewards, usual.rewards, slice(None, ENVS)):
        return [OF_ANOTHER], []
    if not _same(main.objectives, usual.objectives):
        return [CONTAINED], []
    return [], [UNREAD] if _same(main.rewards, usual.rewards) else []


def _same(left: list[Tensor], right: list[Tensor], rows: slice = slice(None)) -> bool:
    return all(torch.equal(a[rows], b[rows]) for a, b in zip(left, right, strict=False))
