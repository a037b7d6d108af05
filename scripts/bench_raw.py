"""Speed of a vector env compared with a bare loop over its raw engine: `scripts/bench.py --raw`.

Vector env and loop are measured alternately in this process, with random actions and an equal number of rows. A reset
counts as a step. The raw engine is the code that a user would step without pbt_rl:

- atari/: ale-py's vector environment
- gym/, toy/ and custom environments: one Gymnasium environment per row
- all others: `--raw MODULE:FACTORY`
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import psutil

from pbt_rl.envs.base import EnvSpec, cpu_clock, default_shaping_source, private_step_arrays, random_within
from pbt_rl.envs.lookup import EnvOptions, backend_of, make_vector_env, probe
from pbt_rl.registry import load_object

BUILT_IN = "built-in"
WARM_UP_SHARE = 0.2
ACTIONS = 997
"""Number of random actions for each row, which are sampled before the measurement and repeated."""

Loop = tuple[Callable[[], object], Callable[[], int]]
"""(function that steps all rows, clock of CPU-nanoseconds)."""


def beside_raw(env: str, raw: str, rows: int, seconds: float, pairs: int) -> dict[str, Any]:
    """Measure vector env and raw engine alternately. Print a line, and return the figures.

    raw: BUILT_IN for the built-in raw engine, or module:factory. pairs: number of measurements of each.
    """
    options = EnvOptions()
    spec = probe(env, options)
    with ExitStack() as ends:
        loops = {
            "raw": _raw_loop(env, raw, rows, options, ends),
            "vector env": _our_loop(spec, rows, options, ends),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
        for number in range(pairs):
            order = sorted(loops, reverse=bool(number % 2))  # neither side always goes first
            for name in order:
                found[name].append(_measure(*loops[name], seconds, rows))
    figures: dict[str, Any] = {
        "env": env,
        "rows": rows,
        "pairs": pairs,
        "seconds": seconds,
        "frame_skip": spec.frame_skip,
    }
    for name, measured in found.items():
        figures[name] = {
            "frames_per_second": statistics.median(spec.frame_skip / wall * 1e6 for _, wall in measured),
            "cpu_microseconds_per_step": statistics.median(cpu for cpu, _ in measured),
        }
    ratios = [ours / theirs for (ours, _), (theirs, _) in zip(found["vector env"], found["raw"], strict=True)]
    figures["cpu_over_raw"] = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    print(in_words(figures), flush=True)
    return figures


def in_words(figures: dict[str, Any]) -> str:
    """Format the figures in one line."""
    parts = [
        f"{name} {one['frames_per_second']:,.0f} frames/s, {one['cpu_microseconds_per_step']:.2f} us CPU per step"
        for name in ("raw", "vector env")
        for one in [figures[name]]
    ]
    ratio = figures["cpu_over_raw"]
    return (
        f"{figures['env']}, {figures['rows']} rows: {'; '.join(parts)}; CPU over raw {ratio['median']:.2f} "
        f"({ratio['least']:.2f} to {ratio['most']:.2f} in {figures['pairs']} pairs of {figures['seconds']:g} s)"
    )


def _measure(
    step: Callable[[], object], clock: Callable[[], int], seconds: float, rows: int
) -> tuple[float, float]:
    """Return microseconds of CPU time and of wall time per step of one row."""
    warm = time.perf_counter() + WARM_UP_SHARE * seconds
    while time.perf_counter() < warm:
        step()
    began, before, steps = time.perf_counter(), clock(), 0
    while time.perf_counter() < began + seconds:
        step()
        steps += rows
    return (clock() - before) / steps / 1e3, (time.perf_counter() - began) / steps * 1e6


def _our_loop(spec: EnvSpec, rows: int, options: EnvOptions, ends: ExitStack) -> Loop:
    vector_env = make_vector_env(spec.env_id, rows, 0, options, default_shaping_source(spec))
    ends.enter_context(closing(vector_env))
    out, rng = private_step_arrays(spec, rows), np.random.default_rng(0)
    shape = (rows, spec.action.components)
    actions = itertools.cycle([random_actions(spec, shape, rng) for _ in range(ACTIONS)])
    vector_env.reset(out)
    return lambda: vector_env.step(next(actions), out), cpu_clock(vector_env)


def random_actions(spec: Any, shape: tuple[int, int], rng: np.random.Generator) -> Any:
    """Draw random actions [R, A] of all rows."""
    if spec.action.nvec:
        return rng.integers(0, spec.action.nvec, shape).astype(np.int32)
    return random_within(spec.action, shape[0], rng)


def _raw_loop(env: str, raw: str, rows: int, options: EnvOptions, ends: ExitStack) -> Loop:
    """Return the loop over the raw engine. Raises SystemExit if the family has no built-in raw engine."""
    family, _, name = env.partition("/")
    if raw != BUILT_IN:
        make = load_object(raw, "factory")
    elif family == "atari":
        from pbt_rl.envs.ale import engine  # noqa: PLC0415 - it needs ale-py
        from pbt_rl.envs.atari import AtariOptions  # noqa: PLC0415

        engines = engine(name, rows, AtariOptions(), img_height=84, img_width=84, grayscale=True)
        return _vector(ends.enter_context(closing(engines)), rows), time.process_time_ns
    else:
        backend, name = backend_of(env, options)
        if backend.make is None:
            raise SystemExit(f"{env} has no built-in raw engine: give --raw module:factory")
        made = backend.make
        make = lambda: made(name, options)  # noqa: E731
    first: Any = make()
    ends.enter_context(closing(first))
    if hasattr(first, "num_envs"):
        assert first.num_envs == rows, (
            f"the raw engine has {first.num_envs} rows: give --rows {first.num_envs}"
        )
        return _vector(first, rows), _cpu_ns
    envs = [first, *(ends.enter_context(closing(make())) for _ in range(rows - 1))]
    return _single(envs), _cpu_ns


def _cpu_ns() -> int:
    """Return the CPU-nanoseconds of this process and of its child processes."""
    times = [one.cpu_times() for one in psutil.Process().children(recursive=True)]
    return time.process_time_ns() + round(1e9 * sum(one.user + one.system for one in times))


def _vector(engine: Any, rows: int) -> Callable[[], object]:
    space, rng = engine.single_action_space, np.random.default_rng(0)
    drawn = [rng.integers(0, space.n, rows) for _ in range(ACTIONS)]
    actions = itertools.cycle(drawn)
    engine.reset(seed=0)
    return lambda: engine.step(next(actions))


def _single(envs: Sequence[Any]) -> Callable[[], object]:
    """Return a function that steps or resets each environment once. envs: Gymnasium environments."""
    envs[0].action_space.seed(0)
    actions: Iterator[Any] = itertools.cycle([envs[0].action_space.sample() for _ in range(ACTIONS)])
    over = [False] * len(envs)
    for row, env in enumerate(envs):
        env.reset(seed=row)

    def step() -> None:
        for row, env in enumerate(envs):
            if over[row]:
                env.reset()
                over[row] = False
            else:
                _, _, terminated, truncated, _ = env.step(next(actions))
                over[row] = terminated or truncated

    return step
