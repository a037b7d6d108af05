"""Learning: math, networks, packs and algorithms.

A leaf room: it imports nothing else of the project but `pbt_rl.registry`, starts no process and opens no file.
"""
