"""Learning: a leaf room. Math, networks and packs; no processes and no files."""
