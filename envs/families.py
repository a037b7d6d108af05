"""Built-in families of environments, described without importing the modules of the families.

`pbt_rl/registry.py` lists the families by name. Other packages add a `Family` as an entry point `pbt_rl.families`.

The constant RSL_RL has the values of `config/example_config.yaml` in https://github.com/leggedrobotics/rsl_rl
(rsl-rl-lib 3 to 5). Its values of the algorithm equal the defaults of `PPO.__init__` in RSL-RL. RSL-RL's value loss has
no factor of 1/2, so a weight of 1.0 in RSL-RL is 2.0 here. RSL-RL's `clip_param` clips both ratio and value.

Differences from RSL-RL:
- Weights are initialised orthogonally.
- Advantages are normalised per minibatch, not per batch.
- The learning rate follows the KL divergence after a batch, not after each minibatch.
- The gradients of policy and value are clipped together, not separately.
"""

from __future__ import annotations

from pbt_rl.registry import Recipe

from .atari import AtariOptions
from .dmlab.dmlab_options import DmlabOptions
from .family import Family

SIMULATOR: dict[str, object] = {"mode": "sync"}
"""Default options on a device simulator. The mode is `sync`, because the learner's thread steps the simulator."""
RSL_RL: dict[str, object] = SIMULATOR | {
    "model.encoder": "mlp",
    "model.critic": "separate",
    "model.hidden": (256,),
    "model.layers": 3,
    "model.activation": "elu",
    "learner.rollout": 24,
    "learner.epochs": 5,
    "learner.minibatches": 4,
    "learner.lr_schedule": "kl-adaptive",
    "learner.lr_schedule_kl": 0.01,
    "learner.normalize_observations": False,
    "learner.normalize_returns": False,
    "hypers.unroll": 24,
    "hypers.learning_rate": 1e-3,
    "hypers.entropy_coef": 0.01,
    "hypers.value_coef": 2.0,
    "hypers.clip_ratio": 0.2,
    "hypers.clip_value": 0.2,
    "hypers.gamma": 0.99,
    "hypers.gae_lambda": 0.95,
    "hypers.max_grad_norm": 1.0,
}
ROBOTS: dict[str, object] = RSL_RL | {
    "model.hidden": (128,),
    "learner.lr_schedule": "constant",
    "learner.normalize_observations": True,
    "learner.normalize_returns": True,
    "hypers.entropy_coef": 0.005,
    "hypers.value_coef": 0.5,
    "hypers.clip_value": 1.0,
    "train_for_frames": 100_000_000,
}
"""Default options of a population on robots.

The learning rate does not follow the KL divergence, because PBT tunes the learning rate. Returns are normalised,
because PBT tunes the weights of reward terms and thereby changes the scale of returns. Layers and entropy coefficient
are the values of mjlab 1.6 (`RslRlModelCfg` and `RslRlPpoAlgorithmCfg`).
"""
ROBOT_RECIPES = {
    "rsl-ppo": Recipe(
        "RSL-RL's published PPO values, for simulators on the device; the learning rate follows the "
        "KL divergence.",
        RSL_RL,
    )
}
DMLAB_RECIPES = {
    # Sample Factory's published command line for DMLab-30 with four agents. Differences:
    # - Numbers of processes depend on the machine. Sample Factory's 90 workers of 12 environments have core affinity.
    # - Different levels in the vector envs decorrelate the experience at the start.
    # - Returns are V-trace's, and the network gets the last action and reward, as by default on DMLab here.
    "dmlab30-pbt": Recipe(
        "Sample Factory's DMLab-30 with four agents.",
        {
            "env": "dmlab30",
            "num_policies": 4,
            "algo": "appo",
            "train_for_frames": 10_000_000_000,
            "model.encoder": "impala",
            "model.hidden": (512,),
            "model.core": "lstm",
            "model.core_size": 512,
            "learner.rollout": 32,
            "learner.batch": 2048,
            "learner.epochs": 1,
            "learner.minibatches": 1,
            "learner.max_policy_lag": 35,
            "hypers.unroll": 32,
            "hypers.gamma": 0.99,
            "hypers.learning_rate": 1e-4,
            "hypers.entropy_coef": 0.003,
            "hypers.value_coef": 1.0,  # 0.5 in Sample Factory, whose value loss has no factor of 1/2
            "hypers.max_grad_norm": 1e9,  # no limit
            "dmlab.actions": "extended",
            "dmlab.reward_unit": 5.0,
            "dmlab.renderer": "software",
            "dmlab.one_level_per_vector_env": True,
            "pbt.period_frames": 10_000_000,
            "pbt.start_frames": 100_000_000,
            "pbt.replace_gap": 0.05,
            "pbt.replace_gap_absolute": 5.0,
            "pbt.replace_errors": 0.0,
            "pbt.tune": ("learning_rate", "entropy_coef", "value_coef", "clip_ratio", "clip_value"),
        },
    ),
}

ATARI = Family(
    "atari",
    "Atari 2600 games",
    "atari/pong",
    ("ale_py",),
    "pip install ale-py",
    ".ale_backend",
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
TOY = Family(
    "toy", "toys with known solutions", "toy/memory", ("gymnasium",), "pip install gymnasium", ".toy"
)
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
    "not on any registry; build the module deepmind_lab as described at "
    "https://github.com/google-deepmind/lab (python/pip_package), then install it or add it to "
    "PYTHONPATH",
    ".dmlab.vector_env",
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
    ".doom.vector_env",
    several_agents=True,
)
ENVPOOL = Family(
    "envpool",
    "EnvPool's native vectors",
    "envpool/Pong-v5",
    ("envpool",),
    "pip install 'pbt-rl[envpool]'",
    ".envpool",
    takes_keywords=True,
    options={"atari": AtariOptions},
)
GYMNAX = Family(
    "gymnax",
    "JAX environments of gymnax, on the learner's device",
    "gymnax/CartPole-v1",
    ("gymnax", "six"),  # gymnax imports six without requiring it
    "pip install gymnax six",
    ".simulators.gymnax",
    takes_keywords=True,
    on_device=True,
)
MJLAB = Family(
    "mjlab",
    "mjlab's robots (MuJoCo Warp), on the learner's device",
    "mjlab/Mjlab-Velocity-Flat-Unitree-Go1",
    ("mjlab",),
    "pip install mjlab",
    ".simulators.rsl:MJLAB",
    recipes=ROBOT_RECIPES,
    takes_keywords=True,
    on_device=True,
)
ISAACLAB = Family(
    "isaaclab",
    "Isaac Lab's tasks, on the learner's device (never run, see docs/reference/simulators.md)",
    "isaaclab/Isaac-Velocity-Flat-Anymal-C-v0",
    ("isaaclab", "isaaclab_tasks", "isaaclab_rl"),
    "install Isaac Lab as described at https://isaac-sim.github.io/IsaacLab, and pbt_rl into its "
    "Python environment",
    ".simulators.rsl:ISAACLAB",
    takes_keywords=True,
    on_device=True,
)
TENSORS = Family(
    "tensors",
    "toys on the learner's device",
    "tensors/pendulum",
    ("torch",),
    "pip install torch",
    ".simulators.tensors",
    takes_keywords=True,
    on_device=True,
)
