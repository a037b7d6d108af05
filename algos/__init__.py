"""Learning: maths, networks, packs and algorithms.

Of the other packages of the project, this package imports only errors, registry and options.
"""
