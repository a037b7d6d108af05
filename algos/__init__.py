"""Learning: math, networks, packs and algorithms.

A leaf package: it imports only `pbt_rl.registry` from the project, starts no process and opens no file.
"""
