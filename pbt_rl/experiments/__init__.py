"""Experiments of several runs: sweeps, and paired comparisons of methods (`prove`)."""
