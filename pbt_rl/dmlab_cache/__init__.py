"""`pbt-rl dmlab-cache`: build maps of DeepMind Lab beforehand."""
