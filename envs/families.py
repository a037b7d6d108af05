"""The families of environments that come with the project, described without importing them.

`pbt_rl/registry.py` names them by family; another package adds its own `Family` as an entry point `pbt_rl.families`.
"""

from __future__ import annotations

from .atari import AtariOptions
from .dmlab.options import DmlabOptions
from .family import Family
from .recipes import DMLAB_RECIPES, ROBOT_RECIPES

ATARI = Family(
    "atari",
    "Atari 2600 games",
    "atari/pong",
    ("ale_py",),
    "pip install ale-py",
    ".ale",
    options={"atari": AtariOptions},
)
GYM = Family(
    "gym",
    "Gymnasium environments",
    "gym/CartPole-v1",
    ("gymnasium",),
    "pip install gymnasium, with extras such as 'gymnasium[mujoco]' for more",
    ".gym",
    takes_keywords=True,
)
TOY = Family("toy", "toys with known answers", "toy/memory", ("gymnasium",), "pip install gymnasium", ".toy")
DMLAB2D = Family(
    "dmlab2d",
    "DeepMind Lab2D levels",
    "dmlab2d/commons_harvest",
    ("dmlab2d",),
    "pip install 'pbt-rl[dmlab2d]'",
    ".agents.lab2d",
    takes_keywords=True,
    several_agents=True,
)
PETTINGZOO = Family(
    "pettingzoo",
    "PettingZoo: environments of several agents",
    "pettingzoo/classic/connect_four_v3",
    ("pettingzoo",),
    "pip install 'pbt-rl[pettingzoo]'",
    ".agents.pettingzoo",
    takes_keywords=True,
    several_agents=True,
)
DMLAB = Family(
    "dmlab",
    "DeepMind Lab",
    "dmlab/dmlab30",
    ("deepmind_lab",),
    "it is on no registry; build the module deepmind_lab as https://github.com/google-deepmind/lab says "
    "(python/pip_package), and install that or put it on PYTHONPATH",
    ".dmlab.unit",
    takes_keywords=True,
    options={"dmlab": DmlabOptions},
    short_names={"dmlab30": "dmlab/dmlab30"},
    recipes=DMLAB_RECIPES,
)
VIZDOOM = Family(
    "vizdoom",
    "Doom scenarios",
    "vizdoom/basic",
    ("vizdoom",),
    "pip install 'pbt-rl[vizdoom]'",
    ".doom.unit",
    several_agents=True,
)
ENVPOOL = Family(
    "envpool",
    "EnvPool's native vectors",
    "envpool/Pong-v5",
    ("envpool",),
    "pip install 'pbt-rl[envpool]'",
    ".envpool.unit",
    takes_keywords=True,
    options={"atari": AtariOptions},
)
GYMNAX = Family(
    "gymnax",
    "JAX environments of gymnax, on the learner's device",
    "gymnax/CartPole-v1",
    ("gymnax", "six"),  # gymnax imports six without requiring it
    "pip install gymnax six",
    ".resident.gymnax",
    takes_keywords=True,
    on_device=True,
)
MJLAB = Family(
    "mjlab",
    "mjlab's robots (MuJoCo Warp), on the learner's device",
    "mjlab/Mjlab-Velocity-Flat-Unitree-Go1",
    ("mjlab",),
    "pip install mjlab",
    ".rsl.tasks:MJLAB",
    recipes=ROBOT_RECIPES,
    takes_keywords=True,
    on_device=True,
)
ISAACLAB = Family(
    "isaaclab",
    "Isaac Lab's tasks, on the learner's device (never run, see docs/reference/simulators.md)",
    "isaaclab/Isaac-Velocity-Flat-Anymal-C-v0",
    ("isaaclab", "isaaclab_tasks", "isaaclab_rl"),
    "install Isaac Lab as https://isaac-sim.github.io/IsaacLab says, and pbt_rl into its Python environment",
    ".rsl.tasks:ISAACLAB",
    takes_keywords=True,
    on_device=True,
)
TENSORS = Family(
    "tensors",
    "toys on the learner's device",
    "tensors/pendulum",
    ("torch",),
    "pip install torch",
    ".resident.tensors",
    takes_keywords=True,
    on_device=True,
)
