from types import SimpleNamespace


def parse_env_cfg(task_name, device="cuda:0", num_envs=None, use_fabric=None):
    scene, sim = SimpleNamespace(num_envs=num_envs), SimpleNamespace(device=device)
    return SimpleNamespace(scene=scene, sim=sim, seed=None, is_finite_horizon=False)
