"""UNREAL: A3C with auxiliary tasks from a replay (Jaderberg et al. 2016)."""
