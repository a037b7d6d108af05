"""Experiments of several runs: paired comparisons of arms (`prove`), and sweeps."""
