"""One process per device: sampling, learning, and the members of its pack.

Imports algos, wire and plan; no population, no supervisor and no display.
"""
