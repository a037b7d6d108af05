"""`--hours`: population, environments and comparisons of a run from its time alone."""
