"""As Isaac Lab's: importing it registers the tasks, and works once the simulator runs."""

import gymnasium
from isaaclab.app import started

assert started, "isaaclab_tasks was imported before the simulator was started"
gymnasium.register(
    id="Isaac-Point-v0",
    entry_point="isaaclab_tasks.point:Point",
    disable_env_checker=True,
)
