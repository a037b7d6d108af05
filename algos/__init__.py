"""Learning: maths, networks, packs and algorithms.

From the project, this package imports only errors, registry and options.
"""
